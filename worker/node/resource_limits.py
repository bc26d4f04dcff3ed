"""Limits of one attempt's memory, processes and cores, by cgroups where this machine allows it.

With version 2 the attempt's own cgroup has the limits, if the controllers were delegated. With
version 1 each controller has a tree of its own, and the same folders are created in it. The folder
of the node, above those of its attempts, limits the memory of all of them together.

On a node that is shared, the attempt is kept on the cores of its slots, by affinity in any case. A
process may change its own affinity; a cpuset cgroup, or the filter of a script's sandbox, holds it.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.node.memory import own_groups
from worker.node.process_tree import Cgroup, group_of, make_group

# Files of the limits, by controller.
VERSION_2 = {"memory": "memory.max", "pids": "pids.max", "cpuset": "cpuset.cpus"}
VERSION_1 = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpuset": "cpuset.cpus"}
WITH_SWAP = "memory.memsw.limit_in_bytes"  # version 1
NO_SWAP_AND_ALL_AT_ONCE = {"memory.swap.max": "0", "memory.oom.group": "1"}  # version 2
FIRST_TO_DIE = "1000"  # oom_score_adj: before the platform, which has 0


@dataclass
class ResourceLimits:
    """Limits of the attempt in folder `attempt`."""

    attempt: Path
    cgroup: Cgroup | None
    memory_bytes: int
    """Memory limit of all its processes."""
    node_memory_bytes: int
    """Memory limit of all attempts of the node."""
    processes: int | None = None
    """Limit of the number of processes; None: as many as the system allows."""
    cpus: Sequence[int] = ()
    """Processors that it is kept on; empty: it may use all that its worker may."""
    bounded: dict[str, Path] = field(default_factory=dict)
    """Cgroup in which each controller counts the ranks."""
    joined: list[Path] = field(default_factory=list)
    """Cgroups of version 1 that a process must join."""

    def set(self) -> None:
        """Set the limits that this machine allows to be set."""
        wanted = {
            "memory": str(self.memory_bytes),
            "pids": "" if self.processes is None else str(self.processes),
            "cpuset": ",".join(map(str, self.cpus)),
        }
        for controller, value in wanted.items():
            if value and not self._set_v2(controller, value):
                self._set_v1(controller, value)

    def keep_apart(self, *, strictly: bool) -> None:
        """Keep this process and those it starts on its cores.

        Raises OSError if that fails, or, for a program that is kept apart `strictly`, if its memory
        has no limit: then it would run at the expense of its neighbours.
        """
        if not self.cpus:
            return
        os.sched_setaffinity(0, self.cpus)
        if strictly and "memory" not in self.bounded:
            raise OSError(
                errno.ENOTSUP, "no memory cgroup can be made to keep it apart from its neighbours"
            )

    @property
    def may_set_affinity(self) -> bool:
        """True if a process that sets its own affinity stays on its cores all the same."""
        return not self.cpus or "cpuset" in self.bounded

    def enter(self) -> None:
        """Move this process, a rank, into its cgroups; it is killed before the platform is."""
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(FIRST_TO_DIE)
        if self.cgroup is not None:
            with contextlib.suppress(OSError):  # it is then found by descent and working directory
                self.cgroup.join(self.cgroup.ranks)
        for group in self.joined:
            with contextlib.suppress(OSError):
                Cgroup.join(group)

    def remove(self) -> None:
        """Remove the empty cgroups of version 1, the node's with the last one."""
        for group in self.joined:
            _remove(group)

    def _set_v2(self, controller: str, value: str) -> bool:
        if self.cgroup is None:
            return False
        file = VERSION_2[controller]
        try:
            for folder in (self.cgroup.path.parent, self.cgroup.path):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            (self.cgroup.ranks / file).write_text(value)
        except OSError:
            return False
        if controller == "memory":
            with contextlib.suppress(OSError):
                (self.cgroup.path.parent / file).write_text(str(self.node_memory_bytes))
            for name, text in NO_SWAP_AND_ALL_AT_ONCE.items():
                with contextlib.suppress(OSError):
                    (self.cgroup.ranks / name).write_text(text)
        self.bounded[controller] = self.cgroup.ranks
        return True

    def _set_v1(self, controller: str, value: str) -> None:
        group = _group_v1(controller, self.attempt)
        if group is None:
            return
        file = VERSION_1[controller]
        try:
            make_group(group)
            if controller == "cpuset":  # a new group has none, and lets no process in
                _inherit(group.parent, "cpuset.cpus", "cpuset.mems")
                _inherit(group, "cpuset.mems")
            (group / file).write_text(value)
        except OSError:
            _remove(group)
            return
        if controller == "memory":
            for folder, most in ((group.parent, str(self.node_memory_bytes)), (group, value)):
                for name in (file, WITH_SWAP):
                    with contextlib.suppress(OSError):
                        (folder / name).write_text(most)
        self.bounded[controller] = group
        self.joined.append(group)


def remove_groups_v1(attempt: Path) -> None:
    """Take away what a shim that was killed could not: its attempt's empty groups of version 1."""
    for controller in VERSION_1:
        group = _group_v1(controller, attempt)
        if group is not None:
            _remove(group)


def _group_v1(controller: str, attempt: Path) -> Path | None:
    """Where an attempt's group of version 1 would be; None where the controller has no such."""
    places = [place for place in own_groups(controller) if (place / "tasks").exists()]
    return places[0] / group_of(attempt) if places else None


def _inherit(group: Path, *files: str) -> None:
    for file in files:
        (group / file).write_text((group.parent / file).read_text())


def _remove(group: Path) -> None:
    for folder in (group, group.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()
