"""/v1/jobs/{id}/logs: the output of every rank."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from api.jobs.job_views import find_job
from api.jobs.reading import record_reading
from api.nodes.watched import Watched
from api.records import log_store
from api.records.log_store import LinePlace, LogCursor, LogFilter, LogLevel
from api.watching.schemas import LogsView
from api.web.auth import SignedIn
from api.web.process import Process, ProcessDep
from api.web.text_types import PlainText

router = APIRouter(prefix="/v1/jobs", tags=["metrics and logs"])

PAGE = 2000  # lines that a download reads at a time


@router.get("/{job_id}/logs", summary="Get the output of the ranks")
def get_logs(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    rank: Annotated[
        int | None,
        Query(
            ge=-1024,
            le=100_000,
            description="Number of the rank; -1 is the launcher, -2 the launcher of the "
            "second node. Default: all.",
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        Query(ge=1, le=2**31, description="Number of the attempt. Default: all attempts."),
    ] = None,
    search: Annotated[PlainText, Query(description="Only lines that contain this text.")] = "",
    level: Annotated[
        LogLevel | None, Query(description="Only lines of this severity or worse.")
    ] = None,
    cursor: Annotated[
        Annotated[str, Query(max_length=20_000)] | None,
        Query(description="`cursor` of the previous page."),
    ] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=5000, description="Return the last lines instead of the first.")
    ] = None,
    around: Annotated[
        PlainText | None,
        Query(
            description="Return the lines around this one, half of them before it: attempt, rank, "
            "stream and number, such as 1.0.stdout.57."
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=5000, description="Number of lines on one page.")] = 500,
) -> LogsView:
    """Return lines in the order in which they arrived, of all attempts unless one is named; at most
    a million characters of them.

    Call again with `cursor` for the lines that came since. A page may be empty although more
    follow.
    """
    wanted = LogFilter(rank=rank, epoch=attempt, search=search, level=level)
    place = LogCursor.parse(cursor) if cursor else LogCursor()
    line = LinePlace.parse(around) if around else None
    with process.read() as session:
        job = find_job(session, job_id, person)
        if line is not None:
            page = log_store.around(session, job.id, line, limit, wanted=wanted)
        elif tail is not None and not cursor:
            page = log_store.tail(session, job.id, tail, wanted=wanted)
        else:
            page = log_store.read(session, job.id, place, wanted=wanted, limit=limit)
        ranks = list(log_store.ranks(session, job.id))
    process.service(Watched).note_reading(job.id)
    record_reading(process, person, job, "logs", job.id)
    return LogsView(lines=page.lines, cursor=str(page.cursor), has_more=page.has_more, ranks=ranks)


@router.get(
    "/{job_id}/logs/text",
    summary="Download the output of the ranks",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def download_logs(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    rank: Annotated[
        int | None, Query(ge=-1024, le=100_000, description="Number of the rank. Default: all.")
    ] = None,
    attempt: Annotated[
        int | None, Query(ge=1, le=2**31, description="Number of the attempt. Default: all.")
    ] = None,
) -> StreamingResponse:
    """Download all lines as text: moment, attempt, rank and stream stand before each."""
    with process.read() as session:
        job = find_job(session, job_id, person)
    record_reading(process, person, job, "logs", job.id)
    return StreamingResponse(
        _text(process, job.id, LogFilter(rank=rank, epoch=attempt)),
        media_type="text/plain; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{job.id}.log"',
            "X-Content-Type-Options": "nosniff",
        },
    )


def _text(process: Process, job_id: str, wanted: LogFilter) -> Iterator[str]:
    """Yield the stored lines page by page; no more than one page is in memory."""
    cursor, has_more = LogCursor(), True
    while has_more:
        with process.read() as session:
            page = log_store.read(session, job_id, cursor, wanted=wanted, limit=PAGE)
        for line in page.lines:
            at = "-" if line.at is None else line.at.isoformat(timespec="milliseconds")
            who = "launcher" if line.rank < 0 else f"rank {line.rank}"
            yield f"{at} attempt {line.epoch} {who} {line.stream}: {line.text}\n"
        cursor, has_more = page.cursor, page.has_more
