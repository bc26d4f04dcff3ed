"""/v1/leases/stream: the content of an open calendar, as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from api.watching.hub import Hub
from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.process import ProcessDep

router = APIRouter(prefix="/v1/leases", tags=["leases"])

EVENTS = """Server-sent events about everybody's hours and about your own:

- `holds`: nodes, each with its state and all its holds. With `whole`, the event names all nodes,
  and a node that it does not name is gone; without `whole`, it names the changed nodes, each
  complete
- `own`: one of your leases, offers or waitlist entries, or a job in a lease, has changed: read your
  lists again
- `rules`: the booking rules have changed: a policy, a window, an exception or a lab

Each event has a `version`, which is also the event's id. A new stream begins with the whole. A
stream that continues with `Last-Event-ID`, as browsers do automatically, begins with the later
events, or, if these are no longer known, with `own`, `rules` and the whole. Holds that ended more
than a day ago are left out. Staff see the owner of each lease (`user`, `lease`).
"""


@router.get(
    "/stream",
    summary="Watch the calendar",
    description=EVENTS,
    response_class=StreamingResponse,
    responses=STREAM,
)
async def stream_calendar(
    person: SignedIn,
    process: ProcessDep,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> StreamingResponse:
    """Follow the calendar live."""
    pieces = process.service(Hub).stream_calendar(person, last_event_id or "")
    return event_stream(pieces, person, process)
