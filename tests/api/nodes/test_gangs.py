"""Two nodes and one job: ranks start together, a checkpoint is one when both have brought it."""

import hashlib
import random
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from core.base.clock import utc_now
from core.jobs import attempts
from core.leases import leases
from core.policy.grid import HOUR
from core.tables.files import Checkpoint, CheckpointPart
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind
from core.tables.nodes import Node
from core.wire.messages import Rendezvous
from tests.api.conftest import World, client, enrol
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import exit_record, heartbeat, job_spec

SPEC = job_spec(
    resources={"nodes": 2, "ranks_per_node": 1}, parallelism={"data_parallel_replicate_degree": 2}
)


@pytest.fixture
def crate(world: World) -> TestClient:
    """Another node of the class of `box`."""
    found = client(world.app, enrol(world.app, world.database, "crate"))
    assert found.post("/v1/node/heartbeat", json=heartbeat()).status_code == 200
    return found


def place_on_both(world: World, job_id: str) -> None:
    """Do what the scheduler does."""
    now = utc_now()
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        nodes = [session.query(Node).filter_by(name=name).one() for name in ("box", "crate")]
        taken = leases.take_together(
            session,
            nodes,
            [leases.PLAIN] * 2,
            user_id=job.user_id,
            kind=LeaseKind.WALK_IN,
            start=now,
            end=now + 2 * HOUR,
            grace_s=300,
            now=now,
            actor="test",
            message="Walk-in.",
        )
        lease_on = {lease.node_id: lease for lease in taken}
        places = [attempts.NodeAssignment(node, lease_on[node.id], (0,)) for node in nodes]
        meeting = Rendezvous(address="10.0.0.1", port=20_000)
        assert attempts.assign(session, job, places, now=now, actor="test", rendezvous=meeting)


def submit(world: World) -> str:
    answer = world.ann.post("/v1/jobs", json=SPEC)
    assert answer.status_code == 201, answer.text
    job_id = str(answer.json()["id"])
    place_on_both(world, job_id)
    return job_id


def beat(node: TestClient, job_id: str, phase: str, **changes: Any) -> list[dict[str, Any]]:
    seen = {"job_id": job_id, "epoch": 1, "phase": phase, **changes}
    answer = node.post("/v1/node/heartbeat", json=heartbeat(seen))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["attempts"])


def state_of(world: World, job_id: str) -> str:
    return str(world.ann.get(f"/v1/jobs/{job_id}").json()["state"])


def bring(node: TestClient, job_id: str, *names: str) -> None:
    """Upload files and report them as this node's part of the checkpoint of step 20."""
    files = []
    for name in names:
        content = random.randbytes(64)
        sha256 = hashlib.sha256(content).hexdigest()
        node.put(f"/v1/node/files/{sha256}", content=content)
        files.append({"path": name, "sha256": sha256, "size": len(content)})
    report = {"job_id": job_id, "epoch": 1, "step": 20, "files": files}
    for _ in range(2):  # sent again after a lost answer
        assert node.post("/v1/node/checkpoints", json=report).status_code == 204


def test_the_ranks_start_once_every_node_is_ready(world: World, crate: TestClient) -> None:
    job_id = submit(world)
    (order,) = beat(world.node, job_id, "ready")
    assert order["slots"] == [0]
    assert order["gang"] == {
        "position": 0,
        "rendezvous": {
            **{"address": "10.0.0.1", "port": 20_000, "key": ""},
            "fabric": {"interface": "", "adapters": "", "programs": "relay"},
        },
        "start": False,
    }
    (order,) = beat(crate, job_id, "preparing")
    assert (order["gang"]["position"], order["gang"]["start"]) == (1, False)
    assert not beat(world.node, job_id, "ready")[0]["gang"]["start"]
    assert beat(crate, job_id, "ready")[0]["gang"]["start"]
    assert beat(world.node, job_id, "ready")[0]["gang"]["start"]
    shown = world.ann.get(f"/v1/jobs/{job_id}").json()
    assert [(place["node"], place["ranks"]) for place in shown["nodes"]] == [
        ("box", [0]),
        ("crate", [1]),
    ]


def test_a_checkpoint_is_one_when_every_node_has_brought_its_part(
    world: World, crate: TestClient
) -> None:
    job_id = submit(world)
    beat(world.node, job_id, "running", step=20)
    beat(crate, job_id, "starting")
    bring(crate, job_id, "__1_0.distcp", "manifest-1.json")
    assert world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"] == []
    bring(world.node, job_id, "__0_0.distcp", ".metadata", "manifest.json")
    (found,) = world.ann.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
    assert found["step"] == 20
    with world.database.read() as session:
        kept = session.scalars(select(Checkpoint)).one()
        assert {file["path"] for file in kept.files} == {
            "__0_0.distcp",
            "__1_0.distcp",
            ".metadata",
            "manifest.json",
            "manifest-1.json",
        }
        assert session.scalars(select(CheckpointPart)).all() == []


def test_the_end_of_one_part_is_an_order_to_stop_for_the_other(
    world: World, crate: TestClient
) -> None:
    job_id = submit(world)
    beat(world.node, job_id, "running", step=3)
    beat(crate, job_id, "starting")
    died = exit_record(job_id, outcome="killed", reason="Rank 1 on crate died.", guilt=0)
    died["result"] = None
    assert beat(crate, job_id, "exited", exit=died) == []
    assert state_of(world, job_id) == "stopping"
    (order,) = beat(world.node, job_id, "running", step=3)
    assert order["stop"]["grace_s"] <= 10
    lost = exit_record(job_id, outcome="user_error", reason="Connection closed.", guilt=3)
    lost["result"] = None
    beat(world.node, job_id, "exited", exit=lost)
    assert state_of(world, job_id) == "queued"
    (attempt,) = world.ann.get(f"/v1/jobs/{job_id}/attempts").json()["data"]
    assert (attempt["outcome"], attempt["reason"]) == ("killed", "Rank 1 on crate died.")
    assert [place["reason"] for place in attempt["nodes"]] == [
        "Connection closed.",
        "Rank 1 on crate died.",
    ]


def test_what_cannot_be_is_refused_at_submission(world: World, crate: TestClient) -> None:
    answer = world.ann.post(
        "/v1/jobs", json={**SPEC, "resources": {**SPEC["resources"], "nodes": 3}}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "too_few_nodes")
    lease = f"lease_{'0' * 26}"
    answer = world.ann.post("/v1/jobs", json={**SPEC, "lease": lease})
    assert (answer.status_code, answer.json()["code"]) == (422, "lease_mismatch")
    answer = world.ann.post("/v1/jobs", json={**SPEC, "leases": [lease, lease]})
    assert (answer.status_code, answer.json()["code"]) == (422, "lease_mismatch")
    answer = world.ann.post("/v1/jobs", json={**SPEC, "leases": [lease, lease[:-1] + "1"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_lease")


# ------------------------------------------------------------------------------------- programs


def submit_script(world: World) -> str:
    code = world.ann.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    ).json()["sha256"]
    spec = {
        "name": "parts",
        "script": {"entry": "train.py", "code": code},
        "resources": {"nodes": 2, "ranks_per_node": 1, "wall_time": "20min"},
    }
    answer = world.ann.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    job_id = str(answer.json()["id"])
    place_on_both(world, job_id)
    return job_id


def leave(
    node: TestClient, job_id: str, step: int, files: dict[str, bytes], **report: Any
) -> dict[str, str]:
    """Bring files as this node's part of a checkpoint, and each but the manifest as an artifact;
    their hashes."""
    named = []
    for name, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        assert node.put(f"/v1/node/files/{sha256}", content=content).is_success
        named.append({"path": name, "sha256": sha256, "size": len(content)})
    whole = {"job_id": job_id, "epoch": 1, "step": step, "files": named, **report}
    assert node.post("/v1/node/checkpoints", json=whole).status_code == 204
    for file in named:
        if not file["path"].startswith("manifest"):
            told = {"job_id": job_id, "epoch": 1, "file": file}
            for _ in range(2):  # sent again after a lost answer
                assert node.post("/v1/node/artifacts", json=told).status_code == 204
    return {str(file["path"]): str(file["sha256"]) for file in named}


def checkpoint_files(world: World, job_id: str) -> dict[int, dict[str, str]]:
    with world.database.read() as session:
        rows = session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)).all()
        return {row.step: {f["path"]: f["sha256"] for f in row.files} for row in rows}


@pytest.mark.parametrize("first_comes_last", [False, True])
def test_the_parts_of_a_program_are_one_checkpoint_whatever_their_steps(
    world: World, crate: TestClient, first_comes_last: bool
) -> None:
    job_id = submit_script(world)
    parts = [
        (world.node, 42, {"manifest.json": b"m0", "shard-0": b"0", "same": b"s", "log": b"first"}),
        (crate, 0, {"manifest-1.json": b"m1", "shard-1": b"1", "same": b"s", "log": b"second"}),
    ]
    for node, step, files in reversed(parts) if first_comes_last else parts:
        assert checkpoint_files(world, job_id) == {}
        leave(node, job_id, step, files)
    hashes = {name: hashlib.sha256(name).hexdigest() for name in (b"0", b"1", b"s", b"first")}
    expected = {
        "manifest.json": hashlib.sha256(b"m0").hexdigest(),
        "manifest-1.json": hashlib.sha256(b"m1").hexdigest(),
        "shard-0": hashes[b"0"],
        "shard-1": hashes[b"1"],
        "same": hashes[b"s"],
        "log": hashes[b"first"],
        "node-1/log": hashlib.sha256(b"second").hexdigest(),
    }
    assert checkpoint_files(world, job_id) == {42: expected}
    artifacts = world.ann.get(f"/v1/jobs/{job_id}/artifacts").json()["data"]
    assert {one["path"]: one["sha256"] for one in artifacts} == {
        name: sha256 for name, sha256 in expected.items() if not name.startswith("manifest")
    }
    events = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    renamed = [event["message"] for event in events if event["kind"] == "output_renamed"]
    assert len(renamed) == 1
    assert "node-1/log" in renamed[0]


def test_a_copy_of_the_first_node_counts_only_while_the_others_have_no_output(
    world: World, crate: TestClient
) -> None:
    job_id = submit_script(world)
    beat(world.node, job_id, "ready")
    beat(crate, job_id, "ready")
    leave(world.node, job_id, 10, {"manifest.json": b"a", "w": b"1"}, of_one_node=True)
    assert list(checkpoint_files(world, job_id)) == [10]
    beat(crate, job_id, "running", has_output=True)
    leave(world.node, job_id, 20, {"manifest.json": b"b", "w": b"2"}, of_one_node=True)
    assert list(checkpoint_files(world, job_id)) == [10]
    leave(crate, job_id, 0, {"manifest-1.json": b"c", "v": b"3"})
    leave(world.node, job_id, 30, {"manifest.json": b"d", "w": b"4"})
    found = checkpoint_files(world, job_id)
    assert sorted(found) == [10, 30]
    assert sorted(found[30]) == ["manifest-1.json", "manifest.json", "v", "w"]


def test_a_program_without_output_leaves_no_checkpoint(world: World, crate: TestClient) -> None:
    job_id = submit_script(world)
    leave(world.node, job_id, 3, {"manifest.json": b"a"})
    leave(crate, job_id, 0, {"manifest-1.json": b"b"})
    assert checkpoint_files(world, job_id) == {}
