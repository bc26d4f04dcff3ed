"""Rest of people's quotas, under every policy."""

from collections import defaultdict
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.leases.schemas import QuotaRemainderView
from api.people.schemas_usage import QuotaView
from core.leases.active_policies import active_policies
from core.leases.situation import (
    counted_since,
    held_by_labs,
    held_by_user,
    member_of,
    ref_of,
)
from core.policy import quotas
from core.policy.case import Case
from core.policy.document import Policy, Window, policy_for
from core.policy.grid import HOUR, hour_ceiling
from core.policy.verdict import BookingRequest, NodeRef, Situation
from core.states import NodeState
from core.tables.nodes import Node


def quotas_of(session: Session, user_id: str, now: datetime) -> list[QuotaView]:
    """Return what a person may still book, for each policy and each window that is not over."""
    member = member_of(session, user_id)
    policies = active_policies(session)
    nodes = session.scalars(
        select(Node).where(Node.state != NodeState.RETIRED).order_by(Node.name)
    ).all()
    groups: dict[tuple[str, Window | None], list[NodeRef]] = defaultdict(list)
    judging: dict[str, Policy] = {}
    for node in nodes:
        ref = ref_of(node)
        policy = policy_for(member, ref, policies)
        judging[policy.id] = policy
        for window in _windows(policy, ref, now):
            groups[policy.id, window].append(ref)
    views = []
    for (policy_id, window), refs in groups.items():
        policy = judging[policy_id]
        start = hour_ceiling(max(now, window.start) if window else now, policy.grid.anchor)
        request = BookingRequest(member, refs[0], start, start + HOUR)
        since = counted_since(policy, now)
        situation = Situation(
            now=now,
            own=held_by_user(session, user_id, since=since),
            lab=held_by_labs(session, member.lab_ids, since=since),
        )
        left = quotas.left(Case.of(request, situation, policy), granted=False)
        views.append(
            QuotaView(
                policy=policy.id,
                version=policy.version,
                nodes=[ref.name for ref in refs],
                window_end=window.end if window else None,
                left=[QuotaRemainderView.model_validate(one) for one in left],
            )
        )
    return views


def _windows(policy: Policy, node: NodeRef, now: datetime) -> list[Window | None]:
    """Return the windows of the node that are not over; one None if the policy has no windows at
    all."""
    if not policy.times:
        return [None]
    pools = set(policy.pools_of(node))
    soon = now + timedelta(hours=1)
    return [one for one in policy.times if pools & set(one.pools) and one.end > soon]
