"""Slots of a node over time: the free ones, and the free time that a lease breaks up. Pure.

A slot is a GPU, or a CPU slot of a node without GPUs. A hold without a number holds all slots. Only
sums matter: which slots a lease gets is decided when it begins.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from core.policy.grid import HOUR
from core.policy.verdict import Span

Times = tuple[datetime, datetime]


def free_slots(holds: Iterable[Span], *, of: int, start: datetime, end: datetime) -> int:
    """Return the least number of a node's `of` slots that are free at any moment of [start, end).

    0 also if more are held than the node has, which a fault may cause.
    """
    return min(free for _, _, free in _levels(holds, of, start, end))


def full_times(
    holds: Iterable[Span], *, of: int, size: int, start: datetime, end: datetime
) -> list[Times]:
    """Return the parts of [start, end) in which fewer than `size` slots are free, in order."""
    found: list[Times] = []
    for begins, ends, free in _levels(holds, of, start, end):
        if free >= size:
            continue
        if found and found[-1][1] == begins:
            found[-1] = found[-1][0], ends
        else:
            found.append((begins, ends))
    return found


@dataclass(frozen=True, order=True)
class Breakage:
    """The free time that a lease breaks up on a node, in slot-hours; less is better."""

    broken_h: float
    """Slot-hours of the node, wholly free before, in which it is no longer wholly free."""
    left_h: float
    """Slot-hours beside the lease that stay free during it."""


def breakage(
    holds: Iterable[Span], *, of: int, size: int, start: datetime, end: datetime
) -> Breakage:
    """Return the free time that a lease of `size` slots would break up on a node.

    A lease goes to the node where it breaks up the fewest wholly free slot-hours, and of those to
    the one it leaves least free: this keeps whole nodes bookable.
    """
    broken = left = timedelta()
    for begins, ends, free in _levels(holds, of, start, end):
        broken += of * (ends - begins) if free == of else timedelta()
        left += max(0, free - size) * (ends - begins)
    return Breakage(broken / HOUR, left / HOUR)


def _levels(
    holds: Iterable[Span], of: int, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, int]]:
    """Yield the stretches of [start, end) between changes, each with its number of free slots."""
    over = [span for span in holds if span.start < end and span.end > start]
    edges = {edge for span in over for edge in (span.start, span.end) if start < edge < end}
    moments = [start, *sorted(edges), end]
    for begins, ends in pairwise(moments):
        held = sum(_slots_of(span, of) for span in over if span.start <= begins < span.end)
        yield begins, ends, max(0, of - held)


def _slots_of(span: Span, of: int) -> int:
    return of if span.num_slots is None else span.num_slots
