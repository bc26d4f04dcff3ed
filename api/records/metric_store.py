"""Metrics as packed rows: one row per key and batch, merged into larger ones as they pile up.

A row holds the steps, the values and, where a key skips lines, the numbers of its lines. Each line
is stored exactly once: the stream's cursor moves in the same transaction.
"""

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import delete, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from core.base.errors import BadRequest
from core.tables.telemetry import MetricChunk, StreamCursor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Line = dict[str, float | int | str | None]

KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]{0,79}$")
MAX_KEYS = 200  # of one line
MAX_STEP = 2**62
BLOCK = 2048  # lines after which the rows of a running attempt are merged
LARGE_BLOCK = 65_536  # and those of one that has ended


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
                f"lines: {key[:80]!r} is no name of a metric; take letters, digits and _ . / -.",
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
            f"lines: line {number} has no step that is a whole number from 0.", param="lines"
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
    position = session.scalar(
        select(StreamCursor.position)
        .where(StreamCursor.attempt_id == attempt_id, StreamCursor.stream == stream)
        .with_for_update(key_share=True)
    )
    if position is not None:
        return int(position)
    # Two first batches at once: the caller holds the job's row, so the second one waits there.
    session.execute(insert(StreamCursor).values(attempt_id=attempt_id, stream=stream, position=0))
    return 0


def move_stream(session: Session, attempt_id: str, stream: str, *, to: int) -> None:
    """Record that everything before `to` is stored."""
    session.execute(
        update(StreamCursor)
        .where(StreamCursor.attempt_id == attempt_id, StreamCursor.stream == stream)
        .values(position=to)
    )


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
        session.connection().execute(insert(MetricChunk), rows)


def merge(session: Session, attempt_id: str, *, block: int, up_to_line: int | None = None) -> None:
    """Merge the small rows of each series into one row per `block` lines.

    Rows of one series never overlap, before and after. Call it under the lock on the job's row: two
    at once would both insert.
    """
    query = (
        select(MetricChunk.id, MetricChunk.rank, MetricChunk.key, MetricChunk.first_line)
        .where(MetricChunk.attempt_id == attempt_id)
        .order_by(MetricChunk.key, MetricChunk.rank, MetricChunk.first_line)
    )
    if up_to_line is not None:
        start = max(0, up_to_line - block)
        query = query.where(MetricChunk.first_line >= start, MetricChunk.first_line < up_to_line)
    groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for row_id, rank, key, first_line in session.execute(query):
        groups[rank, key, first_line // block].append(row_id)
    for (rank, key, number), row_ids in groups.items():
        if len(row_ids) < 2:
            continue
        rows = session.execute(
            select(MetricChunk.first_line, MetricChunk.count, MetricChunk.steps, MetricChunk.values)
            .where(MetricChunk.id.in_(row_ids))
            .order_by(MetricChunk.first_line)
        )
        joined = Points.joined([unpack(*row) for row in rows])
        for start in range(0, len(row_ids), 500):
            dead = row_ids[start : start + 500]
            session.execute(delete(MetricChunk).where(MetricChunk.id.in_(dead)))
        first_line = number * block
        packed = pack_steps(joined, first_line)
        row = _row(attempt_id, rank, key, first_line, joined, packed)
        session.connection().execute(insert(MetricChunk), row)


def read(
    session: Session,
    attempt_id: str,
    *,
    keys: Sequence[str] | None = None,
    rank: int | None = None,
) -> dict[tuple[str, int], Points]:
    """Return the points of an attempt by (key, rank)."""
    query = (
        select(
            MetricChunk.key,
            MetricChunk.rank,
            MetricChunk.first_line,
            MetricChunk.count,
            MetricChunk.steps,
            MetricChunk.values,
        )
        .where(MetricChunk.attempt_id == attempt_id)
        .order_by(MetricChunk.key, MetricChunk.rank, MetricChunk.first_line)
    )
    if keys is not None:
        query = query.where(MetricChunk.key.in_(keys))
    if rank is not None:
        query = query.where(MetricChunk.rank == rank)
    parts: dict[tuple[str, int], list[Points]] = defaultdict(list)
    for key, of_rank, first_line, count, steps, values in session.execute(query):
        parts[key, of_rank].append(unpack(first_line, count, steps, values))
    return {series: Points.joined(found) for series, found in parts.items()}


def lines_between(
    session: Session, attempt_id: str, *, rank: int, start: int, end: int
) -> list[dict[str, float | int | None]]:
    """Return the stored lines `start` to `end` - 1, each with its step and its numeric keys."""
    series = (MetricChunk.attempt_id == attempt_id, MetricChunk.rank == rank)
    # Of each key, only the last row that begins before `start` can reach beyond it.
    reaching = session.execute(
        select(MetricChunk.key, func.max(MetricChunk.first_line))
        .where(*series, MetricChunk.first_line <= start)
        .group_by(MetricChunk.key)
    ).all()
    rows = session.execute(
        select(
            MetricChunk.key,
            MetricChunk.first_line,
            MetricChunk.count,
            MetricChunk.steps,
            MetricChunk.values,
        ).where(
            *series,
            MetricChunk.first_line < end,
            or_(
                MetricChunk.first_line > start,
                tuple_(MetricChunk.key, MetricChunk.first_line).in_(
                    [(key, first_line) for key, first_line in reaching]
                ),
            ),
        )
    )
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
