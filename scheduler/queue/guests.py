"""Leases that take guests: jobs of other people, while the owner has not come. Pure.

A guest runs in the owner's lease, on a node on which no job of the owner has run since the lease
began. It saves checkpoints and is stopped as soon as a job of the owner names the lease
(`handover.Recall`), and at the lease's end like every job in it. When the lease is taken back, the
guest goes on if the rules of `succession` allow it. All guests in one lease belong to one person,
like all jobs on one node.
"""

from collections.abc import Sequence
from datetime import timedelta

from core.policy.document import DEFAULT
from core.states import LeaseState
from core.tables.kinds import LeaseKind
from scheduler.snapshot import LeaseSnapshot, Snapshot

RECALLED_WITHIN = timedelta(seconds=90)  # 60 s to save, 30 s from SIGTERM to SIGKILL


def open_to_guests(world: Snapshot) -> Sequence[LeaseSnapshot]:
    """Return the leases that take a guest now by their nodes' policies, latest end first."""
    found = [lease for lease in world.leases.values() if _takes_guests(lease, world)]
    return sorted(found, key=lambda lease: (-lease.usable_end.timestamp(), lease.id))


def persons(world: Snapshot) -> dict[str, str]:
    """Map lease id -> id of the user whose jobs are guests in the lease."""
    return {one.lease_id: one.user_id for one in world.attempts if one.guest}


def _takes_guests(lease: LeaseSnapshot, world: Snapshot) -> bool:
    policy = world.policies.get(lease.node_id, DEFAULT)
    after_min, rules = policy.no_show.backfill_after_min, policy.scheduling
    if after_min is None or rules.soft_fit == "off":
        return False
    if lease.kind is not LeaseKind.BOOKED or lease.state is not LeaseState.ACTIVE:
        return False
    if world.has_run_in(lease.id) or not world.nodes[lease.node_id].usable:
        return False
    left = lease.usable_end - world.now
    return (
        world.idle_s(lease) >= 60 * after_min
        and left >= timedelta(minutes=rules.min_useful_min)
        and world.tidy(lease)
    )
