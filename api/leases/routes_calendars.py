"""Calendar feeds: leases as iCalendar (RFC 5545), at an address that is a secret and revocable.

A feed of a person shows that person's leases; one of a node, for staff, shows when it is taken, and
no names. A cancelled lease keeps its UID with a higher SEQUENCE, so that calendars take it out.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.leases import calendar_feeds
from api.leases.schemas import FeedView, NewFeed
from api.web.auth import Public, SignedIn
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.secret_text import new_secret
from core.process.read_only import ReadOnly

feed_router = APIRouter(prefix="/v1/leases", tags=["leases"])
router = APIRouter(prefix="/v1/calendars", tags=["leases"])


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
        feed, calendar = calendar_feeds.read_feed(session, token)
    if feed.last_used_at is None or now - feed.last_used_at > timedelta(hours=1):
        with suppress(ReadOnly):
            process.transact(calendar_feeds.note_use, feed.id, now=now)
    return Response(
        calendar.to_ical(), media_type="text/calendar", headers={"Cache-Control": "private"}
    )


@router.post("", status_code=201, summary="Make a calendar feed")
def create_feed(wanted: NewFeed, person: SignedIn, process: ProcessDep) -> FeedView:
    """Make an address to which any calendar program can subscribe. It is shown only this once."""
    secret, now = new_secret(), utc_now()
    view = process.transact(calendar_feeds.add_feed, wanted, person, now=now, secret=secret)
    url = f"{process.url}/v1/leases/calendar.ics?token={secret}"
    return view.model_copy(update={"url": url})


@router.get("", summary="List my calendar feeds")
def list_feeds(person: SignedIn, process: ProcessDep) -> Page[FeedView]:
    """List your calendar feeds that are not revoked, without their addresses."""
    with process.read() as session:
        return calendar_feeds.list_feeds(session, person)


@router.delete("/{feed_id}", status_code=204, summary="Revoke a calendar feed")
def revoke_feed(feed_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Revoke a calendar feed: its address answers 404 from now on."""
    process.transact(calendar_feeds.revoke_feed, feed_id, person)
    return Response(status_code=204)
