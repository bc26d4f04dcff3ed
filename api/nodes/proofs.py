"""Proofs of nodes: stored once per hash, shown with each node, learned from by the planner."""

from collections.abc import Sequence

from sqlalchemy import and_, delete, func, select
from sqlalchemy.orm import Session

from api.nodes.node_classes import refit
from api.nodes.schemas import ProofSummaryView
from api.web.bells import Bells
from api.web.identity import NodeIdentity
from core.base.errors import NotFound
from core.tables.nodes import Node, NodeClass, NodeProof
from core.wire.messages import Inventory
from strategies.plan.hardware import Constants, Hardware
from strategies.plan.trust.proof import Proof, changes_since

KEPT = 20  # proofs of each node, the newest


def take(session: Session, bells: Bells, proof: Proof, identity: NodeIdentity) -> None:
    """Store a proof of a node, unless it is known; let the planner use its constants."""
    node = session.get_one(Node, identity.id, with_for_update={"key_share": True})
    if session.get(NodeProof, proof.sha256) is not None:
        return
    session.add(
        NodeProof(
            sha256=proof.sha256,
            node_id=node.id,
            proven_at=proof.proven_at,
            content=proof.model_dump(mode="json"),
        )
    )
    session.flush()
    newest = (
        select(NodeProof.sha256)
        .where(NodeProof.node_id == node.id)
        .order_by(NodeProof.proven_at.desc(), NodeProof.sha256)
        .limit(KEPT)
    )
    kept = session.scalars(newest).all()
    session.execute(
        delete(NodeProof).where(NodeProof.node_id == node.id, NodeProof.sha256.not_in(kept))
    )
    if proof.sha256 == kept[0]:
        learn(session, node, proof)
        bells.scheduler = True


def learn(session: Session, node: Node, proof: Proof) -> None:
    """Plan for the node's class with the constants that were measured, if there are any."""
    found = {} if proof.constants is None else told(proof.constants)
    if not found:
        return
    source = f"measured on node {node.name}, {proof.proven_at:%Y-%m-%d}"
    known = session.get_one(NodeClass, node.class_name, with_for_update={"key_share": True})
    hardware = Hardware.model_validate(known.hardware)
    before = {} if hardware.measured is None else told(hardware.measured)
    measured = Constants(**{**before, **found}, source=source)
    refit(known, hardware.model_copy(update={"measured": measured}))


def told(constants: Constants) -> dict[str, float]:
    """Return the constants that were measured, by name."""
    return constants.model_dump(exclude={"source"}, exclude_none=True)


def last_of(session: Session, node_ids: Sequence[str]) -> dict[str, NodeProof]:
    """Map node id -> its newest proof; nodes without one are missing."""
    newest = (
        select(NodeProof.node_id, func.max(NodeProof.proven_at).label("at"))
        .where(NodeProof.node_id.in_(node_ids))
        .group_by(NodeProof.node_id)
        .subquery()
    )
    rows = session.scalars(
        select(NodeProof)
        .join(
            newest,
            and_(NodeProof.node_id == newest.c.node_id, NodeProof.proven_at == newest.c.at),
        )
        .order_by(NodeProof.sha256.desc())
    )
    return {row.node_id: row for row in rows}


def summary(row: NodeProof, node: Node) -> ProofSummaryView:
    """Return a proof in short, and what has changed on its node since."""
    proof, now = Proof.model_validate(row.content), Inventory.model_validate(node.inventory)
    machine = proof.machine
    return ProofSummaryView(
        sha256=row.sha256,
        proven_at=proof.proven_at,
        device=machine.device,
        driver=machine.driver,
        torch=machine.torch,
        sentence=proof.sentence,
        failed=proof.named("failed"),
        skipped=proof.named("skipped"),
        changes=changes_since(
            machine, driver=now.driver, torch=now.torch, gpus=[gpu.name for gpu in now.gpus]
        )
        if machine.device == "cuda"
        else changes_since(machine, driver="", torch=now.torch, gpus=[]),
    )


def find(session: Session, node_id: str) -> NodeProof:
    """Return the newest proof of a node, by id or name. Raises NotFound."""
    node = session.scalars(select(Node).where(Node.goes_by(node_id))).first()
    if node is None:
        raise NotFound(f"There is no node {node_id!r}.")
    row = last_of(session, [node.id]).get(node.id)
    if row is None:
        raise NotFound(f"{node.name} has not been proven. On the node: trainyard prove")
    return row
