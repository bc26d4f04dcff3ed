"""/v1/leases/forecast: how full the days become before a window closes."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from fastapi import APIRouter
from sqlalchemy import select, true
from sqlalchemy.orm import Session

from api.auth import SignedIn
from api.leases.lease_schemas import ForecastDayView, ForecastView
from api.policies.bands import windows_of
from api.process import ProcessDep
from api.schemas import Page
from core.active_policies import active_policies
from core.clock import utc_now
from core.policy import quotas
from core.policy.asked import Asked
from core.policy.document import Policy
from core.policy.forecast import Forecast, FreeDay, forecast
from core.policy.grid import HOUR, hour_ceiling
from core.policy.local_time import edge, show
from core.policy.matching import ALL
from core.policy.sections import Period, Scope
from core.policy.verdict import Grant, LeaseFact, Left, Member, NodeRef, Request, Situation
from core.situation import BOOKABLE, counted_since, lease_facts, ref_of
from core.tables.kinds import Role
from core.tables.leases import Occupancy
from core.tables.nodes import Node
from core.tables.people import Grant as GrantRow
from core.tables.people import Lab, Membership, User

router = APIRouter(prefix="/v1/leases", tags=["leases"])

AHEAD = timedelta(days=14)
DAY = timedelta(days=1)


@router.get("/forecast", summary="Forecast demand before windows close")
def get_forecast(person: SignedIn, process: ProcessDep) -> Page[ForecastView]:
    """For every policy whose last window closes within a fortnight: what is left of everybody's
    quotas, beside what is free, and how full each day becomes if it is spent evenly. No names."""
    now = utc_now()
    with process.read() as session:
        return Page[ForecastView](data=list(_forecasts(session, now)))


@dataclass(frozen=True)
class People:
    """Everybody who may book, and what counts against their quotas."""

    members: Sequence[Member]
    exceptions: Mapping[str, Sequence[Grant]]
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
        unspent = unspent_hours(policy, group[0], people, start=start, now=now)
        if unspent is not None:
            days = _free_days(session, group, policy, start, closes_at)
            yield _view(policy, group, people, forecast(days, unspent), unspent)


def unspent_hours(
    policy: Policy, node: NodeRef, people: People, *, start: datetime, now: datetime
) -> float | None:
    """Node-hours of the quotas of the whole window that nobody has booked yet; None: no such quota
    counts hours. Quotas by week, day or night begin anew and are left out."""
    own: dict[str | None, list[float]] = defaultdict(list)
    of_lab: dict[str | None, float] = {}
    for member in people.members:
        situation = Situation(
            now=now,
            own=tuple(fact for fact in people.facts if fact.user_id == member.id),
            lab=tuple(fact for fact in people.facts if fact.lab_id in member.lab_ids),
            exceptions=tuple(people.exceptions.get(member.id, ())),
        )
        asked = Asked.of(Request(member, node, start, start + HOUR), situation, policy)
        left = quotas.left(asked, granted=False)
        rest = _rest(policy, left, Scope.USER)
        if rest is not None:
            own[member.lab_id].append(rest)
        shared = _rest(policy, left, Scope.LAB)
        if shared is not None and member.lab_id is not None:
            of_lab[member.lab_id] = shared
    if not own and not of_lab:
        return None
    return sum(
        min(sum(own[lab]) if lab in own else math.inf, of_lab.get(lab, math.inf))
        for lab in own.keys() | of_lab.keys()
    )


def _rest(policy: Policy, left: Sequence[Left], scope: Scope) -> float | None:
    """What all quotas of the window together leave; None: none of this scope counts hours."""
    bounds: list[float] = []
    choices: dict[str, float] = {}
    for name, quota in policy.quotas.items():
        if quota.period is not Period.WINDOW or quota.scope is not scope:
            continue
        of_it = [one for one in left if one.quota == name and not one.by_swap]
        if quota.one_of:  # one of its alternatives; another quota may be spent beside it
            choices[name] = max((one.hours for one in of_it if one.blocks), default=0.0)
        bands = [one for one in of_it if not one.blocks]
        bounds += [one.hours for one in bands if one.alternative == ALL]
        if bands and quota.max_node_hours.keys() != {ALL}:
            bounds.append(sum(one.hours for one in bands if one.alternative != ALL))
    if choices:
        bounds.append(sum(choices.values()))
    return min(bounds, default=None)


def _people(session: Session, policy: Policy, *, since: datetime) -> People:
    users = session.scalars(
        select(User).where(User.disabled.is_(False), User.role == Role.USER).order_by(User.id)
    ).all()
    labs: dict[str, list[tuple[str, str, list[str]]]] = defaultdict(list)
    rows = session.execute(
        select(Membership.user_id, Lab.id, Lab.name, Lab.groups).join(
            Lab, Lab.id == Membership.lab_id
        )
    )
    for user_id, lab_id, name, groups in rows:
        labs[user_id].append((lab_id, name, groups))
    members = [
        Member(
            id=user.id,
            lab_ids=frozenset(lab_id for lab_id, _, _ in labs[user.id]),
            groups=frozenset(
                group for _, name, groups in labs[user.id] for group in (name, *groups)
            ),
            attributes={name: str(value) for name, value in user.attributes.items()},
            is_staff=False,
        )
        for user in users
    ]
    exceptions: dict[str, list[Grant]] = defaultdict(list)
    for row in session.scalars(select(GrantRow).where(GrantRow.revoked_at.is_(None))):
        exceptions[row.user_id].append(
            Grant(row.id, row.rule, row.extra, row.starts_at, row.ends_at, row.why)
        )
    return People(
        members=[member for member in members if policy.lets_in(member)],
        exceptions=exceptions,
        facts=lease_facts(session, true(), since=since),
    )


def _free_days(
    session: Session, nodes: Sequence[NodeRef], policy: Policy, start: datetime, end: datetime
) -> list[FreeDay]:
    """The days from `start` on in which leases may lie."""
    held: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    rows = session.execute(
        select(Occupancy.node_id, Occupancy.hold_start, Occupancy.hold_end).where(
            Occupancy.node_id.in_([node.id for node in nodes]),
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
    )
    for node_id, held_from, held_to in rows:
        held[node_id].append((held_from, held_to))
    found = []
    at = start
    while at < end:
        tomorrow = policy.clock.local_date(at) + DAY
        until = min(end, edge(datetime.combine(tomorrow, time()), policy.zone))
        usable = free = 0.0
        for node in nodes:
            for opens, closes in merged((w.start, w.end) for w in windows_of(policy, node)):
                first, last = max(at, opens), min(until, closes)
                usable += hours_between(first, last)
                free += hours_between(first, last) - sum(
                    hours_between(max(first, held_from), min(last, held_to))
                    for held_from, held_to in held[node.id]
                )
        if usable:
            found.append(FreeDay(at, free))
        at = until
    return found


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The same time as spans that do not touch."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def hours_between(start: datetime, end: datetime) -> float:
    """0 where the end is not after the start."""
    return max(timedelta(0), end - start) / HOUR


def _view(
    policy: Policy,
    nodes: Sequence[NodeRef],
    people: People,
    found: Forecast,
    unspent: float,
) -> ForecastView:
    return ForecastView(
        policy=policy.id,
        zone=policy.policy.zone,
        nodes=[node.name for node in nodes],
        closes_at=policy.whole[1],
        people=len(people.members),
        unspent_hours=round(unspent, 1),
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
        message=_sentence(found, unspent, policy),
    )


def _sentence(found: Forecast, unspent: float, policy: Policy) -> str:
    free = found.free_hours
    begin = f"{unspent:,.0f} node-hours of quota are left, {free:,.0f} are free until then."
    if unspent == 0:
        return f"Every quota is spent; {free:,.0f} node-hours are free until then."
    if found.unmet_hours > 0:
        return (
            f"{begin} If everybody spends theirs evenly, {found.unmet_hours:,.0f} find no room: "
            "book early."
        )
    if found.full_from is not None:
        return (
            f"{begin} If everybody spends theirs evenly, no hour is free from "
            f"{show(found.full_from, policy.zone)} on."
        )
    return f"{begin} If everybody spends theirs, {100 * unspent / free:.0f} % of the free hours go."
