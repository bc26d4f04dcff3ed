"""Enrolment of nodes: staff make a single-use token, the node trades it for its identity."""

from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.nodes.gpu_health import take_health
from api.nodes.node_classes import hardware_of, join_class
from api.web import audit
from api.web.credentials import issue_link, issue_token, use_link
from core.base.errors import Conflict
from core.base.ids import IdKind, new_id
from core.base.reasons import ReasonCode
from core.states import NodeState, Sharing
from core.tables.kinds import LinkKind, TokenKind
from core.tables.nodes import Node
from core.tables.people import Token
from core.transitions import enter, note
from core.wire.messages import Enrolment, NewIdentity

TOKEN_LIFETIME = timedelta(minutes=15)


def invite(
    session: Session, *, name: str, node_class: str | None, actor: str, now: datetime
) -> tuple[str, datetime]:
    """Make a token with which a machine may join as `name`; return it and the time it expires.

    Raises Conflict if the node of that name is retired.
    """
    known = session.scalars(select(Node).where(Node.is_called(name))).one_or_none()
    if known is not None and known.state is NodeState.RETIRED:
        raise Conflict(f"name: {name} was retired permanently. Choose another name.", param="name")
    link, secret = issue_link(
        session,
        kind=LinkKind.ENROL,
        now=now,
        lifetime=TOKEN_LIFETIME,
        node_name=name,
        node_class=node_class,
    )
    audit.record(session, actor, "node.invite", name, now=now, node_class=node_class)
    return secret, link.expires_at


def enrol(session: Session, request: Enrolment, *, now: datetime) -> NewIdentity:
    """Trade the token for an identity. A known node gets a new token, and its old one ends.

    Raises Unauthenticated if the token is unknown, used or expired, Conflict if the node of its
    name is retired.
    """
    link = use_link(session, request.token, LinkKind.ENROL, now=now)
    assert link.node_name is not None
    node = session.scalars(select(Node).where(Node.is_called(link.node_name))).one_or_none()
    if node is not None and node.state is NodeState.RETIRED:
        raise Conflict(
            f"{node.name} was retired permanently. Ask for an enrolment token with another name."
        )
    inventory = request.inventory.model_dump(mode="json")
    if node is None:
        class_name = join_class(session, request.inventory, named=link.node_class)
        node = Node(
            id=new_id(IdKind.NODE),
            name=link.node_name,
            class_name=class_name,
            slots=hardware_of(request.inventory, class_name).slots,
            sharing=request.inventory.sharing or Sharing.NONE,
            state=NodeState.PENDING,
            reason="Enrolled; waiting for its first heartbeat.",
            inventory=inventory,
            boot_id="",
            incarnation="",
            clean=False,
            created_at=now,
        )
        enter(
            session,
            node,
            now=now,
            reason_code=ReasonCode.ENROLLED,
            message=f"{node.name} was enrolled as {node.class_name}.",
            actor=node.id,
        )
    else:
        session.execute(
            update(Token)
            .where(Token.node_id == node.id, Token.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        node.inventory = inventory
        node.sharing = request.inventory.sharing or Sharing.NONE
        note(
            session,
            node.id,
            "enrolled_again",
            now=now,
            message=f"{node.name} was enrolled again; its former token is no longer valid.",
            actor=node.id,
        )
    take_health(session, node, request.inventory, now=now)
    _, secret = issue_token(session, kind=TokenKind.NODE, name=node.name, now=now, node_id=node.id)
    audit.record(session, node.id, "node.enrol", node.id, now=now, name=node.name)
    return NewIdentity(node_id=node.id, name=node.name, node_token=secret)
