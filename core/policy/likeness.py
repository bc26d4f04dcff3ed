"""Blocks that are alike: a refusal of one for its length, day, quota or person holds for all. Pure.

A search among thousands of hours judges one block of each kind, not each of them.
"""

from collections.abc import Hashable
from datetime import datetime, timedelta

from core.base.reasons import QUOTA, ReasonCode
from core.policy.bands import Crossing
from core.policy.document import Policy
from core.policy.sections import QuotaPeriod
from core.policy.verdict import NodeRef, Verdict

CODES = frozenset(
    {
        ReasonCode.BAD_BLOCK_LENGTH,
        ReasonCode.BAD_SIZE,
        ReasonCode.SHARING_UNAVAILABLE,
        ReasonCode.CROSSES_BAND,
        ReasonCode.NOT_ELIGIBLE,
        ReasonCode.COHORT_DAY,
        ReasonCode.CHURN,
        ReasonCode.TOO_MANY_OPEN,
        ReasonCode.USER_CAP,
        ReasonCode.LAB_CAP,
    }
)


class Kinds:
    """Mapping from start to the kind of a block, of one length and size on nodes that are alike."""

    def __init__(self, policy: Policy, length: timedelta) -> None:
        self._known: dict[datetime, int] = {}
        self._policy = policy
        self._length = length
        self._periods = {quota.period for quota in policy.quotas.values()}
        self._numbers: dict[Hashable, int] = {}

    def __getitem__(self, start: datetime) -> int:
        kind = self._known.get(start)
        if kind is None:
            kind = self._numbers.setdefault(self._seen(start), len(self._numbers))
            self._known[start] = kind
        return kind

    def _seen(self, start: datetime) -> Hashable:
        """Return all that the rules behind CODES and the quotas see of a start."""
        policy, clock = self._policy, self._policy.clock
        place = clock.place(start, start + self._length)
        first, last = policy.whole
        day = clock.local_date(start)
        return (
            place.band,
            place.crosses,
            place.outside if policy.crossing is Crossing.PRORATE else None,
            first <= start < last,
            clock.week(start) if QuotaPeriod.WEEK in self._periods else None,
            day if QuotaPeriod.DAY in self._periods or policy.who.cohort_key is not None else None,
            (place.night or day) if QuotaPeriod.NIGHT in self._periods else None,
        )


def kinds_of(
    policy: Policy, node: NodeRef, length: timedelta, *, num_slots: int | None = None
) -> Kinds:
    """Return the kinds of blocks of this length and size on that node, by start.

    They do not hold for people with exceptions, nor for a block that touches a lease of the same
    person on the same node: both may be counted as one.
    """
    alike = (policy.pools_of(node), node.slots, node.sharing, num_slots)
    key = ("kinds", alike, length)
    return policy.memory.recall(key, policy.times, lambda: Kinds(policy, length))


def refuses_all_alike(verdict: Verdict) -> bool:
    """Return True if a reason of the verdict refuses every block of the same kind."""
    return any(reason.code in CODES or reason.code.startswith(QUOTA) for reason in verdict.reasons)
