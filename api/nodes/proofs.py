"""Proofs of nodes: stored once per hash, shown with each node, learned from by the planner."""

from sqlalchemy import delete, select
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


def last_proof(session: Session, node: Node) -> NodeProof | None:
    """Return the newest proof of a node."""
    return session.scalars(
        select(NodeProof)
        .where(NodeProof.node_id == node.id)
        .order_by(NodeProof.proven_at.desc(), NodeProof.sha256)
        .limit(1)
    ).first()


def show_last(session: Session, node: Node) -> ProofSummaryView | None:
    """Return the newest proof in short, and what has changed on the node since."""
    row = last_proof(session, node)
    if row is None:
        return None
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
    row = last_proof(session, node)
    if row is None:
        raise NotFound(f"{node.name} has not been proven. On the node: trainyard prove")
    return row
