"""Sizes of walk-ins: a part of a node where its policy lists sizes, else the whole node. Pure."""

from collections.abc import Sequence

from core.policy.document import DEFAULT
from core.policy.verdict import NodeRef
from core.states import Sharing
from scheduler.snapshot import NodeSnapshot, Snapshot, WaitingJob


def sizes_sold(world: Snapshot, node: NodeSnapshot, *, is_script: bool) -> tuple[int, ...]:
    """Return the numbers of slots that a walk-in on a node may have, ascending.

    A node that cannot keep owners apart is taken whole, and so is one on which only recipes run
    side by side, by a program.
    """
    if node.sharing is Sharing.NONE or (is_script and node.sharing is not Sharing.FULL):
        return (node.slots,)
    ref = NodeRef(node.id, node.name, node.class_name, node.slots, node.sharing)
    return world.policies.get(node.id, DEFAULT).sizes(ref)


def smallest(sizes: Sequence[int], needed: int, of: int) -> int | None:
    """Return the smallest of `sizes` that has the slots that are needed; None if that is all `of`
    the node's slots, or if none has."""
    size = min((each for each in sizes if each >= needed), default=of)
    return None if size >= of else size


def walk_in_slots(world: Snapshot, node: NodeSnapshot, job: WaitingJob) -> int | None:
    """Return the number of a node's slots that a walk-in of a job takes; None for all of them."""
    sizes = sizes_sold(world, node, is_script=job.is_script)
    return smallest(sizes, job.slots_needed(node.class_name), node.slots)
