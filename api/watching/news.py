"""News about a job since a position, read from the database: the content of its stream.

A position says how far each kind of row has been read. It is the id of every message, so a reader
that comes back with it misses nothing and gets nothing twice.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import TypeAdapter
from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from api.jobs.job_views import JOB_WITH_CONTEXT, JOBS_WITH_CONTEXT, job_views
from api.records import log_store, metric_store
from api.records.log_store import LogCursor, LogFilter
from api.watching.schemas import LiveLog, LiveMetrics
from api.web.schemas import EventView
from core.base.errors import BadRequest
from core.jobs.handing_over import has_handed_over
from core.states import TERMINAL_JOB, WAITING_JOB
from core.tables.jobs import Attempt, Event, Job
from core.tables.telemetry import StreamCursor

POSITION = re.compile(r"^(\d{1,18})~((?:\d{1,9}\.\d{1,18}(?:,\d{1,9}\.\d{1,18}){0,999})?)~(.+)$")
EVENTS_A_READ, LINES_A_READ = 500, 2000
FIRST_METRIC_LINES, FIRST_LOG_LINES = 2000, 200  # of the past, for a reader without a position
METRICS = "metrics/0"  # rank 0 writes the metrics of a job

EVENT_JSON = TypeAdapter(EventView)

# Built once: to build a query takes longer than to ask it.
EVENTS = (
    select(Event)
    .where(
        Event.subject == bindparam("job_id"),
        Event.id > bindparam("since"),
        Event.id <= bindparam("until"),
    )
    .order_by(Event.id)
    .limit(EVENTS_A_READ)
)
FIRST_EVENTS = (
    select(Event)
    .where(Event.subject.in_(bindparam("job_ids", expanding=True)))
    .order_by(Event.id)
    .limit(EVENTS_A_READ)
)
WITH_METRICS = (
    select(Attempt.epoch, Attempt.id, StreamCursor.position)
    .join(StreamCursor, StreamCursor.attempt_id == Attempt.id)
    .where(Attempt.job_id == bindparam("job_id"), StreamCursor.stream == METRICS)
    .order_by(Attempt.epoch)
)
MARKS = (
    select(Job.id, Job.state, Job.desired, Job.epoch, Job.reason_code, Job.reason)
    .add_columns(Job.predicted_start)
    .add_columns(
        select(func.max(Event.id)).where(Event.subject == Job.id).correlate(Job).scalar_subquery()
    )
    .where(Job.id.in_(bindparam("job_ids", expanding=True)), Job.state.in_(sorted(WAITING_JOB)))
)
JOBS = JOBS_WITH_CONTEXT.where(Job.id.in_(bindparam("job_ids", expanding=True)))
HANDED_OVER = select(Job.id).where(Job.id == bindparam("job_id"), has_handed_over())
EPOCH = 2  # of a mark
NO_END = 2**63 - 1

Mark = tuple[object, ...]
"""All that can change about a job that waits: it has no attempt that could report anything."""


@dataclass(frozen=True)
class Position:
    """The last event read, the next metrics line of each attempt, the place in the logs."""

    event: int = 0
    metrics: Mapping[int, int] = field(default_factory=dict)
    """Number of the next metrics line of each attempt, by epoch."""
    log: LogCursor = field(default_factory=LogCursor)

    @cached_property
    def text(self) -> str:
        """Id of the message after which a reader is at this position."""
        lines = ",".join(f"{epoch}.{line}" for epoch, line in sorted(self.metrics.items()))
        return f"{self.event}~{lines}~{self.log}"

    def __str__(self) -> str:
        return self.text

    def is_at(self, other: "Position") -> bool:
        """Return True if both positions have read the same."""
        return self.text == other.text

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """Return the position that `str` gave; None for anything else."""
        match = POSITION.match(text)
        if match is None:
            return None
        try:
            log = LogCursor.parse(match[3])
        except BadRequest:
            return None
        pairs = [pair.split(".") for pair in match[2].split(",") if pair]
        return cls(int(match[1]), {int(epoch): int(line) for epoch, line in pairs}, log)


@dataclass(frozen=True)
class News:
    """Messages ready to be sent, the position after them, and the job as it is now."""

    payload: bytes
    position: Position
    job: str
    """The job, `JobView` as JSON."""
    has_more: bool
    is_over: bool
    """True if the job is final and nothing more can come."""
    mark: Mark | None = None
    """Mark of the job from before the rest was read; None unless it waits."""


def message(event: str, data: str, position: Position | str | None = None) -> bytes:
    """Encode one server-sent event. `data` is JSON, so it has no line ends."""
    place = f"id: {position}\n" if position is not None else ""
    return f"event: {event}\n{place}data: {data}\n\n".encode()


def first_position(session: Session, job_id: str) -> tuple[bytes, Position]:
    """Return the last lines of the logs, and the position after them, at which a new reader begins.

    From there the reader gets all events and, of the metrics, the last FIRST_METRIC_LINES lines of
    each attempt.
    """
    page = log_store.tail(session, job_id, FIRST_LOG_LINES, wanted=LogFilter())
    starts = {
        epoch: max(0, line - FIRST_METRIC_LINES) for epoch, _, line in _metrics_of(session, job_id)
    }
    position = Position(0, starts, page.cursor)
    if not page.lines:
        return b"", position
    return message("log", LiveLog(lines=page.lines).model_dump_json(), position), position


def first_news(session: Session, job_id: str) -> tuple[bytes, Position, News]:
    """Return where a new reader begins, as `first_position` does, and the news after that."""
    mark = marks_of(session, [job_id]).get(job_id)
    begin = b"", Position()
    if not _is_untried(mark):
        begin = first_position(session, job_id)
    return *begin, _news_after(session, job_id, begin[1], mark)


def news_of_untried(session: Session, job_ids: Collection[str]) -> dict[str, News]:
    """Map job id -> the news from the start, of those that wait for their first attempt.

    They are read together; one that is left out is read alone, by `first_news`.
    """
    marks = {job: mark for job, mark in marks_of(session, job_ids).items() if _is_untried(mark)}
    wanted = {"job_ids": [*marks]}
    events = session.scalars(FIRST_EVENTS, wanted).all() if marks else []
    if not marks or len(events) == EVENTS_A_READ:
        return {}
    events_of = defaultdict(list)
    for event in events:
        events_of[event.subject].append(event)
    rows = session.execute(JOBS, wanted).all()
    found = {}
    for row, view in zip(rows, job_views(session, rows), strict=True):
        job = row[0]
        parts, position = _told_events(events_of[job.id], Position())
        has_more = job.epoch > 0  # its first attempt has come meanwhile
        found[job.id] = News(
            payload=b"".join(parts),
            position=position,
            job=view.model_dump_json(),
            has_more=has_more,
            is_over=not has_more and _is_over(session, job),
            mark=marks[job.id],
        )
    return found


def marks_of(session: Session, job_ids: Collection[str]) -> dict[str, Mark]:
    """Map job id -> mark, of those that wait."""
    return {job_id: tuple(mark) for job_id, *mark in session.execute(MARKS, {"job_ids": job_ids})}


def read_news(
    session: Session, job_id: str, since: Position, *, until: Position | None = None
) -> News:
    """Return the news after `since`; with `until`, exactly the news between the two."""
    mark = None if until is not None else marks_of(session, [job_id]).get(job_id)
    return _news_after(session, job_id, since, mark, until=until)


def _news_after(
    session: Session,
    job_id: str,
    since: Position,
    mark: Mark | None,
    *,
    until: Position | None = None,
) -> News:
    last_event = NO_END if until is None else until.event
    wanted = {"job_id": job_id, "since": since.event, "until": last_event}
    events = session.scalars(EVENTS, wanted).all()
    parts, position = _told_events(events, since)
    has_more = len(events) == EVENTS_A_READ

    untried = _is_untried(mark)
    if not untried:  # nothing else is reported but by attempts
        reports, position, is_cut = _reports_after(session, job_id, position, until)
        parts += reports
        has_more = has_more or is_cut
    if until is not None and not has_more:
        position = until

    row = session.execute(JOB_WITH_CONTEXT, {"job_id": job_id}).one()
    job = row[0]
    has_more = has_more or (untried and job.epoch > 0)  # its first attempt has come meanwhile
    return News(
        payload=b"".join(parts),
        position=position,
        job=job_views(session, [row])[0].model_dump_json(),
        has_more=has_more,
        is_over=not has_more and _is_over(session, job),
        mark=mark,
    )


def _told_events(events: Iterable[Event], since: Position) -> tuple[list[bytes], Position]:
    """Return a message for each event, and the position after them."""
    parts, position = [], since
    for event in events:
        position = replace(position, event=event.id)
        text = EVENT_JSON.dump_json(EventView.model_validate(event)).decode()
        parts.append(message("event", text, position))
    return parts, position


def _reports_after(
    session: Session, job_id: str, since: Position, until: Position | None
) -> tuple[list[bytes], Position, bool]:
    """Return messages with the metrics and logs after `since`, the position after them, and True if
    more logs are stored."""
    parts: list[bytes] = []
    position = since
    for epoch, attempt_id, stored in _metrics_of(session, job_id):
        end = stored if until is None else until.metrics.get(epoch, 0)
        start = position.metrics.get(epoch, 0)
        while start < end:
            stop = min(end, start + LINES_A_READ)
            lines = metric_store.lines_between(session, attempt_id, rank=0, start=start, end=stop)
            position = replace(position, metrics={**position.metrics, epoch: stop})
            if lines:
                news = LiveMetrics(epoch=epoch, rank=0, lines=lines)
                parts.append(message("metrics", news.model_dump_json(), position))
            start = stop

    page = log_store.read(
        session,
        job_id,
        position.log,
        wanted=LogFilter(),
        limit=LINES_A_READ,
        until=until.log if until is not None else None,
    )
    position = replace(position, log=page.cursor)
    if page.lines:
        parts.append(message("log", LiveLog(lines=page.lines).model_dump_json(), position))
    return parts, position, page.has_more


def _is_untried(mark: Mark | None) -> bool:
    """Return True if the job waits for its first attempt."""
    return mark is not None and mark[EPOCH] == 0


def _metrics_of(session: Session, job_id: str) -> list[tuple[int, str, int]]:
    """Return epoch, attempt id and number of stored lines of every attempt that has metrics."""
    rows = session.execute(WITH_METRICS, {"job_id": job_id})
    return [(epoch, attempt_id, position) for epoch, attempt_id, position in rows]


def _is_over(session: Session, job: Job) -> bool:
    """Return True if nothing more can come: the job is final, its last attempt has handed
    everything over, and no report of it is to be written."""
    if job.state not in TERMINAL_JOB or job.report_when_ended:
        return False
    return session.scalar(HANDED_OVER, {"job_id": job.id}) is not None
