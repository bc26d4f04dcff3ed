"""/v1/admin: enrol, drain and retire nodes; read the audit log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BeforeValidator
from sqlalchemy import CompoundSelect, Row, literal, select, union_all, update
from sqlalchemy.orm import Session

from api.admin.schemas_audit import AuditView
from api.leases.lease_views import LEASES_WITH_CONTEXT, lease_views
from api.nodes import enrolment
from api.nodes.routes import show_node
from api.nodes.schemas import EnrolmentView, InTheWayView, NewEnrolment, NodeView, RunningJobView
from api.web import audit
from api.web.auth import StaffOnly
from api.web.errors import InTheWay
from api.web.identity import Person
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import AskedMoment, Page, ProblemItem
from api.web.text_types import Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound
from core.reasons import ReasonCode
from core.states import LIVE_ATTEMPT, LIVE_LEASE, LeaseState, NodeState
from core.tables.admin import AuditEntry
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import Token, User
from core.transitions import advance, say

router = APIRouter(prefix="/v1/admin", tags=["administration"])


class NodeAct(StrEnum):
    """An act of staff on a node."""

    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    RESUME = "resume"
    QUARANTINE = "quarantine"
    RETIRE = "retire"


def _is_no_page(named: str) -> str:
    """Return the name of an act. Raises 405 for a page at this address that can only be read."""
    if named == "in-the-way":
        raise HTTPException(405, headers={"Allow": "GET"})
    return named


Act = Annotated[NodeAct, BeforeValidator(_is_no_page)]

TARGETS = {
    NodeAct.DRAIN: (NodeState.DRAINING, "It takes no new work, at the request of {name}."),
    NodeAct.MAINTENANCE: (NodeState.MAINTENANCE, "In maintenance by {name}."),
    NodeAct.RESUME: (NodeState.READY, "Put back into service by {name}."),
    NodeAct.QUARANTINE: (NodeState.QUARANTINED, "Quarantined by {name}: not to be trusted."),
    NodeAct.RETIRE: (NodeState.RETIRED, "Retired permanently by {name}."),
}


@router.post("/enrolments", status_code=201, summary="Enrol a node")
def create_enrolment(wanted: NewEnrolment, person: StaffOnly, process: ProcessDep) -> EnrolmentView:
    """Make a single-use token for one machine, and the command to run there.

    The token is shown only in this answer.
    """
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


@router.post("/nodes/{node_id}/{act}", summary="Drain, resume, quarantine or retire a node")
def act_on_node(node_id: PlainText, act: Act, person: StaffOnly, process: ProcessDep) -> NodeView:
    """Drain, maintain, resume, quarantine or retire a node.

    Jobs on a draining node run to their end. `maintenance` drains a node that is in use; it is in
    maintenance once nothing runs on it. Retiring is refused while jobs run on the node or leases
    are open on it; the answer lists them.
    """
    now = utc_now()
    with process.write() as (session, bells):
        node = session.scalars(
            select(Node).where(Node.goes_by(node_id)).with_for_update(key_share=True)
        ).first()
        if node is None:
            raise NotFound(f"There is no node {node_id!r}.")
        _act(session, node, act, person, now=now)
        bells.scheduler = True
        session.flush()
        return show_node(session, process, node.id)


@router.get("/nodes/{node_id}/in-the-way", summary="List what blocks retiring a node")
def list_in_the_way(node_id: PlainText, person: StaffOnly, process: ProcessDep) -> InTheWayView:
    """Return the jobs that run on a node, and the leases open on it, sorted by start."""
    with process.read() as session:
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


@router.get("/audit", summary="List the audit log")
def list_audit(
    person: StaffOnly,
    process: ProcessDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Id of the last row seen.")
    ] = None,
    actor: Annotated[
        PlainText | None,
        Query(description="Id or name of a person or a node, or the name of a process."),
    ] = None,
    action: Annotated[
        PlainText | None,
        Query(
            description="An action, such as node.drain; `node.` matches every action that "
            "begins with it."
        ),
    ] = None,
    subject: Annotated[
        PlainText | None, Query(description="Id or name of the object that the action was about.")
    ] = None,
    since: Annotated[AskedMoment | None, Query(description="RFC 3339, with an offset.")] = None,
    until: Annotated[AskedMoment | None, Query(description="RFC 3339, with an offset.")] = None,
) -> Page[AuditView]:
    """Return rows of the audit log, newest first: acts of staff and changes of access."""
    query = select(AuditEntry)
    if actor is not None:
        query = query.where(AuditEntry.actor.in_(_ids_of(actor)))
    if action is not None:
        exact = AuditEntry.action == action
        begins = AuditEntry.action.startswith(action, autoescape=True)
        query = query.where(begins if action.endswith(".") else exact)
    if subject is not None:
        query = query.where(AuditEntry.subject.in_(_ids_of(subject)))
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    if until is not None:
        query = query.where(AuditEntry.at < until)
    with process.read() as session:
        rows = page(session, query, AuditEntry.id, after=after, limit=limit)
        names = _names_of(session, {name for (row,) in rows for name in (row.actor, row.subject)})
    views = [_view(row, names) for (row,) in rows]
    return Page[AuditView](data=views, has_more=rows.has_more)


def _ids_of(named: str) -> CompoundSelect[str]:
    """Select the ids that rows may have for `named`: itself, and a person or node of that name."""
    return union_all(
        select(literal(named)),
        select(User.id).where(User.name == named),
        select(Node.id).where(Node.is_called(named)),
    )


def _act(session: Session, node: Node, act: NodeAct, person: Person, *, now: datetime) -> None:
    target, _ = TARGETS[act]
    if node.state is target:
        return
    if act is NodeAct.RETIRE:
        _require_unused(session, node)
    before = node.state
    if act is NodeAct.MAINTENANCE and node.state is NodeState.READY:
        _move(session, node, NodeAct.DRAIN, person, now=now)
    busy = act is NodeAct.MAINTENANCE and _is_in_use(session, node)
    if busy and node.state is NodeState.DRAINING:
        say(
            session, node, f"Goes into maintenance for {person.name} as soon as nothing runs on it."
        )
    elif not _move(session, node, act, person, now=now):
        raise Conflict(f"{node.name} is {node.state}; {act} is not possible from that state.")
    if act is NodeAct.RETIRE:
        session.execute(
            update(Token)
            .where(Token.node_id == node.id, Token.revoked_at.is_(None))
            .values(revoked_at=now)
        )
    audit.record(
        session, person.id, f"node.{act}", node.id, now=now, name=node.name, before=str(before)
    )


def _move(session: Session, node: Node, act: NodeAct, person: Person, *, now: datetime) -> bool:
    target, message = TARGETS[act]
    return advance(
        session,
        node,
        target,
        now=now,
        reason_code=ReasonCode(act),
        message=message.format(name=person.name),
        actor=person.id,
    )


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


def _open_on(session: Session, node: Node) -> Sequence[Row[Lease, str, str, str]]:
    """Return the booked, active and ending leases on the node, with their context."""
    return session.execute(
        LEASES_WITH_CONTEXT.where(Lease.node_id == node.id, Lease.state.in_(LIVE_LEASE)).order_by(
            Lease.hold_start, Lease.id
        )
    ).all()


def _names_of(session: Session, ids: set[str]) -> dict[str, str]:
    """Return the names of people and nodes by id."""
    named = union_all(
        select(User.id, User.name).where(User.id.in_(ids)),
        select(Node.id, Node.name).where(Node.id.in_(ids)),
    )
    return {row_id: name for row_id, name in session.execute(named)}


def _view(row: AuditEntry, names: Mapping[str, str]) -> AuditView:
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
        actor_name=names.get(row.actor),
        subject_name=names.get(row.subject),
    )
