"""Jobs of different owners that this node can run beside each other, found by trying.

A recipe is the platform's own code: it stays on the cores it is given, and its shim counts its
memory. A script may be hostile: its sandbox holds it on its cores, and only a memory cgroup keeps
it from its neighbour's memory.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from core.states import Sharing
from worker.node.attempts import Attempt
from worker.node.cores import Core, read_cores
from worker.node.memory import GIB
from worker.node.process_tree import LEAF, cgroup_for, join_cgroup
from worker.node.resource_limits import ResourceLimits, remove_groups_v1

PROBE = "probe.1"
NO_MEMORY_CGROUP = (
    "no memory cgroup can be made; give the worker's service Delegate=yes and "
    f"DelegateSubgroup={LEAF} (systemd 254 or newer)"
)
MIG_SHARES = "the instances of a GPU in MIG mode have one device file, so scripts run alone on it"


@dataclass(frozen=True)
class SharingHost:
    """Facts about this machine on which it depends who may share it."""

    cores: tuple[Core, ...]
    """Cores that the worker could use when it started."""
    bounds_memory: bool = False
    """True if a memory cgroup could be made."""
    most: Sharing = Sharing.FULL
    """Most that the administrator allows."""


@dataclass(frozen=True)
class SharingSupport:
    """Sharing that a node offers, and the reason why not more; empty if it is full."""

    sharing: Sharing
    reason: str = ""


def find_sharing_host(most: Sharing) -> SharingHost:
    """Return the facts about this machine. Must run with one thread."""
    cores = tuple(read_cores(os.sched_getaffinity(0)))
    return SharingHost(cores, most is Sharing.FULL and can_bound_memory(), most)


def judge_sharing(
    host: SharingHost, *, slots: int, no_sandbox: str, has_instances: bool
) -> SharingSupport:
    """Return the sharing of a node with so many slots. `has_instances` is True if some of them are
    instances of MIG."""
    refused = f"TRAINYARD_SHARING is {host.most} on this node"
    if slots < 2:
        return SharingSupport(Sharing.NONE, "it has one slot")
    if host.most is Sharing.NONE:
        return SharingSupport(Sharing.NONE, refused)
    if len(host.cores) < slots:
        return SharingSupport(
            Sharing.NONE,
            f"{len(host.cores)} cores cannot be divided among {slots} slots; set TRAINYARD_SLOTS "
            "to fewer slots",
        )
    if host.most is Sharing.RECIPES:
        return SharingSupport(Sharing.RECIPES, refused)
    if no_sandbox:
        return SharingSupport(Sharing.RECIPES, f"scripts have no sandbox: {no_sandbox}")
    if has_instances:
        return SharingSupport(Sharing.RECIPES, MIG_SHARES)
    if not host.bounds_memory:
        return SharingSupport(Sharing.RECIPES, NO_MEMORY_CGROUP)
    return SharingSupport(Sharing.FULL)


def can_bound_memory() -> bool:
    """Return True if a child of this process can be given a memory cgroup, as a shim gives one."""
    with tempfile.TemporaryDirectory(prefix="trainyard-sharing-") as folder:
        attempt = Attempt(Path(folder, PROBE))
        attempt.path.mkdir()
        pid = os.fork()
        if pid == 0:  # a process that has joined a cgroup might not be let out of it again
            _try_out(attempt)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        remove_groups_v1(attempt.path)
        cgroup = cgroup_for(attempt.path)
        if cgroup is not None:
            cgroup.remove()
    return code == 0


def _try_out(attempt: Attempt) -> None:
    """End this process, with 0 if it is in a cgroup with a limit of memory."""
    code = 1
    try:
        limits = ResourceLimits(attempt.path, join_cgroup(attempt.path), GIB, GIB)
        limits.set()
        limits.enter()
        group = limits.bounded.get("memory")
        members = [] if group is None else (group / "cgroup.procs").read_text().split()
        code = 0 if str(os.getpid()) in members else 1
    finally:
        os._exit(code)
