"""/v1/jobs/{id}/logs: the output of every rank."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.jobs.job_views import find_job
from api.jobs.reading import record_reading
from api.records import log_store
from api.records.log_store import LogCursor, LogFilter, LogLevel
from api.watching.schemas import LogsView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.text_types import PlainText

router = APIRouter(prefix="/v1/jobs", tags=["metrics and logs"])


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
    limit: Annotated[int, Query(ge=1, le=5000, description="Number of lines on one page.")] = 500,
) -> LogsView:
    """Return lines in the order in which they arrived, of all attempts unless one is named; at most
    a million characters of them.

    Call again with `cursor` for the lines that came since. A page may be empty although more
    follow.
    """
    wanted = LogFilter(rank=rank, epoch=attempt, search=search, level=level)
    place = LogCursor.parse(cursor) if cursor else LogCursor()
    with process.read() as session:
        job = find_job(session, job_id, person)
        if tail is not None and not cursor:
            page = log_store.tail(session, job.id, tail, wanted=wanted)
        else:
            page = log_store.read(session, job.id, place, wanted=wanted, limit=limit)
        ranks = list(log_store.ranks(session, job.id))
    record_reading(process, person, job, "logs", job.id)
    return LogsView(lines=page.lines, cursor=str(page.cursor), has_more=page.has_more, ranks=ranks)
