"""Leases that take guests: jobs of other people, while the owner is not there. Pure.

A guest runs in the owner's lease, on a node on which no job of the owner has run since the lease
began, or on the slots of workbenches that are idle and that their owner lends. It saves checkpoints
and is stopped as soon as a job of the owner names the lease or the owner is back at a workbench
(`handover.Recall`), and at the lease's end like every job in it. When the lease is taken back, the
guest goes on if the rules of `succession` allow it. All guests in one lease belong to one person,
like all jobs on one node.
"""

from collections.abc import Sequence
from datetime import timedelta

from core.policy.document import DEFAULT
from core.states import LeaseState, Sharing
from core.tables.kinds import LeaseKind
from scheduler.snapshot import LeaseSnapshot, Snapshot

RECALLED_WITHIN = timedelta(seconds=90)  # 60 s to save, 30 s from SIGTERM to SIGKILL


def open_to_guests(world: Snapshot) -> Sequence[LeaseSnapshot]:
    """Return the leases that take a guest now by their nodes' policies, latest end first."""
    found = [lease for lease in world.leases.values() if _takes_guests(lease, world)]
    return sorted(found, key=lambda lease: (-lease.usable_end.timestamp(), lease.id))


def is_lent(lease: LeaseSnapshot, world: Snapshot) -> bool:
    """Return True if the owner has idle workbenches in the lease and nothing else, and lends their
    slots, as the node's policy allows."""
    return world.scheduling_of(lease.node_id).idle_after_min is not None and world.lends(lease.id)


def persons(world: Snapshot) -> dict[str, str]:
    """Map lease id -> id of the user whose jobs are guests in the lease."""
    return {one.lease_id: one.user_id for one in world.attempts if one.guest}


def _takes_guests(lease: LeaseSnapshot, world: Snapshot) -> bool:
    rules, node = world.scheduling_of(lease.node_id), world.nodes[lease.node_id]
    if lease.kind is not LeaseKind.BOOKED or lease.state is not LeaseState.ACTIVE:
        return False
    if rules.soft_fit == "off" or not node.usable or not world.tidy(lease):
        return False
    if lease.usable_end - world.now < timedelta(minutes=rules.min_useful_min):
        return False
    if is_lent(lease, world):
        return node.sharing is Sharing.FULL  # the owner's programs stay there
    after_min = world.policies.get(lease.node_id, DEFAULT).no_show.backfill_after_min
    return (
        after_min is not None
        and not world.has_run_in(lease.id)
        and world.idle_s(lease) >= 60 * after_min
    )
