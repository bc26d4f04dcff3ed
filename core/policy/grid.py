"""The hour grid, and the timetable of a lease's end. Pure: times are in UTC.

A lease *holds* whole hours, [start, end), and its last `grace` minutes are for cleaning up: the
time before them is *usable*. A walk-in starts off the grid, now; its hold still ends on the grid.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Timetable:
    """Timetable of the end of a hold, in seconds before it.

    `kill_after_stop_s` counts from the stop instead.
    """

    checkpoint_s: int = 600
    stop_s: int = 300
    kill_after_stop_s: int = 30
    notify_s: tuple[int, ...] = (1800, 900)


def hour_floor(moment: datetime, anchor: timedelta = timedelta(0)) -> datetime:
    """Return the start of the hour at or before `moment`.

    Hours begin `anchor` after the full UTC hour.
    """
    into = (moment - EPOCH - anchor) % HOUR
    return moment.astimezone(UTC) - into


def hour_ceiling(moment: datetime, anchor: timedelta = timedelta(0)) -> datetime:
    """Return the start of the hour at or after `moment`."""
    floor = hour_floor(moment, anchor)
    return floor if floor == moment else floor + HOUR


def usable_end(hold_end: datetime, grace_s: int) -> datetime:
    """Return the moment at which jobs in a lease are stopped."""
    return hold_end.astimezone(UTC) - timedelta(seconds=grace_s)


def hold_end(end: datetime, grace_s: int, anchor: timedelta = timedelta(0)) -> datetime:
    """Return the hold's end that `end` means, which may be the usable end that people are shown."""
    ceiling = hour_ceiling(end, anchor)
    return ceiling if usable_end(ceiling, grace_s) == end else end.astimezone(UTC)


def walk_in_end(
    now: datetime, wall_time_s: int, grace_s: int, anchor: timedelta = timedelta(0)
) -> datetime:
    """Return the end of a walk-in's hold: the first hour at or after now + wall time + grace."""
    # In UTC: adding to a moment of another zone counts hours of its clock, not hours that pass.
    return hour_ceiling(now.astimezone(UTC) + timedelta(seconds=wall_time_s + grace_s), anchor)
