"""Proofs of nodes: stored once, shown with the node, learned from by the planner."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from api.nodes import proofs
from core.tables.nodes import NodeProof
from strategies.plan.estimates.memory import PROCESS, MemoryTerm
from strategies.plan.estimates.runtime import CONTEXT_GIB
from strategies.plan.hardware import Constants, Hardware
from strategies.plan.planner import plan
from strategies.plan.spec import TrainSpec
from strategies.plan.trust.proof import CheckName, CheckResult, Machine, Proof, read_document
from tests.api.conftest import World
from tests.api.shapes import INVENTORY, heartbeat

GPU = {"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80.0}
ON_GPU = {**INVENTORY, "gpus": [GPU], "slots": 1, "driver": "550.90"}
MACHINE = Machine(
    device="cuda",
    ranks=1,
    gpus=[str(GPU["name"])],
    driver="550.90",
    torch=INVENTORY["torch"],
    python="3.12",
    cores=8,
)


def proof(hour: int = 12, **changes: Any) -> Proof:
    found = Proof(
        trainyard="0.2.0",
        proven_at=datetime(2026, 11, 23, tzinfo=UTC) + timedelta(hours=hour),
        seconds=300,
        machine=MACHINE,
        checks=[
            CheckResult(name=CheckName.INVENTORY, verdict="passed", sentence="a", seconds=1),
            CheckResult(name=CheckName.SPEED, verdict="failed", sentence="b", seconds=1),
        ],
        constants=Constants(process_gib=1.25, communicator_gib=0.5, link_gb_per_s=230.0),
    )
    return found.model_copy(update=changes)


def send(world: World, one: Proof) -> int:
    return world.node.post("/v1/node/proofs", json=one.model_dump(mode="json")).status_code


def node_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.ann.get("/v1/nodes/box").json()
    return found


@pytest.fixture
def yard(world: World) -> World:
    """A node with one A100."""
    world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=ON_GPU))
    return world


def test_a_node_shows_its_last_proof_and_what_has_changed_since(yard: World) -> None:
    assert node_of(yard)["proof"] is None
    assert yard.ann.get("/v1/nodes/box/proof").status_code == 404
    assert send(yard, proof(hour=1)) == 204
    assert send(yard, proof()) == 204
    assert send(yard, proof()) == 204
    with yard.database.read() as session:
        assert session.scalar(select(func.count()).select_from(NodeProof)) == 2
    shown = node_of(yard)["proof"]
    assert shown["sha256"] == proof().sha256
    assert shown["failed"] == ["speed"]
    assert shown["sentence"] == "1 of 2 checks passed; failed: speed."
    assert shown["changes"] == []
    document = yard.ann.get("/v1/nodes/box/proof")
    assert read_document(document.text) == proof()
    newer = {**ON_GPU, "driver": "580.65"}
    yard.node.post("/v1/node/heartbeat", json=heartbeat(inventory=newer))
    assert node_of(yard)["proof"]["changes"] == ["proven with driver 550.90, runs 580.65 now"]


def test_only_a_node_may_send_a_proof(yard: World) -> None:
    body = proof().model_dump(mode="json")
    assert yard.ann.post("/v1/node/proofs", json=body).status_code in (401, 403)
    assert yard.nobody.post("/v1/node/proofs", json=body).status_code == 401


def test_the_planner_uses_what_a_node_of_the_class_has_measured(yard: World) -> None:
    spec = TrainSpec.model_validate(
        {
            "model": {"name": "gpt", "layers": 2, "width": 64, "heads": 2},
            "data": {"dataset": "python-stdlib", "sequence_length": 64},
            "training": {"steps": 2, "global_batch_size": 2, "learning_rate": 1e-3},
        }
    )

    def process() -> MemoryTerm:
        hardware = Hardware.model_validate(node_of(yard)["hardware"])
        found = plan(spec, nodes=1, ranks_per_node=1, hardware=hardware)
        return next(term for term in found.memory if term.name == PROCESS)

    assert CONTEXT_GIB < process().gib < 1.0, "as estimated"
    send(yard, proof())
    assert process().gib == 1.25
    assert process().source.endswith("measured on node box, 2026-11-23")
    without = proof(hour=13, constants=Constants(process_gib=1.5))
    send(yard, without)
    measured = node_of(yard)["hardware"]["measured"]
    assert (measured["process_gib"], measured["link_gb_per_s"]) == (1.5, 230.0)
    send(yard, proof(hour=2, constants=Constants(process_gib=9)))  # older than the last
    assert node_of(yard)["hardware"]["measured"]["process_gib"] == 1.5


def test_the_newest_proofs_are_kept(yard: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "KEPT", 2)
    for hour in (1, 2, 3):
        send(yard, proof(hour=hour))
    with yard.database.read() as session:
        kept = set(session.scalars(select(NodeProof.sha256)))
    assert kept == {proof(hour=hour).sha256 for hour in (2, 3)}
