"""Metrics as packed rows: one row per key and batch, merged into larger ones as they pile up.

A row holds the steps, the values and, where a key skips lines, the numbers of its lines. Each line
is stored exactly once: the stream's cursor moves in the same transaction.
"""

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, bindparam, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from core.base.errors import BadRequest
from core.tables.telemetry import MetricChunk, StreamCursor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Line = dict[str, float | int | str | None]

KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]{0,79}$")
MAX_KEYS = 200  # of one line
MAX_STEP = 2**62
# Lines after which the rows of a running attempt are merged: whoever reads a curve takes some 10 us
# for a row, and a row comes with every batch.
BLOCKS = (16, 256, 2048)
LARGE_BLOCK = 65_536  # and those of one that has ended

# Built once: to build a query takes longer than to ask it.
SERIES = (
    MetricChunk.attempt_id == bindparam("attempt_id"),
    MetricChunk.rank == bindparam("rank"),
)
PACKED = (MetricChunk.first_line, MetricChunk.count, MetricChunk.steps, MetricChunk.values)
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
BETWEEN = select(MetricChunk.key, *PACKED).where(
    *SERIES,
    MetricChunk.first_line < bindparam("end"),
    or_(
        MetricChunk.first_line > bindparam("start"),
        tuple_(MetricChunk.key, MetricChunk.first_line).in_(bindparam("reaching", expanding=True)),
    ),
)
CHUNKS = (
    select(MetricChunk.key, MetricChunk.rank, *PACKED)
    .where(MetricChunk.attempt_id == bindparam("attempt_id"))
    .order_by(MetricChunk.key, MetricChunk.rank, MetricChunk.first_line)
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


def columns(lines: Sequence[Line], first_line: int) -> dict[str, Points]:
    """Return the points of each numeric key. Raises BadRequest for a line without a step."""
    found: dict[str, tuple[list[int], list[int], list[float]]] = defaultdict(lambda: ([], [], []))
    for offset, line in enumerate(lines):
        step = step_of(line, first_line + offset)
        if len(line) > MAX_KEYS:
            raise BadRequest(
                f"lines.{offset}: {len(line)} keys; a line has at most {MAX_KEYS}.",
                param=f"lines.{offset}",
            )
        for key, value in line.items():
            if key == "step" or isinstance(value, str):
                continue
            steps, numbers, values = found[key]
            steps.append(step)
            numbers.append(first_line + offset)
            values.append(math.nan if value is None else float(value))
    for key in found:
        if not KEY.match(key):
            raise BadRequest(
                f"lines: {key[:80]!r} is not a valid metric name. Use letters, digits and _ . / -",
                param="lines",
            )
    return {
        key: Points(
            np.array(steps, np.int64), np.array(numbers, np.int64), np.array(values, np.float64)
        )
        for key, (steps, numbers, values) in found.items()
    }


def step_of(line: Line, number: int) -> int:
    """Return the step of a line. Raises BadRequest if it has none."""
    step = line.get("step")
    if isinstance(step, str) or step is None or not 0 <= step < MAX_STEP or step != int(step):
        raise BadRequest(
            f"lines: line {number} has no valid step; it must be a whole number of at least 0.",
            param="lines",
        )
    return int(step)


def latest(lines: Sequence[Line], first_line: int) -> Latest | None:
    """Return the progress of the job after these lines; None if there are no lines."""
    if not lines:
        return None
    return Latest(
        step=max(step_of(line, first_line + i) for i, line in enumerate(lines)),
        loss=_last(lines, "loss"),
        tokens_per_s=_last(lines, "tokens_per_s"),
    )


def stream_position(session: Session, attempt_id: str, stream: str) -> int:
    """Return the number of the next line, or byte, of a stream; its row is locked until the
    transaction ends."""
    position = session.scalar(POSITION, {"attempt_id": attempt_id, "stream": stream})
    if position is not None:
        return int(position)
    # Two first batches at once: the caller holds the job's row, so the second one waits there.
    session.execute(insert(StreamCursor).values(attempt_id=attempt_id, stream=stream, position=0))
    return 0


def move_stream(session: Session, attempt_id: str, stream: str, *, to: int) -> None:
    """Record that everything before `to` is stored."""
    session.connection().execute(MOVE, {"of_attempt": attempt_id, "of_stream": stream, "to": to})


def append(
    session: Session, attempt_id: str, rank: int, first_line: int, found: dict[str, Points]
) -> None:
    """Add one row per key."""
    packed_steps: dict[bytes, bytes] = {}
    rows = []
    for key, points in found.items():
        same = points.lines.tobytes()
        if same not in packed_steps:
            packed_steps[same] = pack_steps(points, first_line)
        rows.append(_row(attempt_id, rank, key, first_line, points, packed_steps[same]))
    if rows:
        session.connection().execute(APPEND, rows)


def merge_full_blocks(
    session: Session, attempt_id: str, rank: int, *, start: int, end: int
) -> None:
    """Merge the rows of each series in the largest block that the lines `start` to `end` - 1 have
    filled. Call it under the lock on the job's row."""
    filled = [block for block in BLOCKS if end // block > start // block]
    if not filled:
        return
    block_end = end // filled[-1] * filled[-1]
    of_block = {"attempt_id": attempt_id, "rank": rank, "end": block_end}
    rows = session.execute(SMALL_OF_BLOCK, {**of_block, "start": block_end - filled[-1]})
    _merge(session, attempt_id, rows, filled[-1])


def merge(session: Session, attempt_id: str) -> None:
    """Merge the rows of each series of an attempt that has ended into one row per LARGE_BLOCK
    lines. Call it under the lock on the job's row: two at once would both insert."""
    _merge(session, attempt_id, session.execute(SMALL, {"attempt_id": attempt_id}), LARGE_BLOCK)


def _merge(
    session: Session, attempt_id: str, rows: Iterable[Row[int, int, str, int]], block: int
) -> None:
    """Merge the rows that begin in one block. Rows of one series never overlap, before and
    after."""
    groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for row_id, rank, key, first_line in rows:
        groups[rank, key, first_line // block].append(row_id)
    for (rank, key, _), row_ids in groups.items():
        if len(row_ids) < 2:
            continue
        parts = [row for some in _some(row_ids) for row in session.execute(ROWS, {"row_ids": some})]
        for some in _some(row_ids):
            session.connection().execute(DELETE, {"row_ids": some})
        joined = Points.joined([unpack(*part) for part in parts])
        # A batch may reach into the next block: the row begins where the first of them does.
        first_line = parts[0].first_line
        packed = pack_steps(joined, first_line)
        row = _row(attempt_id, rank, key, first_line, joined, packed)
        session.connection().execute(APPEND, row)


def _some(row_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in order, as many as one statement takes."""
    for start in range(0, len(row_ids), 500):
        yield row_ids[start : start + 500]


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
        query = query.where(MetricChunk.key.in_(keys))
    if rank is not None:
        query = query.where(MetricChunk.rank == rank)
    parts: dict[tuple[str, int], list[Points]] = defaultdict(list)
    rows = session.execute(query, {"attempt_id": attempt_id})
    for key, of_rank, first_line, count, steps, values in rows:
        parts[key, of_rank].append(unpack(first_line, count, steps, values))
    return {series: Points.joined(found) for series, found in parts.items()}


def lines_between(
    session: Session, attempt_id: str, *, rank: int, start: int, end: int
) -> list[dict[str, float | int | None]]:
    """Return the stored lines `start` to `end` - 1, each with its step and its numeric keys."""
    place = {"attempt_id": attempt_id, "rank": rank, "start": start}
    reaching = [(key, first_line) for key, first_line in session.execute(REACHING, place)]
    rows = session.execute(BETWEEN, {**place, "end": end, "reaching": reaching})
    lines: dict[int, dict[str, float | int | None]] = {}
    for key, first_line, count, steps, values in rows:
        points = unpack(first_line, count, steps, values)
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


def unpack(first_line: int, count: int, steps: bytes, values: bytes) -> Points:
    """Return the points of a row."""
    numbers = np.frombuffer(zlib.decompress(steps), "<i8")
    if len(numbers) == count:
        lines = np.arange(first_line, first_line + count, dtype=np.int64)
    else:
        lines = np.cumsum(numbers[count:], dtype=np.int64)
    return Points(
        np.cumsum(numbers[:count], dtype=np.int64),
        lines,
        np.frombuffer(values, "<f8").astype(np.float64, copy=False),
    )


def _row(
    attempt_id: str, rank: int, key: str, first_line: int, points: Points, steps: bytes
) -> dict[str, object]:
    return {
        "attempt_id": attempt_id,
        "rank": rank,
        "key": key,
        "first_line": first_line,
        "count": len(points.steps),
        "steps": steps,
        "values": points.values.astype("<f8").tobytes(),
    }


def _differences(numbers: Integers) -> Integers:
    return np.diff(numbers, prepend=np.int64(0))


def _last(lines: Iterable[Line], key: str) -> float | None:
    found = None
    for line in lines:
        value = line.get(key)
        if isinstance(value, int | float):
            found = float(value)
    return found
