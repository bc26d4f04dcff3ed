"""Cost of a lease that was not used to its end. Pure.

Counted against quotas: leases that are booked or active, were used, were cancelled too late, or
were no-shows. Not counted: leases cancelled in time, or taken by a fault or maintenance.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from core.base.reasons import Code, ReasonCode, violation_code
from core.policy.grid import hour_ceiling
from core.policy.sections import Cancel


@dataclass(frozen=True)
class Settlement:
    """Result of a lease's end for quotas."""

    counts: bool
    settled_as: Code
    message: str
    forfeited_end: datetime | None = None
    """End of the forfeited hours: those that nobody else has are charged. None: it has none."""
    refund_if_rebooked: bool = False
    """True if the lease stops counting while others have all of its forfeited hours."""


def of_cancel(start: datetime, *, now: datetime, rules: Cancel, by: str) -> Settlement:
    """Settle a booked lease that its owner gives back before it starts at `start`."""
    needed = rules.refund_if_before_start_min
    minutes = int((start - now) / timedelta(minutes=1))
    message = f"Cancelled by {by}."
    if start - now >= timedelta(minutes=needed) or rules.late_cancel == "refund":
        return Settlement(False, ReasonCode.CANCELLED, f"{message} Its hours do not count.")
    late = (
        f"{message} That was {max(minutes, 0)} minutes before its start; cancelling is "
        f"free of charge until {needed} minutes before."
    )
    if rules.late_cancel == "charge":
        return Settlement(True, ReasonCode.LATE_CANCEL, f"{late} Its hours count.")
    return Settlement(
        True,
        ReasonCode.LATE_CANCEL,
        f"{late} Its hours count unless others book them.",
        refund_if_rebooked=True,
    )


def of_release(hold_end: datetime, *, freed_from: datetime, rules: Cancel, by: str) -> Settlement:
    """Settle an active lease given back early: its hours from `freed_from` on are free again."""
    message = f"Released by {by}."
    if freed_from >= hold_end:
        return Settlement(
            True, ReasonCode.RELEASED, f"{message} No whole hour of it is left to refund."
        )
    if rules.early_release.charge == "used":
        return Settlement(
            True, ReasonCode.RELEASED, f"{message} Its hours count up to {_clock(freed_from)}."
        )
    unless = " unless others book them" if rules.early_release.refund_if_rebooked else ""
    return Settlement(
        True,
        ReasonCode.RELEASED,
        f"{message} Its hours count up to {_clock(hold_end)}{unless}.",
        forfeited_end=hold_end,
        refund_if_rebooked=rules.early_release.refund_if_rebooked,
    )


def of_no_show(hold_end: datetime, *, node_name: str) -> Settlement:
    """Settle an active lease in which nothing has run."""
    message = (
        f"Taken back: nothing had run in the lease on {node_name}. Its hours count, except "
        "those that others book."
    )
    return Settlement(True, ReasonCode.NO_SHOW, message, forfeited_end=hold_end)


def of_refunded(settled_as: Code, *, what: str) -> Settlement:
    """Settle a lease that had been refunded before its owner gave it back or missed it."""
    return Settlement(
        False, settled_as, f"{what} It was already refunded, so its hours do not count."
    )


def of_staff_delete(*, rule: str | None, rules: Cancel, why: str) -> Settlement:
    """Settle a lease that staff take away: for breaking `rule`, or for maintenance."""
    if rule is None:
        counts = rules.staff_delete.maintenance == "refund_none"
        return Settlement(counts, ReasonCode.MAINTENANCE, why)
    return Settlement(rules.staff_delete.violation == "refund_none", violation_code(rule), why)


def freed_from(now: datetime, *, grace_s: int, anchor: timedelta = timedelta(0)) -> datetime:
    """Return the first hour of the grid that leaves `grace_s` for cleaning up after `now`."""
    return hour_ceiling(now + timedelta(seconds=grace_s), anchor)


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M} UTC"
