"""Metrics as packed rows: a row for each batch, later one for each key and many batches.

A row of a batch has the columns of all its keys side by side; keys that skip lines, such as that of
an evaluation, have a second one. Rows of a key are made from them as they pile up, so that a chart
reads its own keys only. A row holds the steps, the values and, where lines are skipped, the numbers
of its lines. Each line is stored exactly once: the stream's cursor moves in the same transaction.
"""

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, bindparam, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from core.base.errors import BadRequest
from core.database.database import IN_BINARY
from core.tables.telemetry import MetricChunk, StreamCursor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Line = dict[str, float | int | str | None]

KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]{0,79}$")
MAX_KEYS = 200  # of one line
MAX_STEP = 2**62
# Lines after which the rows of a running attempt are merged: whoever reads a curve takes some 10 us
# for a row, and a row comes with every batch.
BLOCKS = (512, 8192)
LARGE_BLOCK = 65_536  # and those of one that has ended
OF_BATCH = ""  # key of a batch's row; its keys are in `keys`

# Built once: to build a query takes longer than to ask it.
SERIES = (
    MetricChunk.attempt_id == bindparam("attempt_id"),
    MetricChunk.rank == bindparam("rank"),
)
PACKED = (
    MetricChunk.key,
    MetricChunk.keys,
    MetricChunk.first_line,
    MetricChunk.count,
    MetricChunk.steps,
    MetricChunk.values,
)
POSITION = (
    select(StreamCursor.position)
    .where(
        StreamCursor.attempt_id == bindparam("attempt_id"),
        StreamCursor.stream == bindparam("stream"),
    )
    .with_for_update(key_share=True)
)
MOVE = (
    update(StreamCursor)
    .where(
        StreamCursor.attempt_id == bindparam("of_attempt"),
        StreamCursor.stream == bindparam("of_stream"),
    )
    .values(position=bindparam("to"))
)
APPEND = insert(MetricChunk)
# Of each key, only the last row that begins before `start` can reach beyond it.
REACHING = (
    select(MetricChunk.key, func.max(MetricChunk.first_line))
    .where(*SERIES, MetricChunk.first_line <= bindparam("start"))
    .group_by(MetricChunk.key)
)
BETWEEN = select(*PACKED).where(
    *SERIES,
    MetricChunk.first_line < bindparam("end"),
    or_(
        MetricChunk.first_line > bindparam("start"),
        tuple_(MetricChunk.key, MetricChunk.first_line).in_(bindparam("reaching", expanding=True)),
    ),
)
CHUNKS = (
    select(MetricChunk.rank, *PACKED)
    .where(MetricChunk.attempt_id == bindparam("attempt_id"))
    .order_by(MetricChunk.key, MetricChunk.rank, MetricChunk.first_line)
    .execution_options(**IN_BINARY)
)
SMALL = (
    select(MetricChunk.id, MetricChunk.rank, MetricChunk.key, MetricChunk.first_line)
    .where(MetricChunk.attempt_id == bindparam("attempt_id"))
    .order_by(MetricChunk.key, MetricChunk.rank, MetricChunk.first_line)
)
SMALL_OF_BLOCK = SMALL.where(
    MetricChunk.rank == bindparam("rank"),
    MetricChunk.first_line >= bindparam("start"),
    MetricChunk.first_line < bindparam("end"),
)
ROWS = (
    select(*PACKED)
    .where(MetricChunk.id.in_(bindparam("row_ids", expanding=True)))
    .order_by(MetricChunk.first_line)
)
DELETE = delete(MetricChunk).where(MetricChunk.id.in_(bindparam("row_ids", expanding=True)))


@dataclass(frozen=True)
class Points:
    """Points of one key, in the order of their lines."""

    steps: Integers
    lines: Integers
    values: Floats

    @classmethod
    def joined(cls, parts: Sequence["Points"]) -> "Points":
        """Return the parts, one after the other."""
        return cls(
            np.concatenate([part.steps for part in parts]),
            np.concatenate([part.lines for part in parts]),
            np.concatenate([part.values for part in parts]),
        )


@dataclass(frozen=True)
class Latest:
    """Progress of a job according to a batch; None for values that the batch does not have."""

    step: int
    loss: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class Batch:
    """Consecutive lines, read once."""

    first_line: int
    num_lines: int
    points: Mapping[str, Points]
    """Points of each numeric key."""
    latest: Latest | None
    """Progress after them; None if there are no lines."""

    @property
    def end(self) -> int:
        """Number of the first line after it."""
        return self.first_line + self.num_lines


def read_batch(lines: Sequence[Line], first_line: int) -> Batch:
    """Return the points of lines. Raises BadRequest for one without a step."""
    steps = [step_of(line, first_line + offset) for offset, line in enumerate(lines)]
    latest = None
    if lines:
        latest = Latest(max(steps), _last(lines, "loss"), _last(lines, "tokens_per_s"))
    return Batch(first_line, len(lines), _columns(lines, steps, first_line), latest)


def _columns(lines: Sequence[Line], steps: list[int], first_line: int) -> Mapping[str, Points]:
    for offset, line in enumerate(lines):
        if len(line) > MAX_KEYS:
            raise BadRequest(
                f"lines.{offset}: {len(line)} keys; a line has at most {MAX_KEYS}.",
                param=f"lines.{offset}",
            )
    found: dict[str, Points] = {}
    packed_steps = np.array(steps, np.int64)
    numbers = np.arange(first_line, first_line + len(lines), dtype=np.int64)
    keys = dict.fromkeys(key for line in lines for key in line if key != "step")
    for key in keys:
        column = [line.get(key, "") for line in lines]  # a text is no point, like what is missing
        if str in set(map(type, column)):
            kept = [offset for offset, value in enumerate(column) if not isinstance(value, str)]
            if not kept:
                continue
            column = [column[offset] for offset in kept]
            points = Points(packed_steps[kept], numbers[kept], np.array(column, np.float64))
        else:
            points = Points(packed_steps, numbers, np.array(column, np.float64))
        if not KEY.match(key):
            raise BadRequest(
                f"lines: {key[:80]!r} is not a valid metric name. Use letters, digits and _ . / -",
                param="lines",
            )
        found[key] = points
    return found


def step_of(line: Line, number: int) -> int:
    """Return the step of a line. Raises BadRequest if it has none."""
    step = line.get("step")
    if isinstance(step, str) or step is None or not 0 <= step < MAX_STEP or step != int(step):
        raise BadRequest(
            f"lines: line {number} has no valid step; it must be a whole number of at least 0.",
            param="lines",
        )
    return int(step)


def move_streams(session: Session, ends: Mapping[tuple[str, str], int]) -> None:
    """Record of streams, by attempt and name, that everything before a position is stored."""
    moves = [
        {"of_attempt": attempt_id, "of_stream": stream, "to": to}
        for (attempt_id, stream), to in ends.items()
    ]
    if moves:
        session.connection().execute(MOVE, moves)


def begin_streams(session: Session, streams: Collection[tuple[str, str]]) -> None:
    """Insert the rows of streams that have stored nothing yet, by attempt and name."""
    rows = [
        {"attempt_id": attempt_id, "stream": stream, "position": 0}
        for attempt_id, stream in streams
    ]
    if rows:
        session.connection().execute(insert(StreamCursor), rows)


def insert_rows(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows of any batches."""
    if rows:
        session.connection().execute(APPEND, rows)


def batch_rows(
    attempt_id: str, rank: int, first_line: int, points: Mapping[str, Points]
) -> list[dict[str, object]]:
    """Return the rows of a batch: one for all keys that have the same lines."""
    alike: dict[bytes, list[str]] = {}
    for key, of_key in points.items():
        alike.setdefault(of_key.lines.tobytes(), []).append(key)
    return [
        _row(attempt_id, rank, keys, first_line, [points[key] for key in keys])
        for keys in alike.values()
    ]


def filled_block(start: int, end: int) -> tuple[int, int] | None:
    """Return the first line and the end of the largest block that the lines `start` to `end` - 1
    have filled; None if they have filled none."""
    for block in reversed(BLOCKS):
        if end // block > start // block:
            block_end = end // block * block
            return block_end - block, block_end
    return None


def merge_block(session: Session, attempt_id: str, rank: int, *, start: int, end: int) -> None:
    """Merge the rows of each series that begin in a block. Call it under the lock on the job's
    row."""
    of_block = {"attempt_id": attempt_id, "rank": rank, "start": start, "end": end}
    _spread(session, attempt_id, session.execute(SMALL_OF_BLOCK, of_block), end - start)
    _merge(session, attempt_id, session.execute(SMALL_OF_BLOCK, of_block), end - start)


def merge(session: Session, attempt_id: str) -> None:
    """Merge the rows of each series of an attempt that has ended into one row per LARGE_BLOCK
    lines. Call it under the lock on the job's row: two at once would both insert."""
    of_attempt = {"attempt_id": attempt_id}
    _spread(session, attempt_id, session.execute(SMALL, of_attempt), BLOCKS[-1])
    _merge(session, attempt_id, session.execute(SMALL, of_attempt), LARGE_BLOCK)


def _spread(
    session: Session, attempt_id: str, rows: Iterable[Row[int, int, str, int]], block: int
) -> None:
    """Replace the rows of batches by one for each key and block."""
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row_id, rank, key, first_line in rows:
        if key == OF_BATCH:
            batches[rank, first_line // block].append(row_id)
    for (rank, _), row_ids in batches.items():
        first_lines: dict[str, int] = {}
        parts: dict[str, list[Points]] = defaultdict(list)
        for some in _some(row_ids):
            for row in session.execute(ROWS, {"row_ids": some}):
                for key, points in unpack(*row):
                    first_lines.setdefault(key, row.first_line)
                    parts[key].append(points)
            session.connection().execute(DELETE, {"row_ids": some})
        insert_rows(
            session,
            [
                _row(attempt_id, rank, [key], first_lines[key], [Points.joined(of_key)], key=key)
                for key, of_key in parts.items()
            ],
        )


def _merge(
    session: Session, attempt_id: str, rows: Iterable[Row[int, int, str, int]], block: int
) -> None:
    """Merge the rows of a key that begin in one block. Rows of one series never overlap, before
    and after."""
    groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for row_id, rank, key, first_line in rows:
        if key != OF_BATCH:
            groups[rank, key, first_line // block].append(row_id)
    for (rank, key, _), row_ids in groups.items():
        if len(row_ids) < 2:
            continue
        parts = [row for some in _some(row_ids) for row in session.execute(ROWS, {"row_ids": some})]
        for some in _some(row_ids):
            session.connection().execute(DELETE, {"row_ids": some})
        joined = Points.joined([points for part in parts for _, points in unpack(*part)])
        # A batch may reach into the next block: the row begins where the first of them does.
        row = _row(attempt_id, rank, [key], parts[0].first_line, [joined], key=key)
        insert_rows(session, [row])


def _some(row_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in order, as many as one statement takes."""
    for start in range(0, len(row_ids), 500):
        yield row_ids[start : start + 500]


def known_keys(session: Session, attempt_ids: Sequence[str]) -> list[str]:
    """Return the keys of all series of some attempts, sorted."""
    of_attempts = MetricChunk.attempt_id.in_(attempt_ids)
    rows = session.execute(select(MetricChunk.key, MetricChunk.keys).where(of_attempts).distinct())
    return sorted({key for of_row, keys in rows for key in _keys(of_row, keys)})


def read(
    session: Session,
    attempt_id: str,
    *,
    keys: Sequence[str] | None = None,
    rank: int | None = None,
) -> dict[tuple[str, int], Points]:
    """Return the points of an attempt by (key, rank)."""
    query = CHUNKS
    if keys is not None:
        query = query.where(MetricChunk.key.in_([*keys, OF_BATCH]))
    if rank is not None:
        query = query.where(MetricChunk.rank == rank)
    parts: dict[tuple[str, int], list[Points]] = defaultdict(list)
    rows = session.execute(query, {"attempt_id": attempt_id})
    for of_rank, of_row, of_batch, first_line, count, steps, values in rows:
        of_keys = unpack(of_row, of_batch, first_line, count, steps, values, wanted=keys)
        for key, points in of_keys:
            parts[key, of_rank].append(points)
    for of_series in parts.values():  # batches came first, and have the newest lines
        of_series.sort(key=lambda points: int(points.lines[0]))
    return {series: Points.joined(parts[series]) for series in sorted(parts)}


def lines_between(
    session: Session, attempt_id: str, *, rank: int, start: int, end: int
) -> list[dict[str, float | int | None]]:
    """Return the stored lines `start` to `end` - 1, each with its step and its numeric keys."""
    place = {"attempt_id": attempt_id, "rank": rank, "start": start}
    reaching = [(key, first_line) for key, first_line in session.execute(REACHING, place)]
    rows = session.execute(BETWEEN, {**place, "end": end, "reaching": reaching})
    lines: dict[int, dict[str, float | int | None]] = {}
    for key, points in (series for row in rows for series in unpack(*row)):
        low, high = np.searchsorted(points.lines, [start, end])
        for index in range(low, high):
            number = int(points.lines[index])
            line = lines.setdefault(number, {"step": int(points.steps[index]), "line": number})
            value = float(points.values[index])
            line[key] = value if math.isfinite(value) else None
    return [lines[number] for number in sorted(lines)]


def pack_steps(points: Points, first_line: int) -> bytes:
    """Pack the differences of the steps, deflated; then those of the line numbers, unless every
    line has a point."""
    arrays = [_differences(points.steps)]
    if not np.array_equal(points.lines, np.arange(first_line, first_line + len(points.lines))):
        arrays.append(_differences(points.lines))
    return zlib.compress(np.concatenate(arrays).astype("<i8").tobytes(), level=1)


def unpack(
    of_row: str,
    keys: str | None,
    first_line: int,
    count: int,
    steps: bytes,
    values: bytes,
    *,
    wanted: Collection[str] | None = None,
) -> Iterator[tuple[str, Points]]:
    """Yield each key of a row that is `wanted`, None for all, with its points."""
    of_keys = _keys(of_row, keys)
    if wanted is not None and not any(key in wanted for key in of_keys):
        return
    numbers = np.frombuffer(zlib.decompress(steps), "<i8")
    if len(numbers) == count:
        lines = np.arange(first_line, first_line + count, dtype=np.int64)
    else:
        lines = np.cumsum(numbers[count:], dtype=np.int64)
    all_steps = np.cumsum(numbers[:count], dtype=np.int64)
    columns = np.frombuffer(values, "<f8").astype(np.float64, copy=False)
    for place, key in enumerate(of_keys):
        if wanted is None or key in wanted:
            column = columns[place * count : (place + 1) * count]
            yield key, Points(all_steps, lines, column)


def _keys(of_row: str, keys: str | None) -> Sequence[str]:
    return [of_row] if keys is None else keys.split()


def _row(
    attempt_id: str,
    rank: int,
    keys: Sequence[str],
    first_line: int,
    columns: Sequence[Points],
    *,
    key: str = OF_BATCH,
) -> dict[str, object]:
    """Return the row of a batch, or of a key. The columns have the same lines."""
    first = columns[0]
    values = np.concatenate([points.values for points in columns])
    return {
        "attempt_id": attempt_id,
        "rank": rank,
        "key": key,
        "keys": " ".join(keys) if key == OF_BATCH else None,
        "first_line": first_line,
        "count": len(first.steps),
        "steps": pack_steps(first, first_line),
        "values": values.astype("<f8").tobytes(),
    }


def _differences(numbers: Integers) -> Integers:
    return np.diff(numbers, prepend=np.int64(0))


def _last(lines: Sequence[Line], key: str) -> float | None:
    for line in reversed(lines):
        value = line.get(key)
        if isinstance(value, int | float):
            return float(value)
    return None
