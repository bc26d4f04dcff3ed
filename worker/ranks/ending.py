"""End of an attempt by force: its shim has gone, or does not end it."""

from pathlib import Path

from worker.node.attempts import Attempt
from worker.node.process_tree import Cgroup, ProcessTree, cgroup_for
from worker.node.resource_limits import remove_groups_v1

KILL_WITHIN_S = 5.0


def end_tree(attempt: Attempt) -> bool:
    """Kill all processes of the attempt, its shim included; return True if none is left."""
    shim = attempt.shim()
    place = None if shim is None else shim.cgroup
    cgroup = cgroup_for(attempt.path) if place is None else Cgroup(Path(place))
    gone = ProcessTree(attempt.path, cgroup).kill(within_s=KILL_WITHIN_S)
    if cgroup is not None:
        cgroup.remove()
    remove_groups_v1(attempt.path)
    return gone
