"""Output of ranks, as chunks that always begin at the start of a line.

A chunk's last line may still be growing: what comes next is appended to it, up to the line's end.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Row, Select, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import Session

from api.records.schemas import LogLine
from core.base.errors import BadRequest, NotFound
from core.states import AttemptState
from core.tables.jobs import Attempt
from core.tables.telemetry import LogChunk

LONGEST_LINE = 65_536  # characters; a longer one, such as a progress bar's, is broken there
PAGE_CHARACTERS = 1 << 20  # of one page, however many lines were asked for; one line at least
CHUNKS_A_READ = 400
CHUNKS_AT_A_TIME = 16  # in memory: 2 MiB of those that workers send
ERROR = re.compile(
    r"\b[A-Z]\w*(Error|Exception)\b|\b([Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]atal|FATAL)\b"
)
WARNING = re.compile(r"warn(ing)?\b", re.IGNORECASE)
CURSOR = re.compile(r"^\d{1,18}\.\d{1,9}(-\d{1,18}){0,2000}$")
PLACE = re.compile(r"^(\d{1,9})\.(-?\d{1,6})\.(stdout|stderr)\.(\d{1,18})$")


# Built once: to build a query takes longer than to ask it.
OF_JOB = (
    select(
        LogChunk.id,
        Attempt.epoch,
        LogChunk.rank,
        LogChunk.stream,
        LogChunk.first_line,
        LogChunk.at,
        LogChunk.content,
        Attempt.state,
    )
    .join(Attempt, Attempt.id == LogChunk.attempt_id)
    .where(Attempt.job_id == bindparam("job_id"))
)
NEXT = (
    OF_JOB.where(
        or_(
            LogChunk.id > bindparam("chunk"),
            LogChunk.id.in_(bindparam("held", expanding=True)),
        ),
        LogChunk.id <= bindparam("until"),
        LogChunk.id > bindparam("last_id"),
    )
    .order_by(LogChunk.id)
    .limit(CHUNKS_AT_A_TIME)
)
NO_END = 2**63 - 1
Chunks = Select[int, int, int, str, int, datetime, str, AttemptState]
LAST = (
    select(LogChunk.id, LogChunk.first_line, LogChunk.content)
    .where(
        LogChunk.attempt_id == bindparam("attempt_id"),
        LogChunk.rank == bindparam("rank"),
        LogChunk.stream == bindparam("stream"),
    )
    .order_by(LogChunk.first_byte.desc())
    .limit(1)
)
APPEND = insert(LogChunk)


class LogLevel(StrEnum):
    """Least severity of a line, judged by its text: the output of ranks has no level of its own."""

    WARNING = "warning"
    """Warnings and errors."""
    ERROR = "error"


@dataclass(frozen=True)
class LogCursor:
    """Position of a reader: all chunks up to `chunk`, `lines` lines of the one after it, and of the
    chunks in `held` all but the last line, which was still growing."""

    chunk: int = 0
    lines: int = 0
    held: frozenset[int] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return "-".join([f"{self.chunk}.{self.lines}", *(str(one) for one in sorted(self.held))])

    @classmethod
    def parse(cls, text: str) -> "LogCursor":
        """Return the cursor that `str` gave. Raises BadRequest for anything else."""
        if not CURSOR.match(text):
            raise BadRequest(
                f"cursor: {text[:60]!r} is not a cursor of this address. Use `cursor` of an "
                "earlier page.",
                param="cursor",
            )
        place, *held = text.split("-")
        chunk, lines = place.split(".")
        return cls(int(chunk), int(lines), frozenset(int(one) for one in held))


@dataclass(frozen=True)
class LinePlace:
    """Name of one line: its attempt, rank, stream and number."""

    epoch: int
    rank: int
    stream: str
    line: int

    @classmethod
    def parse(cls, text: str) -> "LinePlace":
        """Return the place that `1.0.stdout.57` names. Raises BadRequest for anything else."""
        found = PLACE.match(text)
        if found is None:
            raise BadRequest(
                f"around: {text[:60]!r} is not a line. Write attempt, rank, stream and number of "
                "the line, such as 1.0.stdout.57.",
                param="around",
            )
        epoch, rank, stream, line = found.groups()
        return cls(int(epoch), int(rank), stream, int(line))


@dataclass(frozen=True)
class LogFilter:
    """Filter of the lines that a reader wants."""

    rank: int | None = None
    epoch: int | None = None
    search: str = ""
    level: LogLevel | None = None

    def takes(self, text: str) -> bool:
        """Return True if a line contains the searched text and is at least as severe as
        requested."""
        if self.search.lower() not in text.lower():
            return False
        if self.level is None or ERROR.search(text):
            return True
        return self.level is LogLevel.WARNING and bool(WARNING.search(text))


@dataclass(frozen=True)
class LogPage:
    """Lines, the place after them, and whether more are stored."""

    lines: list[LogLine]
    cursor: LogCursor
    has_more: bool


@dataclass(frozen=True)
class Piece:
    """A piece of one stream's output."""

    attempt_id: str
    rank: int
    stream: str
    first_byte: int
    content: str

    @property
    def of_stream(self) -> tuple[str, int, str]:
        """Attempt, rank and name of the stream."""
        return self.attempt_id, self.rank, self.stream


@dataclass(frozen=True)
class _Chunk:
    id: int
    epoch: int
    rank: int
    stream: str
    first_line: int
    at: datetime
    content: str
    is_over: bool
    """True once the attempt has exited: nothing grows any more."""

    def lines(self) -> tuple[list[str], bool]:
        """Return the chunk's lines, and True if the last one may still grow."""
        lines = self.content.split("\n")
        if lines[-1] == "":
            lines.pop()
            return lines, False
        return lines, not self.is_over


def append(session: Session, pieces: Sequence[Piece], *, now: datetime) -> None:
    """Add pieces of output, each of which continues what is stored of its stream."""
    rows: list[dict[str, object]] = []
    begun: set[tuple[str, int, str]] = set()
    for piece in pieces:
        if piece.of_stream in begun:  # it continues a piece of these
            session.connection().execute(APPEND, rows)
            rows.clear()
            begun.clear()
        row = _row_after_last(session, piece, now)
        if row is not None:
            rows.append(row)
            begun.add(piece.of_stream)
    if rows:
        session.connection().execute(APPEND, rows)


def _row_after_last(session: Session, piece: Piece, now: datetime) -> dict[str, object] | None:
    """Append the rest of a line to the chunk in which it has begun; return the row of the lines
    after it, None without any."""
    content = piece.content.replace("\0", "\N{REPLACEMENT CHARACTER}").replace("\r\n", "\n")
    content = content.encode("utf-8", "replace").decode()
    if not content:
        return None
    attempt_id, rank, stream = piece.of_stream
    of_stream = {"attempt_id": attempt_id, "rank": rank, "stream": stream}
    last = session.execute(LAST, of_stream).one_or_none()
    next_line = 0
    if last is not None:
        stored = last.content
        if not stored.endswith("\n"):
            head, newline, content = content.partition("\n")
            open_line = len(stored) - stored.rfind("\n") - 1
            if not newline and open_line + len(head) > LONGEST_LINE:
                newline = "\n"
            stored += head + newline
            session.execute(update(LogChunk).where(LogChunk.id == last.id).values(content=stored))
        next_line = last.first_line + stored.count("\n")
    if not content:
        return None
    row = {"first_byte": piece.first_byte, "first_line": next_line, "at": now, "content": content}
    return {**of_stream, **row}


def read(
    session: Session,
    job_id: str,
    cursor: LogCursor,
    *,
    wanted: LogFilter,
    limit: int,
    until: LogCursor | None = None,
) -> LogPage:
    """Return lines after `cursor` in the order of their arrival, at most `limit` and
    PAGE_CHARACTERS.

    With `until`, exactly the lines that a reader at `cursor` had read when it stood at `until`.
    """
    place_in_job = {
        "job_id": job_id,
        "chunk": cursor.chunk,
        "held": sorted(cursor.held),
        "until": NO_END if until is None else until.chunk,
    }
    last_id = min([cursor.chunk, *(held - 1 for held in cursor.held)])
    lines: list[LogLine] = []
    held = set(cursor.held)
    place, skip = cursor.chunk, cursor.lines
    num_read = size = 0
    for chunk in _in_turn(session, _of(NEXT, wanted), place_in_job, last_id):
        num_read += 1
        texts, growing = chunk.lines()
        if until is not None and chunk.id in until.held:
            growing = True
        ready = len(texts) - 1 if growing else len(texts)
        was_held = chunk.id in cursor.held
        if was_held:
            start = len(texts) - 1
        else:
            start, skip = (skip if chunk.id > cursor.chunk else 0), 0
        for offset in range(start, ready):
            text = texts[offset]
            is_full = len(lines) >= limit or (size + len(text) > PAGE_CHARACTERS and lines)
            if is_full:
                if was_held:
                    return LogPage(lines, LogCursor(place, 0, frozenset(held)), True)
                return LogPage(lines, LogCursor(place, offset, frozenset(held)), True)
            if wanted.takes(text):
                lines.append(_line(chunk, offset, text))
                size += len(text)
        if growing:
            held.add(chunk.id)
        else:
            held.discard(chunk.id)
        place = max(place, chunk.id)
    if until is not None and num_read < CHUNKS_A_READ:
        return LogPage(lines, until, False)
    return LogPage(lines, LogCursor(place, 0, frozenset(held)), num_read == CHUNKS_A_READ)


def _in_turn(
    session: Session, query: Chunks, place: Mapping[str, object], last_id: int
) -> Iterator[_Chunk]:
    """Yield the first CHUNKS_A_READ chunks after `last_id`, with a few in memory at a time."""
    for _ in range(CHUNKS_A_READ // CHUNKS_AT_A_TIME):
        rows = session.execute(query, {**place, "last_id": last_id}).all()
        yield from (_chunk(row) for row in rows)
        if len(rows) < CHUNKS_AT_A_TIME:
            return
        last_id = rows[-1].id


def tail(session: Session, job_id: str, count: int, *, wanted: LogFilter) -> LogPage:
    """Return the last `count` finished lines, within PAGE_CHARACTERS, and the position after
    them."""
    held = _growing(session, job_id, wanted)
    chunks, of_job = _of(OF_JOB, wanted), {"job_id": job_id}
    place = session.scalar(chunks.with_only_columns(func.max(LogChunk.id)), of_job) or 0
    lines = _backwards(session, job_id, count, wanted=wanted, before=place + 1, held=held)
    return LogPage(lines, LogCursor(place, 0, held), False)


def around(
    session: Session, job_id: str, place: LinePlace, count: int, *, wanted: LogFilter
) -> LogPage:
    """Return up to `count` lines, half of them before the line at `place`, and the position after
    them. Raises NotFound if the job has no such line."""
    of_stream = OF_JOB.where(
        Attempt.epoch == place.epoch,
        LogChunk.rank == place.rank,
        LogChunk.stream == place.stream,
        LogChunk.first_line <= place.line,
    )
    row = session.execute(
        of_stream.order_by(LogChunk.first_byte.desc()).limit(1), {"job_id": job_id}
    ).one_or_none()
    chunk = None if row is None else _chunk(row)
    if chunk is None or place.line - chunk.first_line >= len(chunk.lines()[0]):
        raise NotFound(
            f"Attempt {place.epoch} has no line {place.line:,} of rank {place.rank} "
            f"({place.stream}). It may have been deleted because of its age.",
            param="around",
        )
    offset = place.line - chunk.first_line
    half = count // 2
    held = _growing(session, job_id, wanted)
    before = _backwards(
        session, job_id, half, wanted=wanted, before=chunk.id + 1, end=offset, held=held
    )
    # The first chunk after the cursor is the line's own, unless the filter leaves it out.
    is_wanted = wanted.rank in (None, place.rank) and wanted.epoch in (None, place.epoch)
    cursor = LogCursor(chunk.id - 1, offset if is_wanted else 0)
    after = read(session, job_id, cursor, wanted=wanted, limit=count - half)
    return LogPage(before + after.lines, after.cursor, after.has_more)


def _backwards(
    session: Session,
    job_id: str,
    count: int,
    *,
    wanted: LogFilter,
    before: int,
    held: frozenset[int],
    end: int | None = None,
) -> list[LogLine]:
    """Return the last `count` finished lines of chunks before the id `before`, oldest first; of the
    chunk next to it only those before its line `end`."""
    last = before - 1
    lines: list[LogLine] = []  # the last first
    size = 0
    earlier = (
        _of(OF_JOB, wanted).where(LogChunk.id < bindparam("before")).order_by(LogChunk.id.desc())
    )
    while len(lines) < count:
        rows = session.execute(earlier.limit(50), {"job_id": job_id, "before": before}).all()
        if not rows:
            break
        for chunk in (_chunk(row) for row in rows):
            texts, _ = chunk.lines()
            ready = len(texts) - 1 if chunk.id in held else len(texts)
            if end is not None and chunk.id == last:
                ready = min(ready, end)
            for offset in range(ready - 1, -1, -1):
                if not wanted.takes(texts[offset]):
                    continue
                size += len(texts[offset])
                if len(lines) == count or (size > PAGE_CHARACTERS and lines):
                    return lines[::-1]
                lines.append(_line(chunk, offset, texts[offset]))
            before = chunk.id
    return lines[::-1]


def _growing(session: Session, job_id: str, wanted: LogFilter) -> frozenset[int]:
    """Return the ids of chunks whose last line has no end yet: only a stream's newest chunk can
    have one."""
    chunks, of_job = _of(OF_JOB, wanted), {"job_id": job_id}
    newest = chunks.with_only_columns(func.max(LogChunk.id)).group_by(
        LogChunk.attempt_id, LogChunk.rank, LogChunk.stream
    )
    ids = session.scalars(newest, of_job).all()
    rows = session.execute(chunks.where(LogChunk.id.in_(ids)), of_job)
    return frozenset(chunk.id for chunk in (_chunk(row) for row in rows) if chunk.lines()[1])


def ranks(session: Session, job_id: str) -> Sequence[int]:
    """Return the ranks that have written something."""
    query = (
        select(LogChunk.rank)
        .join(Attempt, Attempt.id == LogChunk.attempt_id)
        .where(Attempt.job_id == job_id)
        .distinct()
    )
    return sorted(session.scalars(query))


def _of(query: Chunks, wanted: LogFilter) -> Chunks:
    """Restrict a query to the rank and the attempt that a reader wants."""
    if wanted.rank is not None:
        query = query.where(LogChunk.rank == wanted.rank)
    if wanted.epoch is not None:
        query = query.where(Attempt.epoch == wanted.epoch)
    return query


def _chunk(row: Row[int, int, int, str, int, datetime, str, AttemptState]) -> _Chunk:
    chunk_id, epoch, rank, stream, first_line, at, content, state = row
    is_over = state is AttemptState.EXITED
    return _Chunk(chunk_id, epoch, rank, stream, first_line, at, content, is_over)


def _line(chunk: _Chunk, offset: int, text: str) -> LogLine:
    return LogLine(
        epoch=chunk.epoch,
        rank=chunk.rank,
        stream=chunk.stream,
        line=chunk.first_line + offset,
        text=text.removesuffix("\r"),
        at=chunk.at,
    )
