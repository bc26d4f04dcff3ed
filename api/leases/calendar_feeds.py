"""Calendar feeds: their rows and their content."""

from datetime import datetime, timedelta

from icalendar import Calendar, Event
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.leases.block_requests import nodes_named
from api.leases.schemas import FeedView, NewFeed
from api.web.bells import Bells
from api.web.identity import Person
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, NotFound
from core.base.ids import IdKind, new_id
from core.base.secret_text import digest
from core.policy.grid import usable_end
from core.policy.words import gpus_text, lease_text
from core.states import LeaseState
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import CalendarFeed, Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import User

LOOK_BACK = timedelta(days=60)
MAX_FEEDS = 20  # of one person


def read_feed(session: Session, token: str) -> tuple[CalendarFeed, Calendar]:
    """Return the feed with this secret, and its content. Raises NotFound."""
    feed = session.scalars(
        select(CalendarFeed).where(
            CalendarFeed.sha256 == digest(token), CalendarFeed.revoked_at.is_(None)
        )
    ).one_or_none()
    owner = session.get(User, feed.user_id) if feed else None
    if feed is None or owner is None or owner.disabled:
        raise NotFound("This calendar does not exist; it may have been revoked.")
    return feed, _calendar(session, feed)


def note_use(session: Session, _: Bells, feed_id: str, *, now: datetime) -> None:
    """Note the moment at which a feed was read."""
    session.execute(update(CalendarFeed).where(CalendarFeed.id == feed_id).values(last_used_at=now))


def add_feed(
    session: Session, _: Bells, wanted: NewFeed, person: Person, *, now: datetime, secret: str
) -> FeedView:
    """Insert a calendar feed. Raises Forbidden, NotFound, Conflict for too many."""
    node_id = None
    if wanted.node is not None:
        if not person.is_staff:
            raise Forbidden("node: only staff may make calendars of nodes.", param="node")
        node_id = nodes_named(session, [wanted.node], param="node")[0].id
    if len(_feeds(session, person.id)) >= MAX_FEEDS:
        raise Conflict(
            f"You have {MAX_FEEDS} calendar feeds, which is the limit. Revoke one first."
        )
    feed = CalendarFeed(
        id=new_id(IdKind.FEED),
        user_id=person.id,
        node_id=node_id,
        sha256=digest(secret),
        created_at=now,
        last_used_at=None,
        revoked_at=None,
    )
    session.add(feed)
    session.flush()
    return _view(session, feed)


def list_feeds(session: Session, person: Person) -> Page[FeedView]:
    """Return a person's calendar feeds that are not revoked."""
    data = [_view(session, feed) for feed in _feeds(session, person.id)]
    return Page[FeedView](data=data)


def revoke_feed(session: Session, _: Bells, feed_id: str, person: Person) -> None:
    """Revoke a calendar feed. Raises NotFound."""
    feed = session.get(CalendarFeed, feed_id)
    if feed is None or feed.user_id != person.id:
        raise NotFound(f"You have no calendar feed {feed_id!r}.")
    feed.revoked_at = feed.revoked_at or utc_now()


def _feeds(session: Session, user_id: str) -> list[CalendarFeed]:
    query = select(CalendarFeed).where(
        CalendarFeed.user_id == user_id, CalendarFeed.revoked_at.is_(None)
    )
    return list(session.scalars(query.order_by(CalendarFeed.id)))


def _view(session: Session, feed: CalendarFeed) -> FeedView:
    return FeedView(
        id=feed.id,
        node=session.get_one(Node, feed.node_id).name if feed.node_id else None,
        url=None,
        created_at=feed.created_at,
        last_used_at=feed.last_used_at,
        revoked_at=feed.revoked_at,
    )


def _calendar(session: Session, feed: CalendarFeed) -> Calendar:
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
