"""Views of leases and verdicts for the API."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from api.leases.schemas import ChargeView, LeaseView, NodeVerdict, QuotaRemainderView, ReasonView
from api.web.identity import Person
from core.base.errors import NotFound
from core.policy.bands import whole_hours
from core.policy.grid import usable_end
from core.policy.verdict import Reason, Verdict
from core.states import LIVE_ATTEMPT, LeaseState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeSlot
from core.tables.people import User

# Built once: to build a query takes longer than to ask it.
LEASES_WITH_CONTEXT = (
    select(Lease, User.name, Node.name, Node.class_name, Node.slots)
    .join(User, User.id == Lease.user_id)
    .join(Node, Node.id == Lease.node_id)
)
"""Selects each lease with the names of its owner, node and node class, and the node's slots."""
LEASE_WITH_CONTEXT = LEASES_WITH_CONTEXT.where(Lease.id == bindparam("lease_id"))
RUNNING_IN = (
    select(AttemptPart.lease_id, Attempt.job_id)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, Job.id == Attempt.job_id)
    .join(Lease, (Lease.id == AttemptPart.lease_id) & (Lease.user_id == Job.user_id))
    .where(
        AttemptPart.lease_id.in_(bindparam("lease_ids", expanding=True)),
        AttemptPart.ended_at.is_(None),
        Attempt.state.in_(LIVE_ATTEMPT),
    )
    .order_by(Attempt.assigned_at)
)
SLOTS_OF = (
    select(Lease.id, NodeSlot.slot)
    .join(NodeSlot, NodeSlot.lease_id == Lease.id)
    .where(Lease.id.in_(bindparam("lease_ids", expanding=True)))
    .order_by(NodeSlot.slot)
)
BEGUN = (LeaseState.ACTIVE, LeaseState.ENDING)


def find_lease(session: Session, lease_id: str, person: Person, *, lock: bool = False) -> Lease:
    """Return a lease that `person` may see. Somebody else's lease is NotFound, except for staff."""
    query = select(Lease).where(Lease.id == lease_id)
    if lock:
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    lease = session.scalars(query).one_or_none()
    if lease is None or not (lease.user_id == person.id or person.is_staff):
        raise NotFound(f"You have no lease {lease_id!r}.")
    return lease


def show_lease(session: Session, lease_id: str, person: Person) -> LeaseView:
    """Return the view of a lease that `person` may see."""
    find_lease(session, lease_id, person)
    row = session.execute(LEASE_WITH_CONTEXT, {"lease_id": lease_id}).one()
    return lease_views(session, [row])[0]


def lease_views(
    session: Session, rows: Sequence[Row[Lease, str, str, str, int]]
) -> list[LeaseView]:
    """Return the views of rows of `LEASES_WITH_CONTEXT`, with the owners' jobs that run in them."""
    jobs: dict[str, list[str]] = {row[0].id: [] for row in rows}
    if not jobs:
        return []
    for lease_id, job_id in session.execute(RUNNING_IN, {"lease_ids": list(jobs)}):
        jobs[lease_id].append(job_id)
    slots = _slots_of(session, [row[0].id for row in rows if row[0].state in BEGUN])
    return [_lease_view(*row, slots.get(row[0].id), jobs[row[0].id]) for row in rows]


def _slots_of(session: Session, lease_ids: Sequence[str]) -> dict[str, list[int]]:
    """Map lease id -> indices of the slots that it has on its node."""
    found: dict[str, list[int]] = {}
    if lease_ids:
        for lease_id, slot in session.execute(SLOTS_OF, {"lease_ids": lease_ids}):
            found.setdefault(lease_id, []).append(slot)
    return found


def _lease_view(
    lease: Lease,
    user: str,
    node: str,
    node_class: str,
    num_slots: int,
    slots: list[int] | None,
    jobs: list[str],
) -> LeaseView:
    charge = (lease.verdict or {}).get("charge")
    return LeaseView(
        id=lease.id,
        user=user,
        node=node,
        node_class=node_class,
        gpus=num_slots if lease.num_slots is None else lease.num_slots,
        of_gpus=num_slots,
        whole=lease.num_slots is None or lease.num_slots >= num_slots,
        slots=slots,
        kind=lease.kind,
        state=lease.state,
        reason=lease.reason,
        hold_start=lease.hold_start,
        hold_end=lease.hold_end,
        usable_end=usable_end(lease.hold_end, lease.grace_s),
        job=jobs[0] if jobs else None,
        jobs=jobs,
        together=lease.together,
        counts=lease.counts,
        charged_hours=_charged_hours(lease),
        settled_as=lease.settled_as,
        charge=ChargeView.model_validate(charge) if charge else None,
        policy=lease.policy_id,
        policy_version=lease.policy_version,
        protected=lease.protected,
        unusable_s=lease.unusable_s,
        created_at=lease.created_at,
    )


def _charged_hours(lease: Lease) -> int:
    if not lease.counts:
        return 0
    if lease.charged_s is not None:
        return max(1, whole_hours(timedelta(seconds=lease.charged_s)))
    end = lease.charged_end or lease.hold_end
    if lease.kind is LeaseKind.WALK_IN:
        end = usable_end(end, lease.grace_s)
    return max(1, whole_hours(end - lease.hold_start))


def node_verdict(node: Node, start: datetime, end: datetime, verdict: Verdict) -> NodeVerdict:
    """Return the view of the policy's verdict on [start, end) on a node."""
    return NodeVerdict(
        node=node.name,
        node_class=node.class_name,
        ok=verdict.ok,
        hold_start=start,
        hold_end=end,
        reasons=[_reason(reason) for reason in verdict.reasons],
        warnings=[_reason(warning) for warning in verdict.warnings],
        charge=ChargeView.model_validate(verdict.charge),
        left=[QuotaRemainderView.model_validate(left) for left in verdict.left],
        next_starts=list(verdict.next_starts),
        policy=verdict.policy_id,
        policy_version=verdict.policy_version,
    )


def _reason(reason: Reason) -> ReasonView:
    return ReasonView(
        code=reason.code,
        param=reason.param,
        message=reason.message,
        numbers=dict(reason.numbers),
    )
