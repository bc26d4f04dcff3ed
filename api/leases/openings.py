"""Starts at which people may begin a block, kept until something changes that the rules look at.

Every caller reads all that the rules look at anew, and compares it: nobody has to announce a
change. What changes by time alone is kept until it does, and for a minute at most.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from core.base.reasons import ReasonCode
from core.leases.situation import Judge
from core.policy.document import Policy
from core.policy.grid import HOUR
from core.policy.verdict import Member, Reason, Situation
from core.tables.nodes import Node

MOST = 3000  # days in view on one node, of all people: a course of 191 has 1,337 on seven
MOST_STARTS = 600  # on one of these, each with the lengths that were asked for
BAD_LENGTH = ReasonCode.BAD_BLOCK_LENGTH
LONGER_MAY_DO = frozenset({BAD_LENGTH, ReasonCode.LEAVES_GAP})
MINUTE = timedelta(minutes=1)  # the finest grain of the rules' own numbers

Question = tuple[datetime, tuple[int, ...], int | None]
"""A start, the lengths of block that would do, ascending, and its slots; None for all."""


@dataclass(frozen=True)
class KnownAnswers:
    """Answers that one person was given about one node, and the facts that they were judged by."""

    member: Member
    policy: Policy
    situation: Situation
    until: datetime
    refusals: dict[Question, Reason | None] = field(default_factory=dict)

    def holds(self, member: Member, policy: Policy, situation: Situation) -> bool:
        """Return True if the same facts would lead to the same answers."""
        return (
            self.situation.now <= situation.now < self.until
            and self.policy is policy
            and self.member == member
            and self.situation == replace(situation, now=self.situation.now)
        )


class Openings:
    """Answers to all people who asked lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, datetime], KnownAnswers] = OrderedDict()

    def refusals(
        self,
        judge: Judge,
        node: Node,
        starts: Sequence[datetime],
        lengths: Sequence[int],
        *,
        num_slots: int | None = None,
    ) -> dict[datetime, Reason]:
        """Map start -> the first rule that every block of these lengths (ascending), on `num_slots`
        of the node or all of it, breaks from that start on. Starts at which some block is granted
        are left out. The judge must have looked at the node."""
        if not starts:
            return {}
        refusals = self._recall(judge, node, starts[0])
        found: dict[datetime, Reason] = {}
        for start in starts:
            asked = (start, tuple(lengths), num_slots)
            if asked not in refusals:
                refusals[asked] = _refusal(judge, node, *asked)
            reason = refusals[asked]
            if reason is not None:
                found[start] = reason
        return found

    def _recall(self, judge: Judge, node: Node, first: datetime) -> dict[Question, Reason | None]:
        situation, policy = judge.situation(node), judge.policy_for_node(node)
        key = (judge.member.id, node.id, first)
        known = self._known.pop(key, None)
        is_full = known is not None and len(known.refusals) > MOST_STARTS
        if known is None or is_full or not known.holds(judge.member, policy, situation):
            known = KnownAnswers(judge.member, policy, situation, holds_until(situation, policy))
        self._known[key] = known
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return known.refusals


def holds_until(situation: Situation, policy: Policy) -> datetime:
    """Return the next moment at which the rules may answer differently without anybody's action.
    Pure."""
    return min(moment for moment in _moments(situation, policy) if moment > situation.now)


def _moments(situation: Situation, policy: Policy) -> Iterator[datetime]:
    yield situation.now.replace(second=0, microsecond=0) + MINUTE
    for window in policy.times:
        yield from (window.start, window.end, window.opens_at or window.start)
    for fact in (*situation.own, *situation.lab):
        yield from (fact.start, fact.end)
    for span in situation.holds:
        yield from (span.start, span.end)


def _refusal(
    judge: Judge, node: Node, start: datetime, lengths: Sequence[int], num_slots: int | None
) -> Reason | None:
    """Return the refusal of the shortest block whose length is allowed; None if some block is
    granted."""
    found: Reason | None = None
    for hours in lengths:
        reason = judge.first_refusal(node, start, start + hours * HOUR, num_slots=num_slots)
        if reason is None:
            return None
        if found is None or found.code == BAD_LENGTH:
            found = reason
        if reason.code not in LONGER_MAY_DO:
            break
    return found
