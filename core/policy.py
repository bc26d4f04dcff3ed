"""The booking rules and the hour grid. Pure: `now` is an argument, times are in UTC.

A lease *holds* whole hours, [start, end), and its last `grace` minutes are for cleaning up: what is
left is *usable*. A walk-in starts off the grid, now; its hold still ends on a full hour.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Policy:
    """The rules that every booking and walk-in is checked against."""

    grace_s: int = 300
    horizon_days: int = 21
    max_block_hours: int = 12
    max_open_leases: int = 5
    """Booked or active leases one user may have at a time."""


@dataclass(frozen=True)
class Reason:
    """One rule that a request breaks."""

    code: str
    param: str
    message: str


@dataclass(frozen=True)
class Timetable:
    """What happens at the end of a hold, in seconds before it."""

    checkpoint_s: int = 600
    stop_s: int = 300
    kill_after_stop_s: int = 30


def hour_floor(moment: datetime) -> datetime:
    """The full hour (UTC) at or before `moment`."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hour_ceiling(moment: datetime) -> datetime:
    """The full hour (UTC) at or after `moment`."""
    floor = hour_floor(moment)
    return floor if floor == moment else floor + HOUR


def usable_end(hold_end: datetime, grace_s: int) -> datetime:
    """When jobs in a lease are stopped."""
    return hold_end.astimezone(UTC) - timedelta(seconds=grace_s)


def walk_in_end(now: datetime, wall_time_s: int, grace_s: int) -> datetime:
    """The end of a walk-in's hold: the first full hour at or after now + wall time + grace."""
    # In UTC: adding to a moment of another zone counts hours of its clock, not hours that pass.
    return hour_ceiling(now.astimezone(UTC) + timedelta(seconds=wall_time_s + grace_s))


def evaluate_booking(
    start: datetime, hours: int, *, now: datetime, open_leases: int, policy: Policy
) -> list[Reason]:
    """Why a block of `hours` from `start` may not be booked now; empty if it may.

    `open_leases` counts the user's other booked or active leases. Whether the node is free is not
    asked here: the database decides that.
    """
    reasons = []
    if hour_floor(start) != start:
        reasons.append(
            Reason(
                "off_grid",
                "start",
                f"Blocks start on the full hour (UTC); {start.isoformat()} does not. "
                f"The next one is {hour_ceiling(start).isoformat()}.",
            )
        )
    if not 1 <= hours <= policy.max_block_hours:
        reasons.append(
            Reason(
                "bad_block_length",
                "hours",
                f"A block has 1 to {policy.max_block_hours} hours, not {hours}.",
            )
        )
    if start < hour_floor(now):
        reasons.append(
            Reason(
                "in_the_past",
                "start",
                f"{start.isoformat()} is over; the hour that runs now began at "
                f"{hour_floor(now).isoformat()}.",
            )
        )
    if start > now + timedelta(days=policy.horizon_days):
        reasons.append(
            Reason(
                "outside_horizon",
                "start",
                f"Blocks can be booked {policy.horizon_days} days ahead; "
                f"{start.isoformat()} is {(start - now).days} days away.",
            )
        )
    if open_leases >= policy.max_open_leases:
        reasons.append(
            Reason(
                "too_many_open",
                "hours",
                f"You have {open_leases} open leases and may have {policy.max_open_leases}. "
                "Cancel one, or wait until one has ended.",
            )
        )
    return reasons
