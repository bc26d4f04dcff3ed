"""Leases as calendar programs read them (iCalendar, RFC 5545).

Import it when a calendar is read, not before: icalendar takes 3 MiB.
"""

from datetime import timedelta

from icalendar import Calendar, Event
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.clock import utc_now
from core.policy.grid import usable_end
from core.policy.words import gpus_text, lease_text
from core.states import LeaseState
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import CalendarFeed, Lease, Occupancy
from core.tables.nodes import Node

LOOK_BACK = timedelta(days=60)


def calendar_of_feed(session: Session, feed: CalendarFeed) -> Calendar:
    """Return a calendar with the booked leases of a feed: of its owner, or of its node."""
    calendar = Calendar()
    calendar.add("prodid", "-//Trainyard//leases//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    since = utc_now() - LOOK_BACK
    query = select(Lease, Node.name).join(Node, Node.id == Lease.node_id)
    query = query.where(Lease.hold_end > since, Lease.kind == LeaseKind.BOOKED)
    if feed.node_id is None:
        calendar.add("x-wr-calname", "Trainyard: my leases")
        query = query.where(Lease.user_id == feed.user_id)
    else:
        name = session.get_one(Node, feed.node_id).name
        calendar.add("x-wr-calname", f"Trainyard: {name}")
        query = query.where(Lease.node_id == feed.node_id)
        for row in session.scalars(
            select(Occupancy).where(
                Occupancy.node_id == feed.node_id,
                Occupancy.kind == OccupancyKind.MAINTENANCE,
                Occupancy.live,
                Occupancy.hold_end > since,
            )
        ):
            calendar.add_component(_maintenance_event(row, name))
    for lease, node_name in session.execute(query.order_by(Lease.hold_start, Lease.id)):
        calendar.add_component(_event(lease, node_name, own=feed.node_id is None))
    return calendar


def calendar_of(session: Session, lease: Lease) -> Calendar:
    """Return a calendar with one lease, as its owner sees it."""
    calendar = Calendar()
    calendar.add("prodid", "-//Trainyard//leases//EN")
    calendar.add("version", "2.0")
    name = session.get_one(Node, lease.node_id).name
    calendar.add_component(_event(lease, name, own=True))
    return calendar


def _event(lease: Lease, node_name: str, *, own: bool) -> Event:
    event = Event()
    event.add("uid", f"{lease.id}@trainyard")
    event.add("sequence", lease.generation)
    event.add("dtstamp", lease.cancelled_at or lease.created_at)
    event.add("dtstart", lease.hold_start)
    event.add("dtend", usable_end(lease.hold_end, lease.grace_s))
    is_cancelled = lease.state is LeaseState.CANCELLED
    event.add("status", "CANCELLED" if is_cancelled else "CONFIRMED")
    event.add("summary", _summary(lease, node_name, own=own))
    event.add("location", node_name)
    if own:
        event.add("description", f"{lease.id}: {lease.reason}")
    return event


def _summary(lease: Lease, node_name: str, *, own: bool) -> str:
    size = lease.num_slots
    if own:
        return f"L{lease_text(size)[1:]} on {node_name}"
    return f"{node_name} is leased" if size is None else f"{gpus_text(size)} of {node_name} leased"


def _maintenance_event(row: Occupancy, node_name: str) -> Event:
    event = Event()
    event.add("uid", f"{row.maintenance_id}-{row.id}@trainyard")
    event.add("sequence", 0)
    event.add("dtstamp", row.hold_start)
    event.add("dtstart", row.hold_start)
    event.add("dtend", row.hold_end)
    event.add("status", "CONFIRMED")
    event.add("summary", f"{node_name}: maintenance")
    return event
