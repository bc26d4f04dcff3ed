"""Memory: free memory of this machine, limit of one attempt, and its use.

A cgroup enforces the limit where one can be created (`worker.node.resource_limits`): the kernel
then counts, and kills within it. Elsewhere the shim adds up the resident memory of all processes
of the attempt. Either way the attempt is ended at its limit, and before the machine itself runs
out: otherwise the kernel would choose a victim among everything that runs here.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

from worker.node.process_tree import around_worker

CGROUPS = Path("/sys/fs/cgroup")
MIB, GIB = 1 << 20, 1 << 30
WHOLE = Fraction(1)
LEAST_BOUND = 256 * MIB  # less than torch's imports need: such an attempt ends and says why
LONGEST_PAUSE_S, SHORTEST_PAUSE_S = 1.0, 0.02
FILLED_PER_S = 8 * GIB  # speed at which a few threads touch new pages
OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
PAGE = os.sysconf("SC_PAGE_SIZE")


class Machine(NamedTuple):
    """Bytes of memory of this machine, or of the container that this process is in."""

    total: int
    available: int
    """Free memory, including caches that the kernel can reclaim."""

    @property
    def reserve(self) -> int:
        """Memory kept for the platform and the system: a tenth, at least 1 GiB, at most a
        quarter."""
        return max(self.total // 10, min(GIB, self.total // 4))

    @property
    def for_jobs(self) -> int:
        """Limit of all jobs of the node together."""
        return self.total - self.reserve

    @property
    def margin(self) -> int:
        """Memory left for other programs to grow."""
        return self.reserve // 4

    def bound(self, wanted: int | None, part: Fraction = WHOLE) -> int:
        """Return the limit of an attempt that starts now; `wanted` is the administrator's
        setting, `part` the part of the node that its slots are."""
        room = min(int(self.for_jobs * part), self.available - self.margin)
        return max(LEAST_BOUND, room if wanted is None else min(room, wanted))

    def is_full(self) -> bool:
        """Return True if the next large allocation may trigger the machine's own out-of-memory
        killer."""
        return self.available < self.margin // 2


def machine() -> Machine:
    """Return this machine's memory now. Cgroups above this process can leave it less."""
    told = Path("/proc/meminfo").read_text()
    kib = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", told, re.M)}
    found = Machine(1024 * kib["MemTotal"], 1024 * kib["MemAvailable"])
    for group in limiting_groups(found.total):
        limit = read_number(group, "memory.max", "memory.limit_in_bytes")
        if limit is not None:
            left = limit - used_bytes(group)
            found = Machine(min(found.total, limit), min(found.available, left))
    return found


@cache
def limiting_groups(total: int) -> list[Path]:
    """Return the cgroups around this process that leave it less than `total`."""
    limits = {
        group: read_number(group, "memory.max", "memory.limit_in_bytes")
        for group in own_groups("memory")
    }
    return [group for group, limit in limits.items() if limit is not None and limit < total]


def own_groups(controller: str) -> list[Path]:
    """Return the cgroups of this process that count for `controller`, innermost first.

    Those of a shim, which are the attempt's own, are left out.
    """
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, place = line.split(":", 2)
        mount = CGROUPS / controller if names else CGROUPS
        if names and controller not in names.split(","):
            continue
        inner = Path(around_worker(place).strip("/"))
        # In a container the path may be the one seen outside, and the mount already that folder.
        found += [mount / above for above in (inner, *inner.parents) if (mount / above).is_dir()]
    return list(dict.fromkeys(found))


def read_number(group: Path, *names: str) -> int | None:
    """Return the number in the first of the group's files that exists and holds one."""
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            return int((group / name).read_text())
    return None


def used_bytes(group: Path) -> int:
    """Return the cgroup's memory without files, which the kernel reclaims when memory is needed."""
    used = read_number(group, "memory.current", "memory.usage_in_bytes") or 0
    with contextlib.suppress(OSError):
        found = re.findall(r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.M)
        return max(0, used - sum(map(int, found)))
    return used


def kills_in(group: Path) -> int:
    """Return how many processes of the cgroup the kernel has killed for lack of memory."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            found = OOM_KILL.search((group / name).read_text())
            if found:
                return int(found[1])
    return 0


def kills_around() -> int:
    """Return the same for everything that shares this process's memory.

    That is its cgroup if it counts kills, else the machine.
    """
    for group in own_groups("memory"):
        if (group / "memory.events").exists() or (group / "memory.oom_control").exists():
            return kills_in(group)
    found = OOM_KILL.search(Path("/proc/vmstat").read_text())
    return int(found[1]) if found else 0


def resident_bytes(pids: Iterable[int], *, more_than: int) -> int:
    """Return the processes' resident memory.

    Shared pages are counted once, which is slow to find out, only if the plain sum exceeds
    `more_than`.
    """
    alive = list(pids)
    plain = sum(_number(f"/proc/{pid}/statm", r"^\d+ (\d+)") for pid in alive) * PAGE
    if plain <= more_than:
        return plain
    return 1024 * sum(_number(f"/proc/{pid}/smaps_rollup", r"\nPss:\s+(\d+) kB") for pid in alive)


def _number(path: str, pattern: str) -> int:
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(path).read_text())
        return int(found[1]) if found else 0
    return 0


class MemoryUse(NamedTuple):
    """Memory used on this node by an attempt that was ended because of it."""

    most_bytes: int
    bound_bytes: int


@dataclass
class MemoryWatch:
    """Watch over one attempt's memory; it looks more often the less is left."""

    bound_bytes: int
    group: Path | None
    """Cgroup that enforces the limit; None: only this watch does."""
    processes: Callable[[], Iterable[int]]
    has_neighbours: bool = False
    """True if other owners use the machine too: then it is not ended for a machine that is full,
    which may be the work of another; its own share is its limit."""
    most_bytes: int = 0
    exceeded: bool = False
    """True if the attempt has reached its limit, or has exhausted the machine's memory."""
    pause_s: float = LONGEST_PAUSE_S
    """Seconds until the next look."""
    kills_before: int = field(default_factory=kills_around)

    def look(self) -> None:
        """Measure, and decide whether the attempt must end."""
        here = machine()
        left = here.available - here.margin // 2
        if self.group is None:
            used = resident_bytes(self.processes(), more_than=self.bound_bytes)
            self.exceeded |= used > self.bound_bytes
            left = min(left, self.bound_bytes - used)
        else:
            used = read_number(self.group, "memory.peak", "memory.max_usage_in_bytes") or 0
            self.exceeded |= kills_in(self.group) > 0
        self.most_bytes = max(self.most_bytes, used)
        if here.is_full() and not self.has_neighbours:
            # An attempt that uses next to nothing did not fill it.
            now = used if self.group is None else used_bytes(self.group)
            self.exceeded |= now > here.margin
        self.pause_s = max(SHORTEST_PAUSE_S, min(LONGEST_PAUSE_S, left / FILLED_PER_S))

    def use(self) -> MemoryUse | None:
        """Return the use for the verdict; None if memory is not the reason for the attempt's
        end."""
        return MemoryUse(self.most_bytes, self.bound_bytes) if self.exceeded else None

    def others_were_killed(self) -> bool:
        """Return True if the kernel has meanwhile killed a process for lack of memory: one of the
        attempt if its cgroup counts them, else one that shares this process's memory."""
        if self.group is not None:
            return kills_in(self.group) > 0
        return kills_around() > self.kills_before
