"""/v1/nodes: the machines, their hardware, their users."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.nodes import proofs
from api.nodes.holds import holds_of
from api.nodes.node_views import node_views, show_node, with_classes
from api.nodes.schemas import NodeHoldView, NodeView, ProofDocument
from api.web.auth import SignedIn
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import EventView, Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound
from core.states import NodeState
from core.tables.jobs import Event
from core.tables.nodes import Node
from strategies.plan.trust.proof import Proof, document

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("", summary="List nodes")
def list_nodes(
    person: SignedIn, process: ProcessDep, limit: Limit = 200, after: After = None
) -> Page[NodeView]:
    """Return all nodes except retired ones, oldest first."""
    query = with_classes().where(Node.state != NodeState.RETIRED)
    with process.read() as session:
        rows = page(session, query, Node.id, after=after, limit=limit, rising=True)
        data = node_views(session, process, person, list(rows))
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
