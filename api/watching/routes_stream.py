"""/v1/jobs/{id}/stream: everything new about a job, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from api.jobs.reading import require_readable
from api.watching.audience import Audience, EventStream
from api.watching.hub import Hub
from api.web.auth import SignedIn
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.text_types import PlainText

router = APIRouter(prefix="/v1/jobs", tags=["metrics and logs"])

EVENTS = """Server-sent events until the job is over:

- `job`: the job (`JobView`), at the start and after each change
- `event`: something happened (`EventView`)
- `metrics`: new metrics lines of rank 0 (`LiveMetrics`)
- `log`: new lines of any rank (`LiveLog`)
- `end`: the job (`JobView`); the stream ends after it

A new stream begins with all events, the last 2,000 metrics lines of each attempt and the last 200
log lines. A stream that continues with `Last-Event-ID`, as browsers do automatically, misses
nothing and repeats nothing.
"""
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get(
    "/{job_id}/stream",
    summary="Watch a job",
    description=EVENTS,
    response_class=StreamingResponse,
    responses=STREAM,
)
async def stream_job(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    last_event_id: Annotated[str | None, Header(max_length=30_000)] = None,
) -> StreamingResponse:
    """Follow a job live."""
    await require_readable(process, person, job_id)
    return event_stream(process.service(Hub).stream(job_id, last_event_id or ""), person, process)


def event_stream(
    pieces: AsyncIterator[bytes], person: Person, process: Process
) -> StreamingResponse:
    """Return server-sent events for as long as the person may watch. Raises TooManyStreams."""
    return EventStream(pieces, process.service(Audience), process.service(Audience).seat(person))
