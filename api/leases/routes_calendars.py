"""Calendar feeds: leases as iCalendar (RFC 5545), at an address that is a secret and revocable.

A feed of a person shows that person's leases; one of a node, for staff, shows when it is taken, and
no names. A cancelled lease keeps its UID with a higher SEQUENCE, so that calendars take it out.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response
from icalendar import Calendar, Event
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.leases.schemas import FeedView, NewFeed
from api.leases.wishes import nodes_named
from api.web.auth import Public, SignedIn
from api.web.credentials import digest, new_secret
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, NotFound
from core.base.ids import Kind, new_id
from core.policy.grid import usable_end
from core.process.read_only import ReadOnly
from core.states import LeaseState
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import CalendarFeed, Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import User

feed_router = APIRouter(prefix="/v1/leases", tags=["leases"])
router = APIRouter(prefix="/v1/calendars", tags=["leases"])

LOOK_BACK = timedelta(days=60)
MAX_FEEDS = 20  # of one person


@feed_router.get(
    "/calendar.ics",
    summary="Read a calendar feed",
    dependencies=[Public],
    response_class=Response,
    responses={200: {"content": {"text/calendar": {"schema": {"type": "string"}}}}},
)
def read_calendar(
    process: ProcessDep,
    token: Annotated[PlainText, Query(description="Secret part of the feed's address.")],
) -> Response:
    """Return the leases of a person or a node as iCalendar, in UTC. The token in the address is the
    only credential; it opens nothing else."""
    now = utc_now()
    with process.read() as session:
        feed = session.scalars(
            select(CalendarFeed).where(
                CalendarFeed.sha256 == digest(token), CalendarFeed.revoked_at.is_(None)
            )
        ).one_or_none()
        owner = session.get(User, feed.user_id) if feed else None
        if feed is None or owner is None or owner.disabled:
            raise NotFound("This calendar does not exist; it may have been revoked.")
        calendar = _calendar(session, feed)
    if feed.last_used_at is None or now - feed.last_used_at > timedelta(hours=1):
        with suppress(ReadOnly), process.write() as (session, _):
            session.execute(
                update(CalendarFeed).where(CalendarFeed.id == feed.id).values(last_used_at=now)
            )
    return Response(
        calendar.to_ical(), media_type="text/calendar", headers={"Cache-Control": "private"}
    )


@router.post("", status_code=201, summary="Make a calendar feed")
def create_feed(wanted: NewFeed, person: SignedIn, process: ProcessDep) -> FeedView:
    """Make an address to which any calendar program can subscribe. It is shown only this once."""
    secret, now = new_secret(), utc_now()
    with process.write() as (session, _):
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
            id=new_id(Kind.FEED),
            user_id=person.id,
            node_id=node_id,
            sha256=digest(secret),
            created_at=now,
            last_used_at=None,
            revoked_at=None,
        )
        session.add(feed)
        session.flush()
        view = _view(session, feed)
    url = f"{process.url}/v1/leases/calendar.ics?token={secret}"
    return view.model_copy(update={"url": url})


@router.get("", summary="List my calendar feeds")
def list_feeds(person: SignedIn, process: ProcessDep) -> Page[FeedView]:
    """List your calendar feeds that are not revoked, without their addresses."""
    with process.read() as session:
        data = [_view(session, feed) for feed in _feeds(session, person.id)]
    return Page[FeedView](data=data)


@router.delete("/{feed_id}", status_code=204, summary="Revoke a calendar feed")
def revoke_feed(feed_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Revoke a calendar feed: its address answers 404 from now on."""
    with process.write() as (session, _):
        feed = session.get(CalendarFeed, feed_id)
        if feed is None or feed.user_id != person.id:
            raise NotFound(f"You have no calendar feed {feed_id!r}.")
        feed.revoked_at = feed.revoked_at or utc_now()
    return Response(status_code=204)


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


def _event(lease: Lease, node_name: str, *, own: bool) -> Event:
    event = Event()
    event.add("uid", f"{lease.id}@trainyard")
    event.add("sequence", lease.generation)
    event.add("dtstamp", lease.cancelled_at or lease.created_at)
    event.add("dtstart", lease.hold_start)
    event.add("dtend", usable_end(lease.hold_end, lease.grace_s))
    is_cancelled = lease.state is LeaseState.CANCELLED
    event.add("status", "CANCELLED" if is_cancelled else "CONFIRMED")
    event.add("summary", f"Lease on {node_name}" if own else f"{node_name} is leased")
    event.add("location", node_name)
    if own:
        event.add("description", f"{lease.id}: {lease.reason}")
    return event


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
