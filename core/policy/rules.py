"""Rules of a policy, each a function that yields its findings; a finding refuses or only warns.

Pure. `RULES` lists the rules for each kind of request, in their order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from core.base.reasons import ReasonCode
from core.policy import quotas
from core.policy.bands import Crossing
from core.policy.case import Case
from core.policy.document import Policy, Window
from core.policy.grid import HOUR, hour_ceiling, hour_floor
from core.policy.lost_hours import lost_hours
from core.policy.sections import DAYS, BackToBack, GapMode
from core.policy.slots import free_slots
from core.policy.verdict import LeaseFact, Reason, RequestKind
from core.policy.words import gpus_text
from core.states import LIVE_LEASE, LeaseState, Sharing


@dataclass(frozen=True)
class RuleFinding:
    """Finding of a rule."""

    reason: Reason
    refuses: bool = True


Rule = Callable[[Case], Iterator[RuleFinding]]


# ------------------------------------------------------------------------------- grid and length


def _grid(case: Case) -> Iterator[RuleFinding]:
    anchor = case.policy.grid.anchor
    before, after = hour_floor(case.start, anchor), hour_ceiling(case.start, anchor)
    if before == after:
        return
    minute = case.policy.grid.anchor_min
    on = "the full hour (UTC)" if not minute else f"minute {minute:02} of the hour (UTC)"
    yield _refusal(
        ReasonCode.OFF_GRID,
        "start",
        f"Blocks start on {on}; {case.show(case.start)} does not. "
        f"The nearest starts are {case.show(before)} and {case.show(after)}.",
        previous_start=case.stamp(before),
        next_start=case.stamp(after),
    )


def _length(case: Case) -> Iterator[RuleFinding]:
    allowed = case.block_hours
    hours = (case.end - case.start) / HOUR
    if hours in allowed:
        return
    limit = allowed[-1]
    said = f"1 to {limit}" if len(allowed) > 3 else " or ".join(str(length) for length in allowed)
    unit = "hour" if allowed == (1,) else "hours"
    where = f" on {case.request.node.name}" if case.pools else ""
    yield _refusal(
        ReasonCode.BAD_BLOCK_LENGTH,
        "hours",
        f"A block{where} at this time has {said} {unit}, not {hours:g}.",
        asked=hours,
        limit=limit,
        allowed=", ".join(str(length) for length in allowed),
    )


# ------------------------------------------------------------------------------------------ size


def _size(case: Case) -> Iterator[RuleFinding]:
    node, size = case.request.node, case.request.size
    allowed = case.policy.sizes(node)
    if size not in allowed:
        said = " or ".join(str(number) for number in allowed)
        yield _refusal(
            ReasonCode.BAD_SIZE,
            "gpus",
            f"A lease on {node.name}, which has {gpus_text(node.slots)}, has "
            f"{said or 'more than that'}, not {size}.",
            asked=size,
            limit=node.slots,
            allowed=", ".join(str(number) for number in allowed),
        )
    elif case.is_part and node.sharing is Sharing.NONE:
        yield _refusal(
            ReasonCode.SHARING_UNAVAILABLE,
            "gpus",
            f"{node.name} cannot keep the jobs of two owners apart, so it is leased whole. "
            f"Book all {gpus_text(node.slots)} of it, or another node.",
            asked=size,
            limit=node.slots,
        )
    elif case.is_part and node.sharing is Sharing.RECIPES:
        message = (
            f"{node.name} can keep recipes of two owners apart, but not programs: a program does "
            "not start in a lease of a part of it. For one, book the whole node, or another node."
        )
        yield RuleFinding(Reason(ReasonCode.SHARING_UNAVAILABLE, "gpus", message), refuses=False)


# ------------------------------------------------------------------------------------------ when


def _moment(case: Case) -> Iterator[RuleFinding]:
    now, grid = case.now, case.policy.grid
    running = hour_floor(now, grid.anchor)
    earliest = case.earliest_start
    if case.start < running:
        yield _refusal(
            ReasonCode.IN_THE_PAST,
            "start",
            f"{case.show(case.start)} has passed. The earliest start is the current hour, "
            f"which began at {case.show(running)}.",
            next_start=case.stamp(earliest),
        )
    elif case.start < earliest:
        yield _refusal(
            ReasonCode.TOO_SOON,
            "start",
            f"Blocks must be booked {grid.min_lead_min} minutes before they start; the next one "
            f"starts at {case.show(earliest)}.",
            limit=grid.min_lead_min,
            next_start=case.stamp(earliest),
        )
    if case.start > now + timedelta(days=grid.horizon_days):
        yield _refusal(
            ReasonCode.OUTSIDE_HORIZON,
            "start",
            f"Blocks can be booked {grid.horizon_days} days ahead; {case.show(case.start)} is "
            f"{(case.start - now).days} days away.",
            limit=grid.horizon_days,
            used=(case.start - now).days,
        )


def _window(case: Case) -> Iterator[RuleFinding]:
    if not case.policy.windows:
        return
    mine = case.windows
    around = [window for window in mine if window.start <= case.start and case.end <= window.end]
    if not around:
        yield _outside_window(case, mine)
        return
    if any(window.opens_at is None or window.opens_at <= case.now for window in around):
        return
    opens = min(window.opens_at for window in around if window.opens_at is not None)
    yield _refusal(
        ReasonCode.NOT_OPEN_YET,
        "start",
        f"Booking of {case.request.node.name} opens at {case.show(opens)}.",
        opens_at=case.stamp(opens),
    )


def _outside_window(case: Case, mine: tuple[Window, ...]) -> RuleFinding:
    node = case.request.node.name
    ahead = [window for window in mine if window.end > case.now]
    if not ahead:
        message = f"The last window of {node} has ended, so it cannot be booked."
        return _refusal(ReasonCode.OUTSIDE_WINDOW, "start", message)
    window = min(ahead, key=lambda window: abs(window.start - case.start))
    return _refusal(
        ReasonCode.OUTSIDE_WINDOW,
        "start",
        f"Leases on {node} must lie between {case.show(window.start)} and {case.show(window.end)}.",
        window_start=case.stamp(window.start),
        window_end=case.stamp(window.end),
    )


def _crossing(case: Case) -> Iterator[RuleFinding]:
    if case.place.crosses and case.policy.crossing is Crossing.FORBID:
        bands = ", ".join(sorted(case.policy.clock.touched(case.start, case.end)))
        yield _refusal(
            ReasonCode.CROSSES_BAND,
            "start",
            f"All hours of a lease must lie in {bands}, or none of them.",
        )


# ------------------------------------------------------------------------------------------- who


def _who(case: Case) -> Iterator[RuleFinding]:
    who, member = case.policy.who, case.request.member
    if not case.policy.lets_in(member):
        named = " or ".join(who.group or ())
        yield _refusal(
            ReasonCode.NOT_ELIGIBLE, "node", f"{case.request.node.name} is for members of {named}."
        )
    if who.cohort_key is None:
        return
    cohort = member.attributes.get(who.cohort_key)
    days = who.cohorts.get(cohort or "")
    weekday = DAYS[case.policy.clock.local_date(case.start).weekday()]
    if days is None:
        help_ = "an administrator can set it" if member.is_staff else "ask staff"
        message = f"Your {who.cohort_key}, which decides your days, is not set; {help_}."
        yield RuleFinding(
            Reason(ReasonCode.COHORT_DAY, "start", message), refuses=who.cohorts_enforced
        )
    elif weekday not in days:
        yield RuleFinding(
            Reason(
                ReasonCode.COHORT_DAY,
                "start",
                f"The cohort {cohort} may not book on {weekday.title()}; its days are "
                f"{', '.join(days)}.",
                {"days": ", ".join(days)},
            ),
            refuses=who.cohorts_enforced,
        )


def _churn(case: Case) -> Iterator[RuleFinding]:
    churn = case.policy.cancel.churn
    used = case.situation.cancels_today
    if churn is None:
        return
    limit = churn.max_cancels + case.extra("churn")
    if used > limit:
        yield _refusal(
            ReasonCode.CHURN,
            "start",
            f"You cancelled {used} leases today and the limit is {limit}. Book again tomorrow.",
            used=used,
            limit=limit,
        )


def _no_shows(case: Case) -> Iterator[RuleFinding]:
    """Restrict booking after too many no-shows: less far ahead for a while, or only walk-ins."""
    rule, now = case.policy.no_show, case.now
    if rule.strikes is None or rule.penalty_days is None:
        return
    since = now - timedelta(days=rule.within_days)
    starts = sorted(start for start in case.situation.no_shows if start >= since)
    used, limit = len(starts), rule.strikes + case.extra("no_shows")
    told = f"You did not show up for {used} of your leases in the last {rule.within_days} days"
    numbers: dict[str, int | str] = {"used": used, "limit": limit, "within_days": rule.within_days}
    if starts and used == limit - 1:
        message = f"{told}. After one more, booking is restricted for {rule.penalty_days} days."
        yield RuleFinding(Reason(ReasonCode.NO_SHOWS, "start", message, numbers), refuses=False)
    if used < limit:
        return
    until = starts[-1] + timedelta(days=rule.penalty_days)
    ahead = timedelta(days=rule.penalty_horizon_days)
    if now >= until or (ahead and case.start <= now + ahead):
        return
    may = f"book up to {ahead.days} days ahead" if ahead else "use walk-ins"
    yield _refusal(
        ReasonCode.NO_SHOWS,
        "start",
        f"{told}; {limit} or more restrict booking. Until {case.show(until)} you may only "
        f"{may}. Staff can grant an exception.",
        **numbers,
        until=case.stamp(until),
        horizon_days=ahead.days,
    )


# ------------------------------------------------------------------------- other leases, the node


def _node(case: Case) -> Iterator[RuleFinding]:
    name = case.request.node.name
    if not case.situation.node_available:
        yield _refusal(ReasonCode.NODE_DOWN, "node", f"{name} cannot be leased now.")
    slots, size = case.request.node.slots, case.request.size
    if case.request.kind is RequestKind.EXTENSION and case.prolonged is not None:
        start = case.prolonged.end  # the hours before are its own already
    else:
        start = max(case.start, case.now)  # the past part of the current hour belongs to nobody
    is_whole = case.request.num_slots is None  # leased with the slots that are out of service
    fit = slots if is_whole else slots - case.situation.out_of_service
    free = free_slots(case.holds, of=fit, start=start, end=case.end)
    if free >= size:
        return
    over = [span for span in case.holds if span.start < case.end and span.end > start]
    whole = next((span for span in over if case.request.node.size(span.num_slots) >= slots), None)
    if whole is not None:
        is_own = any(fact.id == whole.lease_id for fact in case.own)
        mine = f"You hold these hours already: your lease of {name} is from"
        holder = mine if is_own else f"{name} is held from"
        yield _refusal(
            ReasonCode.NODE_TAKEN,
            "start",
            f"{holder} {case.show(whole.start)} to {case.show(whole.end)}.",
            held_from=case.stamp(whole.start),
            held_until=case.stamp(whole.end),
        )
    else:
        verb = "is" if free == 1 else "are"
        yield _refusal(
            ReasonCode.NODE_TAKEN,
            "start",
            f"{free} of {gpus_text(slots)} of {name} {verb} free from {case.show(start)} to "
            f"{case.show(case.end)}; this block needs {size}.",
            free_gpus=free,
            asked=size,
        )


def _own(case: Case) -> Iterator[RuleFinding]:
    """Limit the number of leases a person may hold: in all, ahead, and at one time."""
    live = [fact for fact in case.own if fact.state in LIVE_LEASE]
    for quota in case.policy.quotas.values():
        if case.request.kind is RequestKind.BOOKING:
            limits = (
                (quota.max_open_leases, "open", _is_open),
                (quota.max_future_leases, "future", partial(_is_to_come, now=case.now)),
            )
            for given, word, counted in limits:
                if given is None:
                    continue
                limit, used = given + case.extra("too_many_open"), sum(map(counted, live))
                if used >= limit:
                    yield _refusal(
                        ReasonCode.TOO_MANY_OPEN,
                        "hours",
                        f"You have {used} {word} leases and the limit is {limit}. Cancel one, "
                        "or wait until one has ended.",
                        used=used,
                        limit=limit,
                    )
        if quota.max_concurrent_leases is not None:
            limit = quota.max_concurrent_leases + case.extra("overlaps_own")
            used = _at_one_time([(f.start, f.end) for f in live], case.start, case.end)
            if used >= limit:
                yield _refusal(
                    ReasonCode.OVERLAPS_OWN,
                    "start",
                    f"You already have {used} leases at this time and the limit is {limit} at "
                    "once.",
                    used=used,
                    limit=limit,
                )


def _is_open(fact: LeaseFact) -> bool:
    return fact.state in OPEN


def _is_to_come(fact: LeaseFact, *, now: datetime) -> bool:
    return fact.state is LeaseState.BOOKED and fact.start > now


def _at_one_time(spans: list[tuple[datetime, datetime]], start: datetime, end: datetime) -> int:
    """Return the largest number of the spans over one moment of [start, end)."""
    beside = [span for span in spans if span[0] < end and span[1] > start]
    edges = [max(start, a) for a, _ in beside]
    return max((sum(a <= moment < b for a, b in beside) for moment in edges), default=0)


def _adjacency(case: Case) -> Iterator[RuleFinding]:
    rule, rest = case.policy.adjacency, timedelta(minutes=case.policy.adjacency.cooldown_min)
    same = [f for f in case.own if f.node.id == case.request.node.id and f.counts]
    if rule.same_user_back_to_back is BackToBack.MERGE:
        limit = max(case.block_hours)
        if case.merged is not None and case.merged.hours > limit:
            yield _refusal(
                ReasonCode.MERGED_TOO_LONG,
                "start",
                f"Together with your adjacent lease this is one block of {case.merged.hours} "
                f"hours on {case.request.node.name}; the limit is {limit}.",
                used=case.merged.hours,
                limit=limit,
            )
    touching = any(f.end == case.start or f.start == case.end for f in same)
    if rule.same_user_back_to_back is BackToBack.FORBID and touching:
        yield _refusal(
            ReasonCode.BACK_TO_BACK,
            "start",
            f"You have a lease on {case.request.node.name} adjacent to this one. Leave a "
            "break between them.",
        )
    if case.is_part:  # leases at the same time do not follow each other
        same = [f for f in same if f.end <= case.start or f.start >= case.end]
    close = [f for f in same if f.start - case.end < rest and case.start - f.end < rest and rest]
    if close and not (touching and rule.same_user_back_to_back is not BackToBack.FORBID):
        minutes = rule.cooldown_min
        yield _refusal(
            ReasonCode.BACK_TO_BACK,
            "start",
            f"Leave {minutes} minutes between two leases on {case.request.node.name}.",
            limit=minutes,
        )


def _gap(case: Case) -> Iterator[RuleFinding]:
    rule = case.policy.gaps
    if rule.mode is GapMode.OFF or case.end <= case.start:
        return
    lost = lost_hours(case)
    if lost:
        hours = "hour" if lost == 1 else "hours"
        yield RuleFinding(
            Reason(
                ReasonCode.LEAVES_GAP,
                "start",
                f"This block leaves a gap of {lost} {hours} on {case.request.node.name} into "
                "which no block fits. Start when another lease ends, or leave enough time "
                "for a block.",
                {"lost_hours": lost},
            ),
            refuses=rule.mode is GapMode.HARD,
        )


# --------------------------------------------------------------------------- walk-ins, extensions


def _walk_in(case: Case) -> Iterator[RuleFinding]:
    rule = case.policy.walk_in
    node = case.request.node.name
    if not rule.allowed:
        yield _refusal(
            ReasonCode.WALK_IN_REFUSED, "node", f"{node} does not allow walk-ins. Book it first."
        )
        return
    if rule.max_gpus is not None and case.request.size > rule.max_gpus:
        yield _refusal(
            ReasonCode.BAD_SIZE,
            "gpus",
            f"A walk-in on {node} may have at most {gpus_text(rule.max_gpus)}, and this one needs "
            f"{case.request.size}. Use fewer ranks, or book a block.",
            limit=rule.max_gpus,
            asked=case.request.size,
        )
    if rule.max_hours is not None:
        usable_h = (case.usable_end - case.start) / HOUR
        if usable_h > rule.max_hours:
            yield _refusal(
                ReasonCode.BAD_BLOCK_LENGTH,
                "hours",
                f"A walk-in on {node} may last at most {rule.max_hours} h, and this one would "
                f"last {usable_h:.2g}. Request less wall time, or book a block.",
                limit=rule.max_hours,
                asked=round(usable_h, 2),
            )


def _extension(case: Case) -> Iterator[RuleFinding]:
    rule, old = case.policy.extend, case.prolonged
    if not rule.allowed:
        yield _refusal(
            ReasonCode.EXTENSION_REFUSED, "hours", "The booking rules do not allow extensions."
        )
        return
    if old is None:
        yield _refusal(ReasonCode.EXTENSION_REFUSED, "hours", "There is no lease to extend.")
        return
    more = (case.end - old.end) / HOUR
    if more <= 0 or more % rule.step_hours:
        yield _refusal(
            ReasonCode.BAD_BLOCK_LENGTH,
            "hours",
            f"A lease can be extended by {rule.step_hours} h or a multiple of it, not by {more:g}.",
            limit=rule.step_hours,
            asked=more,
        )
    hours, limit = case.hours, case.policy.grid.max_block_hours
    if hours > limit:
        yield _refusal(
            ReasonCode.BAD_BLOCK_LENGTH,
            "hours",
            f"A lease may have at most {limit} hours including extensions, not {hours}.",
            limit=limit,
            asked=hours,
        )
    if rule.only_in_last_min is not None:
        opens = old.end - timedelta(minutes=rule.only_in_last_min)
        if case.now < opens:
            yield _refusal(
                ReasonCode.TOO_SOON,
                "hours",
                f"A lease can only be extended in its last {rule.only_in_last_min} minutes, "
                f"from {case.show(opens)} on.",
                limit=rule.only_in_last_min,
                opens_at=case.stamp(opens),
            )


# ---------------------------------------------------------------------------------------- quotas


def _slots(case: Case) -> Iterator[RuleFinding]:
    for reason in quotas.slots(case):
        yield RuleFinding(reason)


def _extension_slots(case: Case) -> Iterator[RuleFinding]:
    if "quota_ok" in case.policy.extend.needs:
        yield from _slots(case)


def _caps(case: Case) -> Iterator[RuleFinding]:
    for reason in quotas.caps(case):
        yield RuleFinding(reason)


OPEN = (LeaseState.BOOKED, LeaseState.ACTIVE)
RULES: dict[RequestKind, tuple[Rule, ...]] = {
    RequestKind.BOOKING: (
        _grid,
        _length,
        _size,
        _moment,
        _window,
        _crossing,
        _who,
        _churn,
        _no_shows,
        _node,
        _own,
        _adjacency,
        _slots,
        _caps,
        _gap,
    ),
    RequestKind.WALK_IN: (
        _walk_in,
        _size,
        _window,
        _crossing,
        _who,
        _node,
        _own,
        _slots,
        _caps,
    ),
    RequestKind.EXTENSION: (
        _extension,
        _window,
        _crossing,
        _node,
        _own,
        _extension_slots,
        _caps,
    ),
}


def refusing(kind: RequestKind, policy: Policy) -> tuple[Rule, ...]:
    """Return the rules for such requests that can refuse one under this policy."""
    rules = RULES[kind]
    return rules if policy.gaps.mode is GapMode.HARD else tuple(r for r in rules if r is not _gap)


def _refusal(
    code: ReasonCode, param: str, message: str, **numbers: int | float | str
) -> RuleFinding:
    return RuleFinding(Reason(code, param, message, numbers))
