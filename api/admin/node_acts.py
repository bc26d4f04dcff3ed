"""Acts of staff on nodes."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from api.leases.lease_views import LEASES_WITH_CONTEXT, lease_views
from api.nodes import enrolment
from api.nodes.node_views import show_node
from api.nodes.schemas import InTheWayView, NewEnrolment, NodeView, RunningJobView
from api.web import audit
from api.web.bells import Bells
from api.web.errors import InTheWay
from api.web.identity import Person
from api.web.process import Process
from api.web.schemas import ProblemItem
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound
from core.base.reasons import ReasonCode
from core.states import LIVE_ATTEMPT, LIVE_LEASE, LeaseState, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import Token, User
from core.transitions import advance, say


class NodeAct(StrEnum):
    """An act of staff on a node."""

    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    RESUME = "resume"
    QUARANTINE = "quarantine"
    RETIRE = "retire"


TARGETS = {
    NodeAct.DRAIN: (NodeState.DRAINING, "It takes no new work, at the request of {name}."),
    NodeAct.MAINTENANCE: (NodeState.MAINTENANCE, "In maintenance by {name}."),
    NodeAct.RESUME: (NodeState.READY, "Put back into service by {name}."),
    NodeAct.QUARANTINE: (NodeState.QUARANTINED, "Quarantined by {name}: suspected faulty."),
    NodeAct.RETIRE: (NodeState.RETIRED, "Retired permanently by {name}."),
}


def invite(
    session: Session, _: Bells, wanted: NewEnrolment, person: Person
) -> tuple[str, datetime]:
    """Insert a single-use token for a node; return it, and its end."""
    return enrolment.invite(
        session,
        name=wanted.name,
        node_class=wanted.node_class,
        actor=person.id,
        now=utc_now(),
    )


def act_on_node(
    session: Session,
    bells: Bells,
    node_id: str,
    act: NodeAct,
    person: Person,
    process: Process,
    *,
    reason: str,
    now: datetime,
) -> NodeView:
    """Carry out an act on a node, by id or name. Raises NotFound, Conflict, InTheWay."""
    node = session.scalars(
        select(Node).where(Node.goes_by(node_id)).with_for_update(key_share=True)
    ).first()
    if node is None:
        raise NotFound(f"There is no node {node_id!r}.")
    _act(session, node, act, person, reason=reason, now=now)
    bells.scheduler = True
    session.flush()
    return show_node(session, process, person, node.id)


def in_the_way(session: Session, node_id: str) -> InTheWayView:
    """Return the running jobs and open leases of a node. Raises NotFound."""
    node = session.scalars(select(Node).where(Node.goes_by(node_id))).first()
    if node is None:
        raise NotFound(f"There is no node {node_id!r}.")
    return InTheWayView(
        node=node.name,
        state=node.state,
        jobs=[
            RunningJobView(id=job, name=name, user=user)
            for job, name, user in _running_on(session, node)
        ],
        leases=lease_views(session, _open_on(session, node)),
    )


def _act(
    session: Session, node: Node, act: NodeAct, person: Person, *, reason: str, now: datetime
) -> None:
    target, _ = TARGETS[act]
    if node.state is target:
        return
    if act is NodeAct.RETIRE:
        _require_unused(session, node)
    before = node.state
    if act is NodeAct.MAINTENANCE and node.state is NodeState.READY:
        _move(session, node, NodeAct.DRAIN, person, reason=reason, now=now)
    busy = act is NodeAct.MAINTENANCE and _is_in_use(session, node)
    if busy and node.state is NodeState.DRAINING:
        message = f"Goes into maintenance for {person.name} as soon as nothing runs on it."
        say(session, node, _with_reason(message, reason))
    elif not _move(session, node, act, person, reason=reason, now=now):
        raise Conflict(f"{node.name} is {node.state}; {act} is not possible from that state.")
    if act is NodeAct.RETIRE:
        session.execute(
            update(Token)
            .where(Token.node_id == node.id, Token.revoked_at.is_(None))
            .values(revoked_at=now)
        )
    audit.record(
        session,
        person.id,
        f"node.{act}",
        node.id,
        now=now,
        name=node.name,
        before=str(before),
        **({"reason": reason} if reason else {}),
    )


def _move(
    session: Session, node: Node, act: NodeAct, person: Person, *, reason: str, now: datetime
) -> bool:
    target, message = TARGETS[act]
    return advance(
        session,
        node,
        target,
        now=now,
        reason_code=ReasonCode(act),
        message=_with_reason(message.format(name=person.name), reason),
        actor=person.id,
    )


def _with_reason(message: str, reason: str) -> str:
    return f"{message} Reason: {reason.rstrip('.')}." if reason else message


def _is_in_use(session: Session, node: Node) -> bool:
    """Return True if an active or ending lease holds the node, or a job runs on it."""
    held = session.scalars(
        select(Lease.id).where(
            Lease.node_id == node.id,
            Lease.state.in_((LeaseState.ACTIVE, LeaseState.ENDING)),
        )
    ).first()
    return held is not None or bool(_running_on(session, node))


def _require_unused(session: Session, node: Node) -> None:
    jobs, open_leases = _running_on(session, node), _open_on(session, node)
    if not jobs and not open_leases:
        return
    items = [
        ProblemItem(param=job, code="running", message=f"Job {name} of {user} is running on it.")
        for job, name, user in jobs
    ]
    for lease, user, *_ in open_leases:
        sentence = f"The lease of {user} from {lease.hold_start.isoformat()} is {lease.state}."
        items.append(ProblemItem(param=lease.id, code=str(lease.state), message=sentence))
    raise InTheWay(
        f"{node.name} has {len(jobs)} running jobs and {len(open_leases)} open leases. Drain it "
        "and wait, or remove them with a clean-up of this node.",
        items,
    )


def _running_on(session: Session, node: Node) -> Sequence[Row[str, str, str]]:
    """Return id, name and owner of the jobs that have processes on the node, or soon will."""
    return session.execute(
        select(Job.id, Job.name, User.name)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .join(User, User.id == Job.user_id)
        .where(
            AttemptPart.node_id == node.id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
        .order_by(Job.id)
    ).all()


def _open_on(session: Session, node: Node) -> Sequence[Row[Lease, str, str, str, int]]:
    """Return the booked, active and ending leases on the node, with their context."""
    return session.execute(
        LEASES_WITH_CONTEXT.where(Lease.node_id == node.id, Lease.state.in_(LIVE_LEASE)).order_by(
            Lease.hold_start, Lease.id
        )
    ).all()
