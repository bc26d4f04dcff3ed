"""Behaviour of the students of a course before a deadline. Pure.

The one model of forecasts and benchmarks. Its numbers are assumptions, not measurements: most
students come in the last third of the time, six in ten prefer the first alternative of the rules,
15 % give a block back in time and book again, and 3 % of the blocks are lost to a fault.
"""

FIRST_SHARE = 0.6
"""Share of students who prefer the first alternative of a quota; the rest prefer another one."""
CANCEL_SHARE, FAULT_SHARE = 0.15, 0.03
TRIES, NEAR_DAYS = 12, 5
"""Starts that a student looks at within so many days, before all the others in their order."""
ARRIVAL = (5.0, 2.0)
"""Parameters of the Beta distribution of arrivals between the start (0) and the deadline (1)."""
HALVINGS = 40  # of [0, 1], to a millionth of a second of a month


def arrival(chance: float, *, since: float = 0.0) -> float:
    """Return when a student comes, of those who come after `since`; times are from 0 to 1.

    `chance` is evenly distributed from 0 to 1; this is the inverse of the distribution function.
    """
    gone = _came_by(since)
    wanted = gone + chance * (1.0 - gone)
    low, high = since, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _came_by(middle) < wanted else (low, middle)
    return high


def _came_by(share: float) -> float:
    """Return the distribution function of Beta(5, 2)."""
    return share**5 * (6.0 - 5.0 * share)
