"""Changes of a course's demand for a forecast: another deadline, other nodes, other students.
Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from core.base.errors import BadRequest
from core.courses.demand import Booker, Demand
from core.policy.document import Policy
from core.policy.matching import ALL
from core.policy.sections import WindowRule
from core.policy.verdict import Member, NodeRef

MOST_DAYS, MOST_STUDENTS, MOST_NODES = 60, 1000, 200


@dataclass(frozen=True)
class WhatIf:
    """Assumptions of a forecast that differ from what is there."""

    days_left: float | None = None
    """Days from now to the end of the last block; None: as it is."""
    students: int | None = None
    """Number of students; None: as it is."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes by pool; `all` if the policy has no pools."""


def changed(demand: Demand, what_if: WhatIf, *, group: str) -> Demand:
    """Return the demand under these assumptions. Raises BadRequest.

    Additional students are in the group and have no lease; with fewer, the first ones stay. An
    additional node is like the first one of its pool; with fewer, the first ones stay.
    """
    if what_if.days_left is not None:
        demand = _until(demand, demand.now + timedelta(days=what_if.days_left))
    for pool, count in what_if.nodes.items():
        demand = _with_nodes(demand, pool, count)
    if what_if.students is not None:
        students = _with_students(demand, what_if.students, group)
        demand = replace(demand, students=students)
    _require_bounds(demand)
    return demand


def nodes_named(policy: Policy) -> list[NodeRef]:
    """Return the nodes that a policy names, as if they all were there."""
    known = {
        name: NodeRef(f"node_{name}", name, class_name, max(1, hardware.gpus))
        for class_name, hardware in policy.classes.items()
        for name in hardware.nodes
    }
    in_pools = (name for pool in policy.pools.values() for name in pool.nodes or ())
    return [*known.values(), *(_alone(name) for name in in_pools if name not in known)]


def made_up(count: int, group: str, policy: Policy, *, first: int = 0) -> list[Member]:
    """Return students who are not there, evenly in the cohorts of the policy."""
    cohorts = list(policy.who.cohorts)
    key = policy.who.cohort_key
    return [
        Member(
            id=f"student {number + 1}",
            groups=frozenset({group, *(policy.who.group or ())}),
            attributes={key: cohorts[number % len(cohorts)]} if key and cohorts else {},
        )
        for number in range(first, first + count)
    ]


def _alone(name: str) -> NodeRef:
    return NodeRef(f"node_{name}", name, name)


def _until(demand: Demand, deadline: datetime) -> Demand:
    """Return the demand with another deadline: windows that end with the last one end there, and
    none ends later."""
    policy, last = demand.policy, demand.policy.whole[1]
    windows = []
    for rule, window in zip(policy.windows, policy.times, strict=True):
        end = deadline if window.end == last else min(window.end, deadline)
        if window.start < end:
            usable = (window.start.isoformat(), end.isoformat())
            windows.append(WindowRule(pool=rule.pool, usable=usable, opens_at=rule.opens_at))
    if policy.windows and not windows:
        raise BadRequest(
            f"No window of {policy.id} begins by {deadline:%Y-%m-%d %H:%M} UTC. Take more days.",
            param="days_left",
        )
    return replace(demand, policy=policy.with_windows(windows), deadline=deadline)


def _with_nodes(demand: Demand, pool: str, count: int) -> Demand:
    policy = demand.policy
    if pool not in policy.pools and (pool != ALL or policy.pools):
        names = ", ".join(policy.pools) or ALL
        raise BadRequest(f"{policy.id} has no pool {pool!r}, it has: {names}.", param="nodes")
    mine = [ref for ref in demand.nodes if pool == ALL or policy.covers(pool, ref)]
    if count > len(mine) and not mine:
        raise BadRequest(
            f"No node of the pool {pool} is here, so none can be added like it.", param="nodes"
        )
    gone = {ref.id for ref in mine[count:]}
    nodes = {ref: holds for ref, holds in demand.nodes.items() if ref.id not in gone}
    for number in range(len(mine), count):
        name = f"{mine[0].name}-{number + 1}"
        while any(ref.name == name for ref in nodes):
            name += "x"
        more = replace(mine[0], id=f"node_{name}", name=name)
        nodes[more] = ()
        policy = _with_twin(policy, mine[0].name, name)
    return replace(demand, policy=policy, nodes=nodes)


def _with_twin(policy: Policy, name: str, twin: str) -> Policy:
    """Return a policy that names another node wherever it names this one."""

    def both(names: Sequence[str]) -> tuple[str, ...]:
        return (*names, twin) if name in names else tuple(names)

    return policy.with_parts(
        classes={
            key: one.model_copy(update={"nodes": both(one.nodes)})
            for key, one in policy.classes.items()
        },
        pools={
            key: one if one.nodes is None else one.model_copy(update={"nodes": both(one.nodes)})
            for key, one in policy.pools.items()
        },
    )


def _with_students(demand: Demand, count: int, group: str) -> tuple[Booker, ...]:
    kept = demand.students[:count]
    more = made_up(count - len(kept), group, demand.policy, first=len(kept))
    return (*kept, *(Booker(member) for member in more))


def _require_bounds(demand: Demand) -> None:
    days = (demand.deadline - demand.now) / timedelta(days=1)
    for found, most, what, param in (
        (days, MOST_DAYS, "days to the deadline", "days_left"),
        (len(demand.students), MOST_STUDENTS, "students", "students"),
        (len(demand.nodes), MOST_NODES, "nodes", "nodes"),
    ):
        if found > most:
            raise BadRequest(
                f"A forecast is of at most {most} {what}; this would be of {found:.0f}.",
                param=param,
            )
    if days <= 0:
        raise BadRequest(
            f"The deadline, {demand.deadline:%Y-%m-%d %H:%M} UTC, is over. Give days_left.",
            param="days_left",
        )
