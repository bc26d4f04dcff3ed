"""/v1/leases/forecast: use of the days before a window closes."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import groupby

from fastapi import APIRouter
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.leases.answer_cache import AnswerCache
from api.leases.schemas import ForecastDayView, ForecastView
from api.policies.bands import windows_of
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import Page
from core.base.clock import utc_now
from core.leases.active_policies import active_policies
from core.leases.situation import BOOKABLE, all_bookers, counted_since, leases_of_all, ref_of
from core.policy import quotas
from core.policy.case import Case
from core.policy.document import Policy
from core.policy.forecast import Budget, Forecast, FreeDay, Spender, forecast
from core.policy.grid import HOUR, hour_ceiling
from core.policy.local_time import edge, show
from core.policy.matching import ALL
from core.policy.sections import Quota, QuotaPeriod, QuotaScope
from core.policy.verdict import (
    BookingRequest,
    HourUnit,
    LeaseFact,
    Member,
    NodeRef,
    Remainder,
    Situation,
)
from core.states import LIVE_LEASE
from core.tables.admin import AuditEntry
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node

router = APIRouter(prefix="/v1/leases", tags=["leases"])

AHEAD = timedelta(days=14)
DAY = timedelta(days=1)


class Forecasts(AnswerCache[list[ForecastView]]):
    """The forecasts of this process, until their key changes."""


@router.get("/forecast", summary="Forecast demand before windows close")
def get_forecast(person: SignedIn, process: ProcessDep) -> Page[ForecastView]:
    """Forecast, for every policy whose last window closes within a fortnight, how full each day
    becomes if the rest of everybody's quotas is spent evenly, and how much is free. No names are
    given."""
    now = utc_now()
    forecasts = process.service(Forecasts)
    with process.read() as session:
        data = forecasts.read(_key(session, now), lambda: list(_forecasts(session, now)))
    return Page[ForecastView](data=data)


# Built once: each look at a forecast asks whether it has changed.
HELD = select(func.count(), func.max(Occupancy.id)).where(Occupancy.live)
LEASES = select(func.count(), func.sum(Lease.generation)).where(Lease.state.in_(LIVE_LEASE))
NODES = select(Node.id, Node.class_name).where(Node.state.in_(BOOKABLE)).order_by(Node.id)
LAST_ENTRY = select(func.max(AuditEntry.id))


def _key(session: Session, now: datetime) -> Hashable:
    """Return a key that changes whenever a forecast may change.

    Rules and people change with an entry in the audit log, leases with what they hold.
    """
    return (
        now.replace(second=0, microsecond=0),
        session.scalar(LAST_ENTRY),
        tuple(session.execute(HELD).one()),
        tuple(session.execute(LEASES).one()),
        tuple(tuple(row) for row in session.execute(NODES)),
    )


@dataclass(frozen=True)
class People:
    """All people whom the policy admits, and the leases that count against their quotas."""

    members: Sequence[Member]
    facts: Sequence[LeaseFact]


def _forecasts(session: Session, now: datetime) -> Iterator[ForecastView]:
    nodes = session.scalars(select(Node).where(Node.state.in_(BOOKABLE)).order_by(Node.name)).all()
    refs = [ref_of(node) for node in nodes]
    for policy in active_policies(session):
        begins, closes_at = policy.whole
        group = [ref for ref in refs if policy.judges(ref) and windows_of(policy, ref)]
        if not group or not now < closes_at <= now + AHEAD:
            continue
        start = hour_ceiling(max(now, begins), policy.grid.anchor)
        people = _people(session, policy, since=counted_since(policy, now))
        days = _free_days(session, group, policy, start, closes_at)
        spenders = _spenders(policy, group[0], people, days, now=now)
        if spenders:
            yield _view(policy, group, people, forecast(days, spenders))


def _spenders(
    policy: Policy, node: NodeRef, people: People, days: Sequence[FreeDay], *, now: datetime
) -> list[Spender]:
    """Return what every lab, and the people without one, may still spend on these days. Empty if no
    quota counts hours."""
    stretches = {
        period: _stretches(policy, period, days)
        for period in {quota.period for quota in policy.quotas.values()}
    }
    facts, of_labs = _by_owner(people.facts)
    hours: dict[str | None, dict[Key, float]] = defaultdict(dict)
    idle: dict[frozenset[str], list[Rest]] = {}
    for member in people.members:
        situation = Situation(
            now=now,
            own=facts.get(member.id, ()),
            lab=tuple(fact for lab_id in member.lab_ids for fact in of_labs.get(lab_id, ())),
        )
        is_idle = not situation.own and not member.exceptions  # all of a lab alike
        rests = idle.get(member.lab_ids) if is_idle else None
        if rests is None:
            rests = list(_rests_of(member, node, situation, policy, days, stretches))
            if is_idle:
                idle[member.lab_ids] = rests
        found = hours[member.lab_id]
        for key, scope, rest in rests:
            found[key] = rest + (found.get(key, 0.0) if scope is QuotaScope.USER else 0.0)
    return [_spender(found) for found in hours.values() if found]


def _rests_of(
    member: Member,
    node: NodeRef,
    situation: Situation,
    policy: Policy,
    days: Sequence[FreeDay],
    stretches: Mapping[QuotaPeriod, Sequence[tuple[int, int]]],
) -> Iterator["Rest"]:
    """Yield the rest of every quota that counts hours, for one person, on each of the quota's
    stretches."""
    for first in sorted({first for found in stretches.values() for first, _ in found}):
        at = _last_hour(policy, days[first])
        case = Case.of(BookingRequest(member, node, at, at + HOUR), situation, policy)
        left = quotas.left(case, granted=False)
        for name, quota in policy.quotas.items():
            has_purse = bool(quota.one_of) and name in policy.charged_quotas
            for end in (end for begin, end in stretches[quota.period] if begin == first):
                for kind, rest in _rests(
                    name, quota, left, node, unit_of(policy), has_purse=has_purse
                ):
                    yield (name, kind, first, end), quota.scope, rest


def _by_owner(
    facts: Sequence[LeaseFact],
) -> tuple[dict[str, tuple[LeaseFact, ...]], dict[str, tuple[LeaseFact, ...]]]:
    """Return the leases by person, and by lab."""
    own: dict[str, list[LeaseFact]] = defaultdict(list)
    of_lab: dict[str, list[LeaseFact]] = defaultdict(list)
    for fact in facts:
        own[fact.user_id].append(fact)
        if fact.lab_id is not None:
            of_lab[fact.lab_id].append(fact)
    return (
        {owner: tuple(found) for owner, found in own.items()},
        {lab_id: tuple(found) for lab_id, found in of_lab.items()},
    )


Key = tuple[str, str, int, int]
"""Name of the quota, PURSE or the name of its cap, and the first day and the day after the last."""
Rest = tuple[Key, QuotaScope, float]
"""Hours that are left under the key, for a person or for a lab."""
PURSE = ""


def _spender(hours: Mapping[Key, float]) -> Spender:
    def budgets(are_purses: bool) -> list[Budget]:
        return [
            Budget(rest, first, end)
            for (_, kind, first, end), rest in hours.items()
            if (kind == PURSE) is are_purses
        ]

    return Spender(purses=budgets(True), caps=budgets(False))


def unit_of(policy: Policy) -> HourUnit:
    """Return the unit of a policy's forecast: GPU-hours if it sells parts of nodes."""
    sells_parts = any(pool.gpus for pool in policy.pools.values())
    return HourUnit.GPU if sells_parts else HourUnit.NODE


def _rests(
    name: str,
    quota: Quota,
    left: Sequence[Remainder],
    node: NodeRef,
    unit: HourUnit,
    *,
    has_purse: bool,
) -> Iterator[tuple[str, float]]:
    """Yield the rest of the quota's slots, of its cap for all hours, and of its caps by band."""

    def hours(one: Remainder) -> float:
        if unit is HourUnit.NODE:
            return one.hours
        return one.hours * node.slots if one.gpu_hours is None else one.gpu_hours

    of_it = [one for one in left if one.quota == name and not one.by_swap]
    if has_purse:
        yield PURSE, max((hours(one) for one in of_it if one.blocks), default=0.0)
    bands = [one for one in of_it if not one.blocks]
    for one in bands:
        if one.alternative == ALL:
            yield ALL, hours(one)
    caps = quota.max_node_hours if unit is HourUnit.NODE else quota.max_gpu_hours
    if bands and caps.keys() != {ALL}:
        yield "bands", sum(hours(one) for one in bands if one.alternative != ALL)


def _stretches(
    policy: Policy, period: QuotaPeriod, days: Sequence[FreeDay]
) -> list[tuple[int, int]]:
    """Return the days that count together, as index of the first and after the last. A night counts
    to the day on which it begins."""

    def together(index: int) -> object:
        start = days[index].start
        if period is QuotaPeriod.WEEK:
            return policy.clock.week(start)
        return None if period is QuotaPeriod.WINDOW else index

    groups = [list(found) for _, found in groupby(range(len(days)), together)]
    return [(found[0], found[-1] + 1) for found in groups]


def _last_hour(policy: Policy, day: FreeDay) -> datetime:
    """Return a start in the day's last hour, which also lies in the night that begins on it."""
    midnight = _midnight(policy, day.start)
    return max(day.start, min(midnight, policy.whole[1]) - HOUR)


def _midnight(policy: Policy, at: datetime) -> datetime:
    """Return the end of the local day."""
    return edge(datetime.combine(policy.clock.local_date(at) + DAY, time()), policy.zone)


def _people(session: Session, policy: Policy, *, since: datetime) -> People:
    return People(
        members=[member for member in all_bookers(session) if policy.lets_in(member)],
        facts=leases_of_all(session, since=since),
    )


def _free_days(
    session: Session, nodes: Sequence[NodeRef], policy: Policy, start: datetime, end: datetime
) -> list[FreeDay]:
    """Return the days from `start` on in which leases may lie, with their hours in the policy's
    unit."""
    counts_gpus = unit_of(policy) is HourUnit.GPU
    held: dict[str, list[tuple[datetime, datetime, int | None]]] = defaultdict(list)
    rows = session.execute(
        select(
            Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end, Occupancy.num_slots
        ).where(
            Occupancy.node_id.in_([node.id for node in nodes]),
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
    )
    for node_id, held_from, held_to, num_slots in rows:
        held[node_id].append((held_from, held_to, num_slots))
    found = []
    at = start
    while at < end:
        until = min(end, _midnight(policy, at))
        usable = free = 0.0
        for node in nodes:
            for opens, closes in merged((w.start, w.end) for w in windows_of(policy, node)):
                first, last = max(at, opens), min(until, closes)
                slots = node.slots if counts_gpus else 1
                usable += hours_between(first, last) * slots
                free += hours_between(first, last) * slots - sum(
                    hours_between(max(first, held_from), min(last, held_to))
                    * (node.size(num_slots) if counts_gpus else 1)
                    for held_from, held_to, num_slots in held[node.id]
                )
        if usable:
            found.append(FreeDay(at, free))
        at = until
    return found


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the same time as spans that neither overlap nor touch."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def hours_between(start: datetime, end: datetime) -> float:
    """Return the hours from `start` to `end`; 0 if the end is not after the start."""
    return max(timedelta(0), end - start) / HOUR


def _view(
    policy: Policy,
    nodes: Sequence[NodeRef],
    people: People,
    found: Forecast,
) -> ForecastView:
    return ForecastView(
        policy=policy.id,
        zone=policy.policy.zone,
        nodes=[node.name for node in nodes],
        closes_at=policy.whole[1],
        unit=unit_of(policy),
        people=len(people.members),
        unspent_hours=round(found.unspent_hours, 1),
        free_hours=round(found.free_hours, 1),
        unmet_hours=round(found.unmet_hours, 1),
        days=[
            ForecastDayView(
                start=day.start,
                free_hours=round(day.free_hours, 1),
                wanted_hours=round(day.wanted_hours, 1),
            )
            for day in found.days
        ],
        message=_sentence(found, policy),
    )


def _sentence(found: Forecast, policy: Policy) -> str:
    unspent, free, unit = found.unspent_hours, found.free_hours, unit_of(policy)
    full = "node" if unit is HourUnit.NODE else "GPU"
    begin = (
        f"Everybody's quotas together have {unspent:,.0f} {unit} left; {free:,.0f} "
        f"{unit} are free until then."
    )
    if unspent == 0:
        return f"All quotas are used up; {free:,.0f} {unit} are free until then."
    if found.unmet_hours >= 0.5:
        return (
            f"{begin} If everybody uses their quota at an even rate, {found.unmet_hours:,.0f} "
            f"{unit} will not find a free {full}: book early."
        )
    if found.full_from is not None:
        return (
            f"{begin} If everybody uses their quota at an even rate, no hour is free from "
            f"{show(found.full_from, policy.zone)} on."
        )
    return (
        f"{begin} If everybody uses their quota, {100 * unspent / free:.0f} % of the free "
        "hours are taken."
    )
