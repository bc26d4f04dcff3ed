"""Leases whose node has failed: each moves to a free node of the same class, or is refunded.

A booked lease that cannot begin moves after two minutes if there is such a node. After the minutes
that the policy names (15) a lease is refunded in full, and its owner is served first on the
waitlist; the lease is kept: if its node comes back, the rest of its hours can be used. An active
lease whose node is silent moves after the same minutes, if a node is free, and the silent node
stays held, because the lease's jobs may still run on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.base.words import clock
from core.leases import leases, waitlist
from core.leases.situation import rules_for
from core.notices.notices import NoticeKind, notify
from core.policy.slots import free_slots
from core.policy.verdict import Span
from core.policy.words import lease_text
from core.states import LeaseState, NodeState
from core.tables.kinds import AppointmentKind, LeaseKind, OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from scheduler.queue.sentences import unavailable
from scheduler.snapshot import LeaseSnapshot, NodeSnapshot, Snapshot

ACTOR = "scheduler"
MOVE_AFTER = timedelta(minutes=2)  # a node that is still being cleared needs seconds
LEAST_LEFT = timedelta(minutes=10)  # a lease with less time left is not worth a move


@dataclass(frozen=True)
class Trouble:
    """A lease that its owner cannot use, with the time lost so far and the reason."""

    lease: LeaseSnapshot
    unusable: timedelta
    why: str


@dataclass(frozen=True)
class LeaseMove:
    """Move of a lease to another node, for the rest of its hours."""

    trouble: Trouble
    to: NodeSnapshot


@dataclass(frozen=True)
class Refund:
    """Refund of a lease: it no longer counts against its owner's quotas."""

    trouble: Trouble


Rescue = LeaseMove | Refund


def troubles(world: Snapshot) -> Iterator[Trouble]:
    """Yield every lease that its owner cannot use because of its node; walk-ins are left out."""
    for lease in sorted(world.leases.values(), key=lambda one: (one.hold_start, one.id)):
        node = world.nodes[lease.node_id]
        if lease.kind is LeaseKind.WALK_IN or world.now >= lease.hold_end:
            continue
        if lease.state is LeaseState.BOOKED and world.due_of(lease.id, AppointmentKind.BEGIN):
            why = f"{node.name} {unavailable(node, world.now)}."
            yield Trouble(lease, world.now - lease.hold_start, why)
        elif lease.state is LeaseState.ACTIVE and not node.heard:
            began_at = lease.began_at or lease.hold_start
            silent = world.now - max(began_at, node.last_seen_at or began_at)
            total = timedelta(seconds=lease.unusable_s) + silent
            yield Trouble(lease, total, f"{node.name} {unavailable(node, world.now)}.")
        elif lease.state is LeaseState.ACTIVE and node.state is NodeState.QUARANTINED:
            why = f"{node.name} {unavailable(node, world.now)}."
            yield Trouble(lease, world.now - (lease.began_at or lease.hold_start), why)


def due(world: Snapshot, patience: Mapping[str, timedelta]) -> Iterator[Rescue]:
    """Yield the moves and refunds that are due now.

    `patience` maps lease id -> time for which the lease must have been unusable before it is
    refunded, or moved if it is active; a lease without an entry is never refunded.
    """
    given: set[str] = set()
    for trouble in troubles(world):
        lease = trouble.lease
        wait = patience.get(lease.id)
        is_booked = lease.state is LeaseState.BOOKED
        move_after = MOVE_AFTER if is_booked else (wait or timedelta.max)
        if trouble.unusable >= move_after and lease.usable_end - world.now >= LEAST_LEFT:
            spare = next(_spares(world, lease, given), None)
            if spare is not None:
                given.add(spare.id)
                yield LeaseMove(trouble, spare)
                continue
        if wait is not None and lease.counts and trouble.unusable >= wait:
            yield Refund(trouble)


def patience(session: Session, world: Snapshot) -> dict[str, timedelta]:
    """Map lease id -> time until the refund, for each unusable lease that its policy refunds."""
    found = {}
    for trouble in troubles(world):
        lease = session.get_one(Lease, trouble.lease.id)
        rules = rules_for(session, lease.user_id, session.get_one(Node, lease.node_id))
        if rules.cancel.fault_refund.refund == "whole":
            minutes = rules.cancel.fault_refund.unusable_min
            found[lease.id] = timedelta(minutes=minutes)
    return found


def carry_out(session: Session, rescue: Rescue, now: datetime) -> None:
    """Write one move or refund, if the lease is still as it was seen.

    Raises HourTaken, with nothing written, if the other node is taken.
    """
    seen = rescue.trouble.lease
    lease = session.get_one(Lease, seen.id)
    nodes = {lease.node_id, rescue.to.id} if isinstance(rescue, LeaseMove) else {lease.node_id}
    leases.lock_nodes(session, nodes)
    leases.lock_lease(session, lease)
    if (lease.state, lease.node_id, lease.counts) != (seen.state, seen.node_id, seen.counts):
        return
    if isinstance(rescue, LeaseMove):
        _move(session, lease, rescue, now)
    else:
        _refund(session, lease, rescue.trouble, now)


def let_go(session: Session, world: Snapshot) -> int:
    """Free the nodes that moved leases still hold, if heard and clean again; return how many."""
    freed = 0
    for hold in world.holds:
        node = world.nodes[hold.node_id]
        if hold.kind is not OccupancyKind.DOWN or not node.heard or not node.clean:
            continue
        running = world.attempts_on(node.id)
        if hold.num_slots is not None:
            running = [one for one in running if one.lease_id == hold.lease_id]
        if running:
            continue
        row = session.scalars(
            select(Occupancy).where(
                Occupancy.node_id == node.id,
                Occupancy.kind == OccupancyKind.DOWN,
                Occupancy.hold_start == hold.start,
                Occupancy.lease_id == hold.lease_id,
                Occupancy.live,
            )
        ).first()
        if row is not None:
            row.live = False
            freed += 1
    return freed


def _spares(world: Snapshot, lease: LeaseSnapshot, given: set[str]) -> Iterator[NodeSnapshot]:
    """Yield the nodes of the lease's class that are free until it ends, sorted by name.

    Leases that were booked together stay on nodes of their own: a job in them has one part on each.
    """
    class_name = world.nodes[lease.node_id].class_name
    beside = {
        other.node_id
        for other in world.leases.values()
        if lease.together is not None and other.together == lease.together
    }
    start = max(world.now, lease.hold_start)
    spans: dict[str, list[Span]] = {}
    for hold in world.holds:
        span = Span(hold.start, hold.end, hold.lease_id, hold.num_slots)
        spans.setdefault(hold.node_id, []).append(span)
    for node in sorted(world.nodes.values(), key=lambda one: one.name):
        if node.class_name != class_name or not node.usable:
            continue
        if node.id in given | beside | {lease.node_id}:
            continue
        held, fit = spans.get(node.id, []), node.slots - len(node.unfit)
        free = free_slots(held, of=fit, start=start, end=lease.hold_end)
        ready = fit - len(node.dirty | world.held_slots(node))
        if min(free, ready) >= (lease.num_slots or node.slots) and (
            lease.num_slots is not None or (node.clean and not world.attempts_on(node.id))
        ):
            yield node


def _move(session: Session, lease: Lease, rescue: LeaseMove, now: datetime) -> None:
    node = session.get_one(Node, rescue.to.id)
    if node.state is not NodeState.READY or (lease.num_slots is None and not node.clean):
        return
    message = f"Moved to {node.name}: {rescue.trouble.why}"
    leases.move(session, lease, node, now=now, message=message, actor=ACTOR)
    what = lease_text(lease.num_slots)
    facts: dict[str, object] = {
        "message": f"Your {what}, from {clock(lease.hold_start, now)} on, has "
        f"moved to {node.name}. {rescue.trouble.why}",
        "node": node.name,
    }
    notify(session, lease.user_id, NoticeKind.LEASE_MOVED, lease.id, facts, now=now)


def _refund(session: Session, lease: Lease, trouble: Trouble, now: datetime) -> None:
    minutes = int(trouble.unusable / timedelta(minutes=1))
    message = f"Refunded: not usable for {minutes} minutes. {trouble.why}"
    leases.refund(session, lease, why=ReasonCode.NODE_FAULT, message=message, now=now)
    rules = rules_for(session, lease.user_id, session.get_one(Node, lease.node_id))
    facts: dict[str, object] = {"message": message, "minutes": minutes}
    if rules.cancel.fault_refund.priority_rebook:
        wait = waitlist.join_after_fault(session, lease, now=now)
        facts |= {"message": f"{message} You are first on the waitlist.", "wait": wait.id}
    notify(session, lease.user_id, NoticeKind.LEASE_REFUNDED, lease.id, facts, now=now)
