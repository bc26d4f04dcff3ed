"""Calendar feeds: secret addresses from which calendar programs read leases."""

from datetime import datetime
from typing import TYPE_CHECKING

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
from core.tables.leases import CalendarFeed
from core.tables.nodes import Node
from core.tables.people import User

if TYPE_CHECKING:
    from icalendar import Calendar

MAX_FEEDS = 20  # of one person


def read_feed(session: Session, token: str) -> "tuple[CalendarFeed, Calendar]":
    """Return the feed with this secret, and its content. Raises NotFound."""
    from api.leases.calendar_files import calendar_of_feed

    feed = session.scalars(
        select(CalendarFeed).where(
            CalendarFeed.sha256 == digest(token), CalendarFeed.revoked_at.is_(None)
        )
    ).one_or_none()
    owner = session.get(User, feed.user_id) if feed else None
    if feed is None or owner is None or owner.disabled:
        raise NotFound("This calendar does not exist; it may have been revoked.")
    return feed, calendar_of_feed(session, feed)


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
