"""Holds of a node: who has which of its slots, now and next."""

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.nodes.schemas import NodeHoldView
from api.web.identity import Person
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node, NodeSlot
from core.tables.people import User

AHEAD = timedelta(days=7)


def holds_of(session: Session, node: Node, person: Person, *, now: datetime) -> list[NodeHoldView]:
    """Return the holds of a node from now on to `AHEAD`, earliest first, as a person sees them.

    Who has a node now is known to everyone; who has booked it, to the owner and to staff.
    """
    rows = session.execute(
        select(Occupancy, Lease, User.name)
        .outerjoin(Lease, Lease.id == Occupancy.lease_id)
        .outerjoin(User, User.id == Lease.user_id)
        .where(
            Occupancy.node_id == node.id,
            Occupancy.live,
            Occupancy.hold_end > now,
            Occupancy.hold_start < now + AHEAD,
        )
        .order_by(Occupancy.hold_start, Occupancy.id)
    )
    slots: dict[str | None, list[int]] = {}
    for lease_id, slot in session.execute(
        select(NodeSlot.lease_id, NodeSlot.slot)
        .where(NodeSlot.node_id == node.id, NodeSlot.lease_id.is_not(None))
        .order_by(NodeSlot.slot)
    ):
        slots.setdefault(lease_id, []).append(slot)
    found = []
    for hold, lease, user in rows:
        has_begun = hold.hold_start <= now
        may_see = lease is not None and (person.is_staff or lease.user_id == person.id)
        found.append(
            NodeHoldView(
                kind=hold.kind,
                walk_in=lease is not None and lease.kind is LeaseKind.WALK_IN,
                hold_start=hold.hold_start,
                hold_end=hold.hold_end,
                gpus=hold.num_slots or node.slots,
                slots=slots.get(hold.lease_id, []) if has_begun and lease is not None else [],
                user=user if has_begun or may_see else None,
                lease=hold.lease_id if may_see else None,
            )
        )
    return found
