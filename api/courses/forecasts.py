"""Forecast of a course: will the hours be enough, and who gets some?

The facts are read here; `core.courses.demand` simulates.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.courses.courses import find_course, find_exercise
from api.courses.schemas import (
    ArrivalView,
    CourseForecast,
    ForecastPoolView,
    NewPolicyForecast,
    NodeLoadView,
    ProspectView,
)
from api.courses.standings import students_of
from api.web.identity import Person
from core.base.errors import BadRequest, Conflict
from core.courses.demand import Booker, Demand, Outlook, alternatives, outlook
from core.courses.what_if import WhatIf, changed, made_up, nodes_named
from core.leases.active_policies import active_policies
from core.leases.situation import BOOKABLE, all_bookers, counted_since, leases_of_all, ref_of
from core.policy.document import Policy, policy_for
from core.policy.matching import ALL, Room
from core.policy.verdict import LeaseFact, Member, NodeRef, Span
from core.tables.leases import Occupancy
from core.tables.nodes import Node

CROWDED = 0.75  # share of booked hours; the first hours always pass unused
MADE_UP = "course"  # group of the students of a policy that is for everybody


def read_demand(
    session: Session, key: str, name: str, person: Person, what_if: WhatIf, *, now: datetime
) -> tuple[Demand, Mapping[str, str]]:
    """Return the demand of an exercise as it stands under these assumptions, and its students'
    names by id. Raises NotFound; Conflict if no node can be booked; BadRequest."""
    course = find_course(session, key, person)
    exercise = find_exercise(session, course, name)
    users = {user.id: user.name for user in students_of(session, course)}
    members = [member for member in all_bookers(session) if member.id in users]
    nodes = session.scalars(select(Node).where(Node.state.in_(BOOKABLE)).order_by(Node.name))
    refs = [ref_of(node) for node in nodes]
    if not refs:
        raise Conflict("No node can be booked. Enrol one, or end its maintenance.")
    policies = active_policies(session)
    probe = members[0] if members else Member("nobody", groups=frozenset({course.group}))
    judging = {ref: policy_for(probe, ref, policies) for ref in refs}
    policy_id, _ = Counter(one.id for one in judging.values()).most_common(1)[0]
    policy = next(one for one in judging.values() if one.id == policy_id)
    deadline = min(exercise.due_at, policy.whole[1])
    if what_if.days_left is None and deadline <= now:
        raise BadRequest(
            f"{exercise.name} was due {deadline:%Y-%m-%d %H:%M} UTC. Give days_left.",
            param="days_left",
        )
    facts: dict[str, list[LeaseFact]] = defaultdict(list)
    for fact in leases_of_all(session, since=counted_since(policy, now)):
        facts[fact.user_id].append(fact)
    mine = [ref for ref in refs if judging[ref].id == policy_id]
    demand = Demand(
        policy=policy,
        nodes=_holds(session, mine, now),
        students=[
            Booker(member, tuple(facts[member.id]))
            for member in sorted(members, key=lambda member: users[member.id])
        ],
        begins=exercise.opens_at,
        now=now,
        deadline=deadline,
        hours=exercise.hours,
    )
    return changed(demand, what_if, group=course.group), users


def policy_demand(policy: Policy, asked: NewPolicyForecast, *, now: datetime) -> Demand:
    """Return the demand of made-up students on all nodes that a policy names. Raises BadRequest."""
    nodes = nodes_named(policy)
    if not nodes:
        raise BadRequest("The policy names no nodes.", param="policy")
    begins, deadline = policy.whole
    if not policy.windows:
        begins, deadline = now, now + timedelta(days=asked.days_left or policy.grid.horizon_days)
    group = (policy.who.group or (MADE_UP,))[0]
    demand = Demand(
        policy=policy,
        nodes={ref: () for ref in nodes},
        students=[Booker(member) for member in made_up(asked.students, group, policy)],
        begins=begins,
        now=begins,
        deadline=deadline,
        hours=asked.hours,
    )
    return changed(demand, WhatIf(days_left=asked.days_left, nodes=asked.nodes), group=group)


def forecast(demand: Demand, names: Mapping[str, str]) -> CourseForecast:
    """Simulate, and return the answer; `names` are those of the students who are there."""
    found = outlook(demand)
    prospects = sorted(
        (
            ProspectView(
                user=names[one.user_id], has_all=one.has_all, whole=one.whole, part=one.part
            )
            for one in found.prospects
            if one.user_id in names
        ),
        key=lambda one: (one.whole, one.part, one.user),
    )
    return CourseForecast(
        policy=demand.policy.id,
        begins=demand.begins,
        deadline=demand.deadline,
        zone=demand.policy.policy.zone,
        needs=[_need(rooms, demand.policy) for rooms in alternatives(demand.policy, demand.hours)],
        students=len(demand.students),
        have_all=sum(one.has_all for one in found.prospects),
        whole=round(found.whole, 4),
        part=round(found.part, 4),
        nothing=round(found.nothing, 4),
        hours=sum(one.hours for one in found.loads),
        booked_hours=round(sum(one.booked_hours for one in found.loads), 1),
        nodes=[
            NodeLoadView(node=one.node, hours=one.hours, booked_hours=round(one.booked_hours, 1))
            for one in found.loads
        ],
        pools=_pools(demand),
        arrivals=[
            ArrivalView(
                days_left=one.days_left,
                students=round(one.students, 1),
                served=round(one.served, 4),
            )
            for one in found.arrivals
        ],
        prospects=prospects,
        message=_sentence(demand, found),
    )


def _holds(
    session: Session, refs: Sequence[NodeRef], now: datetime
) -> dict[NodeRef, Sequence[Span]]:
    by_id = {ref.id: ref for ref in refs}
    found: dict[NodeRef, list[Span]] = {ref: [] for ref in refs}
    rows = session.execute(
        select(
            Occupancy.node_id,
            Occupancy.hold_start,
            Occupancy.hold_end,
            Occupancy.lease_id,
            Occupancy.num_slots,
        ).where(Occupancy.live, Occupancy.hold_end > now, Occupancy.node_id.in_(by_id))
    )
    for node_id, start, end, lease_id, num_slots in rows:
        found[by_id[node_id]].append(Span(start, end, lease_id, num_slots))
    return dict(found)


def _pools(demand: Demand) -> list[ForecastPoolView]:
    policy = demand.policy
    if not policy.pools:
        return [ForecastPoolView(pool=ALL, title="all nodes", nodes=len(demand.nodes))]
    return [
        ForecastPoolView(
            pool=name,
            title=pool.title or name,
            nodes=sum(policy.covers(name, ref) for ref in demand.nodes),
        )
        for name, pool in policy.pools.items()
    ]


def _need(rooms: Sequence[Room], policy: Policy) -> str:
    """Return what one alternative consists of, such as `2 h on a single-GPU node`."""

    def place(pool: str) -> str:
        return "any node" if pool == ALL else policy.pools[pool].title or pool

    return " and ".join(
        f"{room.hours} h on {' or '.join(place(pool) for pool in room.pools)}" for room in rooms
    )


def _sentence(demand: Demand, found: Outlook) -> str:
    students = len(demand.students)
    if not students:
        return "There are no students."
    whole, part = round(found.whole * students), round(found.part * students)
    told = f"Of {students} students {whole} will have all that they need"
    some = f", {part} some of it" if part else ""
    nothing = students - whole - part
    if nothing + part == 0:
        return f"It will be enough: of {students} students all will have what they need."
    crowded = [
        one.node for one in found.loads if one.hours and one.booked_hours > CROWDED * one.hours
    ]
    advice = "Hours stay free: most of the others come too late, so ask them to book earlier."
    if crowded:
        advice = f"Nearly full: {', '.join(crowded)}; more such nodes or days would help."
    return f"{told}{some}, {nothing} nothing. {advice}"
