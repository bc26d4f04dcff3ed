"""/v1/nodes: the machines, their hardware, their users."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from api.nodes import proofs
from api.nodes.holds import holds_of
from api.nodes.schemas import NodeHoldView, NodeView, ProofDocument, SlotView
from api.web.auth import SignedIn
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process, ProcessDep
from api.web.schemas import EventView, Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.leases import node_slots
from core.states import LIVE_ATTEMPT, NodeState
from core.tables.jobs import Attempt, AttemptPart, Event, Job
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from core.wire.messages import Fabric, Inventory, Telemetry
from strategies.plan.hardware import Hardware
from strategies.plan.trust.proof import Proof, document

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("", summary="List nodes")
def list_nodes(
    person: SignedIn, process: ProcessDep, limit: Limit = 200, after: After = None
) -> Page[NodeView]:
    """Return all nodes except retired ones, oldest first."""
    query = _nodes().where(Node.state != NodeState.RETIRED)
    with process.read() as session:
        rows = page(session, query, Node.id, after=after, limit=limit, rising=True)
        data = [_view(session, process, person, row) for row in rows]
    return Page[NodeView](data=data, has_more=rows.has_more)


@router.get("/{node_id}", summary="One node")
def get_node(node_id: PlainText, person: SignedIn, process: ProcessDep) -> NodeView:
    """Return a node by id or name."""
    with process.read() as session:
        return show_node(session, process, person, node_id)


@router.get("/{node_id}/proof", response_model=ProofDocument, summary="Last proof of a node")
def get_proof(node_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Return the newest proof of a node in the form in which `trainyard prove` published it."""
    with process.read() as session:
        row = proofs.find(session, node_id)
        text = document(Proof.model_validate(row.content))
    return Response(text, media_type="application/json")


@router.get("/{node_id}/holds", summary="Holds of a node")
def list_holds(node_id: PlainText, person: SignedIn, process: ProcessDep) -> Page[NodeHoldView]:
    """Return who has which slots of a node now, and the hours of the next 7 days that are taken."""
    with process.read() as session:
        data = holds_of(session, find_node(session, node_id), person, now=utc_now())
    return Page[NodeHoldView](data=data)


@router.get("/{node_id}/events", summary="Events of a node")
def list_node_events(
    node_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    limit: Limit = 50,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="Id of the last event seen.")] = 0,
) -> Page[EventView]:
    """Return the changes of a node's state with their reasons, newest first."""
    with process.read() as session:
        query = select(Event).where(Event.subject == find_node(session, node_id).id)
        rows = page(session, query, Event.id, after=after, limit=limit)
        data = [EventView.model_validate(event) for (event,) in rows]
    return Page[EventView](data=data, has_more=rows.has_more)


def find_node(session: Session, node_id: str) -> Node:
    """Return a node by id or name. Raises NotFound."""
    node = session.scalars(select(Node).where(Node.goes_by(node_id))).first()
    if node is None:
        raise NotFound(f"There is no node {node_id!r}.")
    return node


def show_node(session: Session, process: Process, person: Person, node_id: str) -> NodeView:
    """Return the view of a node that a person has, by id or name. Raises NotFound."""
    query = _nodes().where(Node.goes_by(node_id))
    row = session.execute(query).first()
    if row is None:
        raise NotFound(f"There is no node {node_id!r}.")
    return _view(session, process, person, row)


def _nodes() -> Select[Node, NodeClass]:
    """Select each node with its class."""
    return select(Node, NodeClass).join(NodeClass, NodeClass.name == Node.class_name)


def _view(
    session: Session, process: Process, person: Person, row: Row[Node, NodeClass]
) -> NodeView:
    node, node_class = row
    now = utc_now()
    jobs, users = _jobs_on(session, node.id), _users_on(session, node.id, now)
    silence = timedelta(seconds=process.settings.unreachable_after_s)
    seen = node.last_seen_at
    return NodeView(
        id=node.id,
        name=node.name,
        node_class=node.class_name,
        state=node.state,
        reason=node.reason,
        hardware=Hardware.model_validate(node_class.hardware),
        fabric=Fabric.model_validate(node_class.fabric),
        inventory=Inventory.model_validate(node.inventory),
        slots=[
            SlotView(slot=row.slot, state=row.state, reason=row.reason)
            for row in node_slots.rows_of(session, node.id)
        ],
        sharing=node.sharing,
        no_sharing=why_not_shared(node),
        telemetry=Telemetry.model_validate(node.telemetry) if node.telemetry else None,
        reachable=node.unreachable_since is None and seen is not None and now - seen <= silence,
        last_seen_at=seen,
        unreachable_since=node.unreachable_since,
        proof=proofs.show_last(session, node),
        user=users[0] if users else None,
        users=users,
        job=jobs[0].id if jobs else None,
        jobs=[job.id for job in jobs],
        job_names={job.id: job.name for job in jobs if person.is_staff or job.user_id == person.id},
        free_at=_free_at(session, node.id, now),
    )


def why_not_shared(node: Node) -> str:
    """Return the reason why not all jobs of different owners run beside each other on a node."""
    if node.inventory.get("sharing") is None:
        return "its worker is of an older version, which does not report it"
    return str(node.inventory.get("no_sharing", ""))


def _users_on(session: Session, node_id: str, now: datetime) -> list[str]:
    """Return the names of the users who hold slots of the node now, first come first."""
    names = session.scalars(
        select(User.name)
        .join(Lease, Lease.user_id == User.id)
        .join(Occupancy, Occupancy.lease_id == Lease.id)
        .where(
            Occupancy.node_id == node_id,
            Occupancy.live,
            Occupancy.hold_start <= now,
            Occupancy.hold_end > now,
        )
        .order_by(Occupancy.hold_start, Lease.id)
    )
    return list(dict.fromkeys(names))


def _jobs_on(session: Session, node_id: str) -> Sequence[Row[str, str, str]]:
    """Return id, name and owner's id of the jobs that have slots of the node, first assigned
    first."""
    return session.execute(
        select(Job.id, Job.name, Job.user_id)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.node_id == node_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
        .order_by(Attempt.assigned_at)
    ).all()


def _free_at(session: Session, node_id: str, now: datetime) -> datetime | None:
    """Return the end of the unbroken stretch of holds that includes now; None if none does."""
    spans = session.execute(
        select(Occupancy.hold_start, Occupancy.hold_end)
        .where(Occupancy.node_id == node_id, Occupancy.live, Occupancy.hold_end > now)
        .order_by(Occupancy.hold_start)
    )
    at = now
    for start, end in spans:
        if start > at:
            break
        at = end
    return at if at > now else None
