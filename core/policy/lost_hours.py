"""The hours that a block would make useless, with the facts of its case. Pure."""

from datetime import datetime

from core.policy.case import Case
from core.policy.gaps import hours_made_dead, lost_beside
from core.policy.grid import HOUR, hour_ceiling
from core.policy.slots import free_slots


def lost_hours(case: Case) -> int:
    """Return the hours that the block makes useless, of the node or of GPUs that it leaves free."""
    node = case.request.node
    if case.policy.sizes(node) != (node.slots,):
        return _lost_of_parts(case)
    run = _free_run(case)
    return lost_beside(
        case.start,
        case.end,
        run,
        lengths=_lengths(case, run),
        never_leave=case.policy.gaps.never_leave_hours,
    )


def _lost_of_parts(case: Case) -> int:
    node = case.request.node
    shapes = {
        (size, hours)
        for size in case.policy.sizes(node)
        for hours in _lengths(case, (case.start, case.end), num_slots=size)
    }
    if not shapes:
        return 0
    reach = 2 * max(hours for _, hours in shapes) * HOUR + (case.end - case.start)
    around = [w for w in case.windows if w.start <= case.start and case.end <= w.end]
    opens = max([case.start - reach, case.earliest_start, *(w.start for w in around)])
    first = hour_ceiling(opens, case.policy.grid.anchor)
    last = min([case.end + reach, *(w.end for w in around)])
    if not first <= case.start:
        return 0
    starts = [first + number * HOUR for number in range((last - first) // HOUR)]
    fit = node.slots - case.situation.out_of_service
    free = [free_slots(case.holds, of=fit, start=at, end=at + HOUR) for at in starts]
    block = range((case.start - first) // HOUR, (case.end - first) // HOUR)
    return hours_made_dead(
        free,
        block,
        size=case.request.size,
        shapes=shapes,
        never_leave=case.policy.gaps.never_leave_hours,
    )


def _free_run(case: Case) -> tuple[datetime | None, datetime | None]:
    """Return the free hours around the block; None for a side without a bound, or in the past."""
    firsts = [span.end for span in case.holds if span.end <= case.start]
    lasts = [span.start for span in case.holds if span.start >= case.end]
    for window in case.windows:
        if window.start <= case.start and case.end <= window.end:
            firsts.append(window.start)
            lasts.append(window.end)
    first = max(firsts, default=None)
    anchor = case.policy.grid.anchor
    if first is not None and first < case.earliest_start:
        first = None  # hours that begin too soon are lost to time, not to this block
    return first and hour_ceiling(first, anchor), min(lasts, default=None)


def _lengths(
    case: Case,
    run: tuple[datetime | None, datetime | None],
    *,
    num_slots: int | None = None,
) -> tuple[int, ...]:
    """Return the lengths of blocks of a size that may fill the run.

    Those of a band count wherever the run touches it.
    """
    lengths = set(case.policy.pool_hours(case.request.node, num_slots))
    for name in case.policy.clock.touched(run[0] or case.start, run[1] or case.end):
        lengths |= set(case.policy.bands[name].hours)
    return tuple(sorted(lengths))
