"""/v1/admin: enrol, drain and retire nodes; read the audit log."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from api import audit, enrolment
from api.auth import StaffOnly
from api.identity import Person
from api.nodes import show_node
from api.process import ProcessDep
from api.schemas import AuditView, EnrolmentView, NewEnrolment, NodeView, Page
from api.text_types import Limit, PlainText
from core.clock import utc_now
from core.errors import Conflict, NotFound
from core.states import LIVE_ATTEMPT, LIVE_LEASE, NodeState
from core.tables import Attempt, AuditEntry, Lease, Node, Token
from core.transitions import advance

router = APIRouter(prefix="/v1/admin", tags=["administration"])


class NodeAct(StrEnum):
    """What staff can do to a node."""

    DRAIN = "drain"
    RESUME = "resume"
    QUARANTINE = "quarantine"
    RETIRE = "retire"


TARGETS = {
    NodeAct.DRAIN: (NodeState.DRAINING, "Takes no new work, at the request of {name}."),
    NodeAct.RESUME: (NodeState.READY, "Ready again, said {name}."),
    NodeAct.QUARANTINE: (NodeState.QUARANTINED, "Put aside by {name}: not to be trusted."),
    NodeAct.RETIRE: (NodeState.RETIRED, "Retired for good by {name}."),
}


@router.post("/enrolments", status_code=201, summary="Invite a machine")
def create_enrolment(wanted: NewEnrolment, person: StaffOnly, process: ProcessDep) -> EnrolmentView:
    """A single-use token for one machine, and the command to run there. It is shown this once."""
    with process.write() as (session, _):
        token, expires_at = enrolment.invite(
            session,
            name=wanted.name,
            node_class=wanted.node_class,
            actor=person.id,
            now=utc_now(),
        )
    command = (
        f"TRAINYARD_API_URL={process.url} TRAINYARD_REDIS_URL=<redis url> "
        f"TRAINYARD_DATA=/var/lib/trainyard TRAINYARD_ENROL_TOKEN={token} trainyard worker"
    )
    return EnrolmentView(token=token, command=command, expires_at=expires_at)


@router.post("/nodes/{node_id}/{act}", summary="Drain, resume, quarantine or retire")
def act_on_node(
    node_id: PlainText, act: NodeAct, person: StaffOnly, process: ProcessDep
) -> NodeView:
    """Change what a node is used for. What runs on a draining node runs to its end."""
    now = utc_now()
    with process.write() as (session, bells):
        node = session.scalars(
            select(Node)
            .where((Node.id == node_id) | (Node.name == node_id))
            .with_for_update(key_share=True)
        ).first()
        if node is None:
            raise NotFound(f"There is no node {node_id!r}.")
        _act(session, node, act, person, now=now)
        bells.scheduler = True
        session.flush()
        return show_node(session, process, node.id)


@router.get("/audit", summary="The audit log")
def list_audit(
    person: StaffOnly,
    process: ProcessDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Id of the last row seen.")
    ] = None,
) -> Page[AuditView]:
    """Who did what, the newest first."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(AuditEntry.id < after)
    with process.read() as session:
        rows = session.scalars(query).all()
    return Page[AuditView](data=[_view(row) for row in rows[:limit]], has_more=len(rows) > limit)


def _act(session: Session, node: Node, act: NodeAct, person: Person, *, now: datetime) -> None:
    target, message = TARGETS[act]
    if node.state is target:
        return
    if act is NodeAct.RETIRE:
        _require_unused(session, node)
    before = node.state
    moved = advance(
        session,
        node,
        target,
        now=now,
        reason_code=str(act),
        message=message.format(name=person.name),
        actor=person.id,
    )
    if not moved:
        raise Conflict(f"{node.name} is {node.state}; {act} does not work from there.")
    if act is NodeAct.RETIRE:
        session.execute(
            update(Token)
            .where(Token.node_id == node.id, Token.revoked_at.is_(None))
            .values(revoked_at=now)
        )
    audit.record(
        session, person.id, f"node.{act}", node.id, now=now, name=node.name, before=str(before)
    )


def _require_unused(session: Session, node: Node) -> None:
    running = session.scalar(
        select(func.count())
        .select_from(Attempt)
        .where(Attempt.node_id == node.id, Attempt.state.in_(LIVE_ATTEMPT))
    )
    booked = session.scalar(
        select(func.count())
        .select_from(Lease)
        .where(Lease.node_id == node.id, Lease.state.in_(LIVE_LEASE))
    )
    if running or booked:
        raise Conflict(
            f"{node.name} has {running} running jobs and {booked} open leases. Drain it and wait, "
            "or cancel them."
        )


def _view(row: AuditEntry) -> AuditView:
    return AuditView(
        id=row.id,
        at=row.at,
        epoch=None,
        kind=row.action,
        from_state=None,
        to_state=None,
        reason_code="",
        message=f"{row.actor}: {row.action} {row.subject}",
        actor=row.actor,
        subject=row.subject,
        details=row.details,
    )
