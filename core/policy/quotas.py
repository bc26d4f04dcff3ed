"""Quotas: alternatives of slots, caps of hours, and the rest of both. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from core.base.reasons import ReasonCode, quota_code
from core.policy.case import Case, QuotaUse
from core.policy.document import Policy
from core.policy.matching import ALL, CountedLease, Room, rooms_left
from core.policy.sections import Quota, QuotaChoice, QuotaPeriod, QuotaScope, QuotaSlot
from core.policy.verdict import HourUnit, Reason, Remainder, RemainingBlock
from core.policy.words import gpus_text
from core.states import LeaseState

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
WHEN = {
    QuotaPeriod.WINDOW: "",
    QuotaPeriod.WEEK: " this week",
    QuotaPeriod.DAY: " that day",
    QuotaPeriod.NIGHT: " that night",
}


def slots(case: Case) -> Iterator[Reason]:
    """Refuse a request that fits no alternative of its quota together with the counted leases."""
    name = case.charge.quota
    if name is None or not case.policy.quotas[name].one_of:
        return
    quota, mine = case.policy.quotas[name], case.mine
    extra = case.extra(quota_code(name))
    beside = (fact.id for fact in mine.facts)
    key = (name, case.key(mine, quota.period), extra, _shape_asked(case, quota), *beside)
    yield from case.remembered(quota.scope, key, lambda: tuple(_slots(case, name, quota, extra)))


def _shape_asked(case: Case, quota: Quota) -> CountedLease | tuple[tuple[str, ...], int, int]:
    """Return the part of the request that the slots depend on.

    Its times belong to it only where leases may not overlap and another counted one does.
    """
    mine = case.mine.counted
    if any(choice.distinct_times for choice in quota.one_of):
        others = (use.counted for use in case.uses(quota.scope))
        if any(one.start < mine.end and mine.start < one.end for one in others):
            return mine
    return mine.pools, mine.hours, mine.gpus


def _slots(case: Case, name: str, quota: Quota, extra: int) -> Iterator[Reason]:
    before = _counted(case, name, quota)
    counted = _with(before, case.mine)
    if any(_rooms(choice, counted, extra) is not None for choice in quota.one_of):
        return
    limit = max(len(choice.slots) for choice in quota.one_of) + extra
    allowed = ", or ".join(_slots_text(choice.slots, case.policy) for choice in quota.one_of)
    have = ", ".join(_use_text(use) for use in before) or "nothing"
    whose = "your lab has" if quota.scope is QuotaScope.LAB else "you have"
    at_one_time = any(
        choice.distinct_times
        and rooms_left(_as_counted(counted), _as_rooms(choice), distinct_times=False, extra=extra)
        is not None
        for choice in quota.one_of
    )
    yield Reason(
        ReasonCode.DISTINCT_TIMES if at_one_time else quota_code(name),
        "start",
        (
            f"The leases of quota {name} must lie at different times; {whose} {have}."
            if at_one_time
            else f"Quota {name} allows {allowed}{WHEN[quota.period]}; {whose} already {have}."
            if before
            else (
                f"Quota {name} allows {allowed}{WHEN[quota.period]}; this block is none of these."
            )
        ),
        {
            "used": len(before),
            "limit": limit,
            "used_hours": sum(use.hours for use in before),
            "asked_hours": case.mine.hours,
        },
    )


def caps(case: Case) -> Iterator[Reason]:
    """Refuse a request that exceeds a cap of node-hours or GPU-hours."""
    if not case.is_charged:
        return
    for quota in case.policy.quotas.values():
        code = ReasonCode.LAB_CAP if quota.scope is QuotaScope.LAB else ReasonCode.USER_CAP
        for band, limit, unit in _caps_of(case, quota):
            if band not in (ALL, case.place.band):
                continue
            used, asked = case.used_hours(quota, band, unit), case.charge.counted_in(unit)
            if used + asked <= limit + case.extra(code):
                continue
            whose = "Your lab has" if quota.scope is QuotaScope.LAB else "You have"
            what = "" if band == ALL else f"{band} "
            yield Reason(
                code,
                "hours",
                f"{whose} used {used} of {limit + case.extra(code)} {what}{unit}"
                f"{WHEN[quota.period]}; this block needs {asked}.",
                {
                    "used": used,
                    "limit": limit + case.extra(code),
                    "asked_hours": asked,
                    "band": band,
                },
            )


def left(case: Case, *, granted: bool) -> tuple[Remainder, ...]:
    """Return the rest of the quotas in the period of the request, of those that are charged.

    With `granted`, the request itself is counted as used.
    """
    found: list[Remainder] = []
    for name, quota in case.policy.quotas.items():
        if quota.one_of and name in case.policy.charged_quotas:
            found += _slots_left(case, name, quota, granted=granted)
        for band, limit, unit in _caps_of(case, quota):
            used = case.used_hours(quota, band, unit)
            if granted and case.is_charged and band in (ALL, case.place.band):
                used += case.charge.counted_in(unit)
            code = ReasonCode.LAB_CAP if quota.scope is QuotaScope.LAB else ReasonCode.USER_CAP
            rest = max(0, limit + case.extra(code) - used)
            what = "" if band == ALL else f"{band} "
            whose = " of your lab" if quota.scope is QuotaScope.LAB else ""
            text = f"{rest} {what}{unit}{whose}{WHEN[quota.period]}"
            if unit is HourUnit.GPU:
                found.append(Remainder(name, band, (), text, gpu_hours=rest))
            else:
                found.append(Remainder(name, band, (), text, hours=rest))
    return tuple(found)


def _slots_left(case: Case, name: str, quota: Quota, *, granted: bool) -> Iterator[Remainder]:
    counted = _counted(case, name, quota)
    if granted and case.charge.quota == name:
        counted = _with(counted, case.mine)
    fixed = [use for use in counted if not _can_be_swapped(use, case)]
    extra = case.extra(quota_code(name))
    for choice in quota.one_of:
        rooms = _rooms(choice, counted, extra)
        if rooms:
            yield _left(name, choice, rooms, case.policy, by_swap=False)
        elif rooms is None and len(fixed) < len(counted):
            rooms = _rooms(choice, fixed, extra)
            if rooms:
                yield _left(name, choice, rooms, case.policy, by_swap=True)


def _left(
    quota: str, choice: QuotaChoice, rooms: tuple[Room, ...], policy: Policy, *, by_swap: bool
) -> Remainder:
    blocks = tuple(RemainingBlock(room.pools, room.hours, room.gpus) for room in rooms)
    text = _blocks_text(blocks, policy)
    if by_swap:
        text += ", in place of the present leases"
    hours = sum(block.hours for block in blocks)
    gpu_hours = [block.hours * block.gpus for block in blocks if block.gpus is not None]
    is_limited = len(gpu_hours) == len(blocks)
    return Remainder(
        quota, choice.name, blocks, text, by_swap, hours, sum(gpu_hours) if is_limited else None
    )


def _can_be_swapped(use: QuotaUse, case: Case) -> bool:
    return all(fact.state is LeaseState.BOOKED and fact.start > case.now for fact in use.facts)


def _counted(case: Case, name: str, quota: Quota) -> list[QuotaUse]:
    """Return the uses that count against the quota in the request's period, without its own."""
    key = case.key(case.mine, quota.period)
    return [
        use
        for use in case.uses(quota.scope)
        if use.quota == name and case.key(use, quota.period) == key
    ]


def _with(counted: Sequence[QuotaUse], mine: QuotaUse) -> list[QuotaUse]:
    """Add the request to the counted uses; leases that it merges with are counted in it."""
    inside = {fact.id for fact in mine.facts}
    return [*(use for use in counted if not inside & {f.id for f in use.facts}), mine]


def _rooms(choice: QuotaChoice, counted: Sequence[QuotaUse], extra: int) -> tuple[Room, ...] | None:
    return rooms_left(
        _as_counted(counted),
        _as_rooms(choice),
        distinct_times=choice.distinct_times,
        extra=extra,
    )


def _as_counted(uses: Sequence[QuotaUse]) -> list[CountedLease]:
    return [use.counted for use in uses]


def _as_rooms(choice: QuotaChoice) -> list[Room]:
    return [Room(slot.pool, slot.hours, slot.gpus) for slot in choice.slots]


def _caps_of(case: Case, quota: Quota) -> Iterator[tuple[str, int, HourUnit]]:
    """Yield band, limit and unit of each cap.

    A lab's cap does not apply to people without a lab.
    """
    if quota.scope is QuotaScope.LAB and case.request.member.lab_id is None:
        return
    limits = ((HourUnit.NODE, quota.max_node_hours), (HourUnit.GPU, quota.max_gpu_hours))
    for unit, by_band in limits:
        for band, limit in by_band.items():
            yield band, limit, unit


# ------------------------------------------------------------------------------------- in words


def _slots_text(wanted: Sequence[QuotaSlot], policy: Policy) -> str:
    blocks = [RemainingBlock(slot.pool, slot.hours, slot.gpus) for slot in wanted]
    return _blocks_text(blocks, policy)


def _blocks_text(blocks: Sequence[RemainingBlock], policy: Policy) -> str:
    """Format blocks for people.

    Like `one 2-hour block on a single-GPU node and one 2-hour block on another four-GPU node`.
    """
    parts = []
    for block, number in Counter(blocks).items():
        count = NUMBERS[number] if number < len(NUMBERS) else str(number)
        noun = "block" if number == 1 else "blocks"
        size = "" if block.gpus is None else f" of {gpus_text(block.gpus)}"
        where = _pools_text(block.pools, policy)
        parts.append(f"{count} {block.hours}-hour {noun}{size} on {where}")
    return " and ".join(parts)


def _pools_text(pools: Sequence[str], policy: Policy) -> str:
    if ALL in pools:
        return "any node"
    titles = []
    for name in pools:
        pool = policy.pools[name]
        alone = pool.nodes[0] if pool.nodes and len(pool.nodes) == 1 else f"a node of {name}"
        titles.append(pool.title or alone)
    return " or ".join(titles)


def _use_text(use: QuotaUse) -> str:
    fact = use.facts[0]
    size = f" of {gpus_text(fact.size)}" if fact.size < fact.node.slots else ""
    return f"{use.hours} h{size} on {fact.node.name}"
