"""Processes of an attempt: found in more than one way, killed, and seen to be gone.

torchrun starts each rank in its own session, and a rank may leave children of its own, so neither a
pid nor a process group covers them all. They are found by cgroup where one can be created, by
descent (the shim is a subreaper, so orphans become its children), by working directory, and by a
mark in the environment (not for forked ranks: /proc shows their parent's environment).
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

MARK = "TRAINYARD_ATTEMPT"
LEAF = "trainyard-worker"  # cgroup of the worker beside those of its attempts
MADE = re.compile(rf"/trainyard-[0-9a-f]{{12}}(?=/|$)|/{LEAF}$")
PR_SET_CHILD_SUBREAPER = 36
KILL_AGAIN_EVERY_S = 0.02
TRIES = 100  # to create a group in one that others remove meanwhile
ZOMBIE_STATES = (b"Z", b"X", b"x")


def adopt_orphans() -> None:
    """Make this process the parent of the orphans among its descendants."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Cgroup:
    """Cgroup (v2) of one attempt: the shim is in its `shim`, the ranks in its `ranks`.

    No process is in the cgroup itself, or it could not pass limits down.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shim = path / "shim"
        self.ranks = path / "ranks"

    def create(self) -> None:
        """Create the cgroup and move this process into it.

        Raises OSError if that is not allowed.
        """
        for folder in (self.shim, self.ranks):
            make_group(folder)
        self.join(self.shim)

    def leave(self) -> None:
        """Move this process to where its worker runs. Raises OSError if that is not allowed."""
        around = self.path.parents[1]
        leaf = around / LEAF
        self.join(leaf if leaf.is_dir() else around)

    @staticmethod
    def join(path: Path) -> None:
        """Move this process into the cgroup at `path`."""
        (path / "cgroup.procs").write_text("0")

    def pids(self) -> set[int]:
        """Return all its processes, the shim included."""
        return {pid for folder in (self.path, self.shim, self.ranks) for pid in _pids_of(folder)}

    def kill_ranks(self) -> None:
        """Send SIGKILL to every rank at once; children forked meanwhile die too."""
        _kill(self.ranks)

    def kill(self) -> None:
        """Send SIGKILL to all processes, the shim included."""
        _kill(self.path)

    def remove(self) -> None:
        """Remove the empty cgroup, and the node's with the last one; others stay."""
        for folder in (self.ranks, self.shim, self.path, self.path.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _pids_of(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")


def cgroup_for(attempt: Path) -> Cgroup | None:
    """Return the cgroup for an attempt's folder; None on a machine without cgroup v2."""
    own = own_cgroup()
    if own is None:
        return None
    return Cgroup(Path(around_worker(str(own))) / group_of(attempt))


def join_cgroup(attempt: Path) -> Cgroup | None:
    """Return an attempt's cgroup with this process in it; None if the machine does not allow
    one."""
    cgroup = cgroup_for(attempt)
    if cgroup is None:
        return None
    try:
        cgroup.create()
    except OSError:
        return None
    return cgroup


def make_group(group: Path) -> None:
    """Create a cgroup and its node's, which an attempt that ends may remove in between.

    Raises OSError if that is not allowed.
    """
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            group.mkdir(parents=True, exist_ok=True)
            return
    group.mkdir(parents=True, exist_ok=True)


def group_of(attempt: Path) -> Path:
    """Return the name of an attempt's cgroup, below its node's, which no other platform uses."""
    node = sha256(str(attempt.parent).encode()).hexdigest()[:12]
    return Path(f"trainyard-{node}", attempt.name)


def pass_controllers_down(own: Path | None) -> None:
    """Let the cgroup around the worker's, which is at `own`, pass its controllers to attempts.

    In version 2 only a cgroup without processes may do that. So the service manager must have
    started the worker in the leaf LEAF, and have handed over the cgroup around it. Otherwise
    nothing is changed.
    """
    if own is None or own.name != LEAF:
        return
    for controller in ("memory", "pids", "cpuset"):
        with contextlib.suppress(OSError):  # not handed over
            (own.parent / "cgroup.subtree_control").write_text(f"+{controller}")


def own_cgroup() -> Path | None:
    """Return this process's cgroup of version 2; None if there is none."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in mounts:
        _, folder, kind, *_ = line.split()
        if kind == "cgroup2":
            place = next((part[3:] for part in own if part.startswith("0::")), "/")
            return Path(folder) / place.strip("/")
    return None


def around_worker(place: str) -> str:
    """Return the cgroup in which a worker makes those of its attempts; `place` is that of the
    worker or of one of its shims."""
    return MADE.split(place)[0]


@dataclass(frozen=True)
class ProcessTree:
    """Processes of the attempt in folder `attempt`."""

    attempt: Path
    cgroup: Cgroup | None = None

    def pids(self, *, spare: int | None = None) -> set[int]:
        """Return the running processes, without zombies, `spare` (the shim) and this process.

        The descendants of `spare` belong to the attempt.
        """
        found = set() if self.cgroup is None else self.cgroup.pids()
        found |= {
            pid
            for pid, folder in attempts_of_processes(self.attempt.parent)
            if folder == self.attempt.name
        }
        if spare is not None:
            found |= descendants(spare)
        return {pid for pid in found - {spare, os.getpid()} if is_running(pid)}

    def kill(
        self, *, within_s: float, spare: int | None = None, reap: Callable[[], None] | None = None
    ) -> bool:
        """Send SIGKILL until no process is left; return False if some are left after `within_s`."""
        deadline = time.monotonic() + within_s
        while True:
            if self.cgroup is not None:
                if spare is None:
                    self.cgroup.kill()
                else:
                    self.cgroup.kill_ranks()
            left = self.pids(spare=spare)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if reap is not None:
                reap()
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(KILL_AGAIN_EVERY_S)


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in ZOMBIE_STATES


def descendants(pid: int) -> set[int]:
    """Return the children, their children, and so on."""
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        for child in _children(ahead.pop()):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{task}/children").read_text()
            children += [int(child) for child in text.split()]
    return children


def attempts_of_processes(attempts: Path) -> Iterator[tuple[int, str]]:
    """Yield (pid, name of the attempt's folder) of every process of an attempt below `attempts`.

    Such a process has its working directory there or carries the mark of a folder there. Takes 4
    us per process.
    """
    below = f"{attempts}/"
    mark = f"\0{MARK}={below}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            folder = os.readlink(f"/proc/{name}/cwd")
            if folder.startswith(below):
                yield int(name), folder[len(below) :].split("/")[0].removesuffix(" (deleted)")
                continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", 0) as file:
            _, is_marked, after = (b"\0" + file.read()).partition(mark)
            if is_marked:
                yield int(name), after.partition(b"\0")[0].decode(errors="replace")


def strays(attempts: Path, *, live: set[str]) -> dict[int, str]:
    """Map pid -> folder name of its attempt, for processes of attempts that have ended; those in
    `live` (folder names) may run."""
    return {
        pid: folder
        for pid, folder in attempts_of_processes(attempts)
        if folder not in live and pid != os.getpid() and is_running(pid)
    }
