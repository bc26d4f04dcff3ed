"""Bands and windows of hours, by group of nodes that one policy treats alike."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.policies.schemas import BandsView, SpanView
from api.web.identity import Person
from api.web.schemas import AskedMoment, Page
from core.leases.active_policies import active_policies
from core.leases.situation import member_of, ref_of
from core.policy.document import Policy, Window, policy_for
from core.policy.grid import HOUR
from core.policy.verdict import NodeRef
from core.states import NodeState
from core.tables.nodes import Node

DAY = timedelta(days=1)


def bands_of(session: Session, person: Person, start: AskedMoment, hours: int) -> Page[BandsView]:
    """Return the bands and windows that touch these hours, by group of nodes treated alike."""
    end = start + hours * HOUR
    member = member_of(session, person.id)
    policies = active_policies(session)
    nodes = session.scalars(
        select(Node).where(Node.state != NodeState.RETIRED).order_by(Node.name)
    ).all()
    refs = [ref_of(node) for node in nodes]
    groups: dict[tuple[str, tuple[Window, ...]], list[NodeRef]] = defaultdict(list)
    judging: dict[str, Policy] = {}
    for ref in refs:
        policy = policy_for(member, ref, policies)
        judging[policy.id] = policy
        groups[policy.id, windows_of(policy, ref)].append(ref)
    return Page[BandsView](
        data=[
            _view(judging[policy_id], windows, group, start, end)
            for (policy_id, windows), group in groups.items()
        ]
    )


def windows_of(policy: Policy, node: NodeRef) -> tuple[Window, ...]:
    """Return the windows in which leases may lie on the node."""
    pools = set(policy.pools_of(node))
    return tuple(window for window in policy.times if pools & set(window.pools))


def spans_between(
    policy: Policy, start: datetime, end: datetime
) -> Iterator[tuple[str, datetime, datetime]]:
    """Yield name, start and end of the local bands that touch [start, end), not cut to it. Pure."""
    day = policy.clock.local_date(start) - DAY
    while day <= policy.clock.local_date(end):
        for name, opens, closes in policy.clock.spans_of(day):
            if opens < end and closes > start:
                yield name, opens, closes
        day += DAY


def _view(
    policy: Policy,
    windows: Sequence[Window],
    nodes: Sequence[NodeRef],
    start: datetime,
    end: datetime,
) -> BandsView:
    return BandsView(
        policy=policy.id,
        version=policy.version,
        zone=policy.policy.zone,
        nodes=[node.name for node in nodes],
        bands=[
            SpanView(name=name, starts_at=opens, ends_at=closes)
            for name, opens, closes in spans_between(policy, start, end)
        ],
        windows=[
            SpanView(name=", ".join(window.pools), starts_at=window.start, ends_at=window.end)
            for window in windows
            if window.start < end and window.end > start
        ]
        if policy.times
        else None,
    )
