"""The one judge of bookings, walk-ins and extensions: for previews, clean-up and simulation too.

Pure: all that it needs to know of the world is in the Situation. The rules are in rules.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from core.base.reasons import ReasonCode
from core.policy import quotas
from core.policy.case import Case
from core.policy.document import Policy
from core.policy.grid import HOUR, hour_ceiling, hour_floor
from core.policy.rules import RULES, Rule, RuleFinding, refusing
from core.policy.sections import GapMode
from core.policy.verdict import (
    LIFTABLE,
    BookingRequest,
    Reason,
    RequestKind,
    Situation,
    Verdict,
)

OFFERS = 3
SEARCHED_HOURS = 7 * 24
"""Hours before and after the requested start that next_starts searches."""
CONSIDERED = 4
"""Multiple of the `offers`: of so many accepted starts, those that leave no gap come first."""
HOPELESS = frozenset(
    {
        ReasonCode.BAD_SIZE,
        ReasonCode.SHARING_UNAVAILABLE,
        ReasonCode.NODE_DOWN,
        ReasonCode.NOT_ELIGIBLE,
        ReasonCode.CHURN,
        ReasonCode.TOO_MANY_OPEN,
        ReasonCode.WALK_IN_REFUSED,
    }
)  # another start would not help


def evaluate(
    request: BookingRequest, situation: Situation, policy: Policy, *, offers: int = OFFERS
) -> Verdict:
    """Judge a request: may it be granted now, every rule that it breaks, the rest of the quotas.

    If it is refused, up to `offers` of the nearest starts that would be accepted are searched, as
    far as `situation.holds` tells which hours are free; 0 saves that time.
    """
    case = Case.of(request, situation, policy)
    reasons: list[Reason] = []
    warnings: list[Reason] = []
    for finding in _findings(case):
        (reasons if finding.refuses else warnings).append(finding.reason)
    ok = not reasons
    return Verdict(
        ok=ok,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        charge=case.charge,
        left=quotas.left(case, granted=ok),
        next_starts=() if ok else _next_starts(case, reasons, offers),
        policy_id=policy.id,
        policy_version=policy.version,
        local_start=case.stamp(case.start),
        zone=policy.policy.zone,
    )


def first_refusal(request: BookingRequest, situation: Situation, policy: Policy) -> Reason | None:
    """Return the first of evaluate()'s reasons without searching for more; None if it is ok."""
    rules = refusing(request.kind, policy)
    found = _findings(Case.of(request, situation, policy), rules)
    return next((finding.reason for finding in found if finding.refuses), None)


def leaves_gap(request: BookingRequest, situation: Situation, policy: Policy) -> bool | None:
    """Return True if evaluate() would only warn of a gap, False if of none; None if it would
    refuse."""
    return _is_warned(Case.of(request, situation, policy))


def _findings(case: Case, rules: Sequence[Rule] = ()) -> Iterator[RuleFinding]:
    """Yield the findings of all rules, or of `rules`, the cheap ones first.

    A refusal that an exception lifts becomes a warning.
    """
    for rule in rules or RULES[case.request.kind]:
        for finding in rule(case):
            grant = case.granted.get(finding.reason.code)
            if finding.refuses and grant and finding.reason.code in LIFTABLE:
                yield RuleFinding(_lifted(finding.reason, grant.why), refuses=False)
            else:
                yield finding


def _lifted(reason: Reason, why: str) -> Reason:
    message = f"{reason.message} Allowed by an exception: {why}"
    return Reason(reason.code, reason.param, message, reason.numbers)


def _next_starts(case: Case, reasons: list[Reason], offers: int) -> tuple[datetime, ...]:
    """Return the nearest starts on this node that would be accepted.

    For a booking, starts of a block as long, judged at present; for a walk-in, judged at each
    start. Empty if another start would not help.
    """
    if not offers or any(reason.code in HOPELESS for reason in reasons):
        return ()
    if case.request.kind is RequestKind.WALK_IN:
        return tuple(islice(_walk_in_starts(case), offers))
    if case.request.kind is RequestKind.BOOKING and case.end - case.start >= HOUR:
        return _block_starts(case, offers)
    return ()


def _walk_in_starts(case: Case) -> Iterator[datetime]:
    """Yield full hours at which the walk-in would be accepted.

    Judged as if nothing else were booked or began meanwhile.
    """
    first = hour_ceiling(case.now, case.policy.grid.anchor)
    for number in range(SEARCHED_HOURS):
        start = first + number * HOUR
        then = replace(
            case,
            situation=replace(case.situation, now=start),
            start=start,
            end=start + case.hours * HOUR,
        )
        if _is_warned(then) is not None:
            yield start


def _block_starts(case: Case, offers: int) -> tuple[datetime, ...]:
    # Without warnings the nearest are the best; one more, since the earlier of two as near wins.
    enough = offers * CONSIDERED if case.policy.gaps.mode is GapMode.SOFT else offers + 1
    middle = max(case.start, case.earliest_start)
    before = hour_floor(middle, case.policy.grid.anchor)
    found: list[tuple[bool, timedelta, datetime]] = []
    for number in range(SEARCHED_HOURS):
        for start in (before - number * HOUR, before + (number + 1) * HOUR):
            warned = None if start < case.earliest_start else _is_warned(case.at(start))
            if warned is not None:
                found.append((warned, abs(start - middle), start))
            if len(found) == enough:
                break
        if len(found) == enough:
            break
    return tuple(sorted(start for _, _, start in sorted(found)[:offers]))


def _is_warned(case: Case) -> bool | None:
    """Return True if the gap rule only warns of it, False if not; None if it would be refused."""
    warned = False
    for finding in _findings(case):
        if finding.refuses:
            return None
        warned = warned or finding.reason.code == ReasonCode.LEAVES_GAP
    return warned
