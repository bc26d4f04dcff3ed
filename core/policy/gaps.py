"""Gap rule: a block should not leave hours beside it that no other block fits into. Pure.

Without this rule, blocks at random places fill a node to 79 to 88 % only (a parking problem).
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache

from core.policy.grid import HOUR


@cache
def wasted(hours: int, lengths: tuple[int, ...]) -> int:
    """Return the hours of a free run that no choice of blocks of these lengths can fill."""
    reached = [True] + [False] * hours
    for total in range(1, hours + 1):
        reached[total] = any(length <= total and reached[total - length] for length in lengths)
    return next(hours - total for total in range(hours, -1, -1) if reached[total])


def cut_up(
    start: datetime, end: datetime, held: Iterable[tuple[datetime, datetime]], *, first: datetime
) -> tuple[int, timedelta]:
    """Measure how much the block [start, end) cuts up the free time around it; less is better.

    Returns the number of its sides with free time left, and the free time left on both. `first` is
    the start of free time: hours that are over do not count. Free time without an end counts as
    `timedelta.max`.
    """
    spans = list(held)
    before = max([first, *(b for _, b in spans if b <= start)])
    after = min((a for a, _ in spans if a >= end), default=None)
    left = max(start - before, timedelta())
    if after is None:
        return 1 + (left > timedelta()), timedelta.max
    return (left > timedelta()) + (after > end), left + (after - end)


def hours_made_dead(
    free: Sequence[int],
    block: range,
    *,
    size: int,
    shapes: Collection[tuple[int, int]],
    never_leave: Collection[int] = (),
) -> int:
    """Return the hours that a block of `size` slots makes dead: with free slots, and no use.

    `free` has the free slots of each hour, far enough around the block, and `shapes` the slots and
    hours of every block that may be booked. An hour is dead if slots are free in it and no such
    block covers it any more. With `never_leave`, only runs of so many dead hours count. 0 also if
    every block of this size over the same hours makes as many hours dead.
    """
    before = _dead(free, shapes)

    def cost(hours: range) -> int:
        left = [slots - size if at in hours else slots for at, slots in enumerate(free)]
        return _counted(sorted(_dead(left, shapes) - before), never_leave)

    lost = cost(block)
    if not lost:
        return 0
    lengths = {hours for slots, hours in shapes if slots == size}
    others = (
        range(start, start + hours)
        for hours in lengths
        for start in range(max(0, block.start - hours + 1), min(block.stop, len(free) - hours + 1))
    )
    fitting = (one for one in others if all(free[at] >= size for at in one))
    return 0 if lost <= min(map(cost, fitting), default=lost) else lost


def _dead(free: Sequence[int], shapes: Collection[tuple[int, int]]) -> set[int]:
    """Return the hours with free slots that no block of these shapes can cover."""
    covered: set[int] = set()
    for slots, hours in shapes:
        run = 0
        for at, left in enumerate(free):
            run = run + 1 if left >= slots else 0
            if run >= hours:
                covered.update(range(at - hours + 1, at + 1))
    return {at for at, left in enumerate(free) if left > 0 and at not in covered}


def _counted(dead: Sequence[int], never_leave: Collection[int]) -> int:
    """Return the number of these hours; with `never_leave`, only those in runs of such a length."""
    runs: list[int] = []
    for at, hour in enumerate(dead):
        if at and dead[at - 1] == hour - 1:
            runs[-1] += 1
        else:
            runs.append(1)
    return sum(run for run in runs if not never_leave or run in never_leave)


def lost_beside(
    start: datetime,
    end: datetime,
    run: tuple[datetime | None, datetime | None],
    *,
    lengths: tuple[int, ...],
    never_leave: Collection[int] = (),
) -> int:
    """Return the hours beside the block [start, end) that it makes useless in its free run.

    Useless is a remainder that no blocks of `lengths` fill or, if given, one in `never_leave`. A
    side without a bound (None) loses nothing. 0 also if as much of this run is lost in any case.
    """
    first, last = run
    left = 0 if first is None else (start - first) // HOUR
    right = 0 if last is None else (last - end) // HOUR
    lost = 0
    for side in (left, right):
        if never_leave:
            lost += side if side in never_leave else 0
        else:
            lost += wasted(side, lengths)
    if first is None or last is None:
        return lost
    return lost if lost > wasted((last - first) // HOUR, lengths) else 0
