"""Test whether a refused block can be granted later with no lease of its owner given back. Pure.

Other people give hours back, nodes come back into service, leases end, and booking opens. A block
length, a window or a quota that is used up in the block's own period does not change by waiting.
"""

from datetime import datetime

from core.base.reasons import ReasonCode
from core.policy.verdict import Reason, Verdict

PASSING = frozenset(
    {
        ReasonCode.NODE_TAKEN,
        ReasonCode.NODE_DOWN,
        ReasonCode.LEAVES_GAP,
        ReasonCode.CHURN,
        ReasonCode.NOT_OPEN_YET,
        ReasonCode.OUTSIDE_HORIZON,
    }
)


def lasting(verdict: Verdict, start: datetime) -> tuple[Reason, ...]:
    """Return the reasons against the block from `start` on that will not pass by waiting."""
    return tuple(reason for reason in verdict.reasons if not _may_pass(reason, start))


def _may_pass(reason: Reason, start: datetime) -> bool:
    numbers = reason.numbers
    if reason.code == ReasonCode.TOO_MANY_OPEN:
        return int(numbers["limit"]) > 0
    if reason.code == ReasonCode.LAB_CAP:
        return int(numbers["asked_hours"]) <= int(numbers["limit"])
    if reason.code == ReasonCode.NO_SHOWS:
        is_over = datetime.fromisoformat(str(numbers["until"])) <= start
        return is_over or int(numbers["horizon_days"]) > 0
    return reason.code in PASSING
