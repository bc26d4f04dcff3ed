"""Maintenance: the hours that staff keep, the leases in their way, and the holds themselves.

Nothing is displaced without a plan that a person has seen: its hash names every lease as it was. A
lease that has changed since is left alone, and its hours are kept as soon as it is planned anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.leases import leases, settlement
from core.leases.situation import rules_for
from core.notices.notices import NoticeKind, notify
from core.states import LeaseState, NodeState
from core.tables.kinds import OccupancyKind
from core.tables.leases import Lease, Maintenance, Occupancy
from core.tables.nodes import Node

MOVE, REFUND, KEEP = "move", "refund", "keep"


@dataclass(frozen=True)
class MaintenanceSlot:
    """One node for one time."""

    node_id: str
    start: datetime
    end: datetime


@dataclass(frozen=True)
class DisplacedLease:
    """A lease in the way of a maintenance, and the act planned for it."""

    lease_id: str
    generation: int
    slot: MaintenanceSlot
    act: str
    to_node_id: str | None


def plan(session: Session, slots: Sequence[MaintenanceSlot]) -> list[DisplacedLease]:
    """Return every lease on these slots, each once, with the act planned for it."""
    found: dict[str, DisplacedLease] = {}
    promised: list[MaintenanceSlot] = list(slots)
    for slot in slots:
        rows = session.scalars(
            select(Lease)
            .join(Occupancy, Occupancy.lease_id == Lease.id)
            .where(
                Occupancy.node_id == slot.node_id,
                Occupancy.live,
                Occupancy.kind == OccupancyKind.LEASE,
                Occupancy.hold_start < slot.end,
                Occupancy.hold_end > slot.start,
            )
            .order_by(Lease.hold_start, Lease.id)
        )
        for lease in rows:
            if lease.id in found:
                continue
            spare = None
            if lease.state is LeaseState.BOOKED:
                spare = next(_spares(session, lease, promised), None)
            if spare is not None:
                promised.append(MaintenanceSlot(spare.id, lease.hold_start, lease.hold_end))
            act = KEEP if lease.state is not LeaseState.BOOKED else MOVE if spare else REFUND
            to_node_id = spare.id if spare else None
            found[lease.id] = DisplacedLease(lease.id, lease.generation, slot, act, to_node_id)
    return list(found.values())


def plan_hash(displaced: Sequence[DisplacedLease]) -> str:
    """Return a hash of the plan to agree to: each lease as it is now, and its planned act."""
    lines = sorted(
        f"{one.lease_id} {one.generation} {one.act} {one.to_node_id}" for one in displaced
    )
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def keep(session: Session, row: Maintenance, slot: MaintenanceSlot) -> bool:
    """Hold a slot for a maintenance; False if something stands in its way."""
    leases.lock_nodes(session, [slot.node_id])
    node = session.get_one(Node, slot.node_id)
    try:
        leases.hold(
            session,
            node,
            OccupancyKind.MAINTENANCE,
            slot.start,
            slot.end,
            maintenance_id=row.id,
        )
    except HourTaken:
        return False
    return True


def displace(session: Session, one: DisplacedLease, *, why: str, actor: str, now: datetime) -> str:
    """Move or refund a lease if it is still as planned; return the result in words."""
    lease = session.get_one(Lease, one.lease_id)
    leases.lock_nodes(session, {lease.node_id, one.to_node_id or lease.node_id})
    leases.lock_lease(session, lease)
    if (lease.generation, lease.state) != (one.generation, LeaseState.BOOKED):
        return "skipped: it has changed since the plan was made"
    if one.act == MOVE and one.to_node_id is not None:
        node = session.get_one(Node, one.to_node_id)
        message = f"Moved to {node.name} for maintenance: {why}"
        try:
            leases.move(session, lease, node, now=now, message=message, actor=actor)
        except HourTaken:
            return f"skipped: {node.name} has been booked since the plan was made"
        _tell(session, lease, NoticeKind.LEASE_MOVED, message, now)
        return f"moved to {node.name}"
    message = f"Cancelled for maintenance: {why}"
    rules = rules_for(session, lease.user_id, session.get_one(Node, lease.node_id)).cancel
    settled = settlement.of_staff_delete(rule=None, rules=rules, why=message)
    leases.cancel(session, lease, now=now, message=message, actor=actor, settlement=settled)
    _tell(session, lease, NoticeKind.LEASE_CANCELLED, message, now)
    return "cancelled; its hours count" if settled.counts else "refunded"


def give_back(session: Session, row: Maintenance, *, now: datetime) -> None:
    """End a maintenance and free its hours from now on."""
    row.cancelled_at = now
    query = update(Occupancy).where(Occupancy.maintenance_id == row.id, Occupancy.live)
    session.execute(query.where(Occupancy.hold_start >= now).values(live=False))
    session.execute(
        query.where(Occupancy.hold_start < now, Occupancy.hold_end > now).values(hold_end=now)
    )


def _spares(session: Session, lease: Lease, promised: Sequence[MaintenanceSlot]) -> Iterator[Node]:
    """Yield the ready nodes of the same class that are free for the whole lease, by name."""
    old = session.get_one(Node, lease.node_id)
    nodes = session.scalars(
        select(Node)
        .where(Node.class_name == old.class_name, Node.state == NodeState.READY, Node.id != old.id)
        .order_by(Node.name)
    )
    for node in nodes:
        is_promised = any(
            slot.node_id == node.id and slot.start < lease.hold_end and slot.end > lease.hold_start
            for slot in promised
        )
        holder = leases.first_holder(session, node.id, lease.hold_start, lease.hold_end)
        if not is_promised and holder is None:
            yield node


def _tell(session: Session, lease: Lease, kind: NoticeKind, message: str, now: datetime) -> None:
    facts: dict[str, object] = {"message": message, "hold_start": lease.hold_start.isoformat()}
    notify(session, lease.user_id, kind, lease.id, facts, now=now)
