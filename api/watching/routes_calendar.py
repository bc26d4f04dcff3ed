"""/v1/leases/stream: the content of an open calendar, as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.process import ProcessDep

router = APIRouter(prefix="/v1/leases", tags=["leases"])

EVENTS = """Server-sent events, of everybody's hours and of your own:

- `holds`: nodes, each with its state and all that holds it. With `whole` they are all nodes, and
  what is not named is gone; without, those that have changed, each complete
- `own`: a lease, offer or wish of yours, or a job in a lease, has changed: read your lists again
- `rules`: what one may book has changed: a policy, a window, an exception, a lab

Each has a `version`, which is also an id of the stream. A new stream begins with the whole; one
that goes on with `Last-Event-ID`, as browsers do by themselves, with what came since, or, where
that is no longer known, with `own`, `rules` and the whole. Holds that ended a day ago are left out.
Staff see whose each lease is (`user`, `lease`).
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
    return event_stream(process.hub.stream_calendar(person, last_event_id or ""), person, process)
