"""Workbenches over HTTP: submitted as jobs, listed for their owner, ordered from their node."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient, WebSocketDenialResponse, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from core.base.clock import utc_now
from core.spec.spec import Launcher
from core.spec.workbench import Workbench
from core.tables.jobs import Attempt, Job
from core.wire.frames import FrameKind, IdleReport, pack_idle, unpack
from core.wire.messages import Orders
from tests.api.agendas.test_agendas import lease
from tests.api.conftest import World
from tests.api.shapes import exit_record, heartbeat, job_spec, place
from tests.one_database import quick_on_sqlite
from tests.running import wait_for

pytestmark = pytest.mark.db
SPEC = {
    "name": "bench",
    "workbench": {"kind": "terminal", "requirements": "einops==0.8.1"},
    "resources": {"wall_time": "50min"},
}


def test_it_is_submitted_planned_and_listed_for_its_owner_alone(world: World) -> None:
    answer = world.ann.post("/v1/jobs", json=SPEC)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["plan"]["ranks_per_node"] == 1
    assert job["spec"]["workspace"] is True
    [listed] = world.ann.get("/v1/workbenches").json()["data"]
    assert (listed["id"], listed["kind"], listed["state"]) == (job["id"], "terminal", "queued")
    assert listed["can_be_entered"] is False
    assert world.bob.get("/v1/workbenches").json()["data"] == []
    assert world.nobody.get("/v1/workbenches").status_code == 401
    world.ann.post("/v1/jobs", json={**SPEC, "name": "another"}).raise_for_status()
    world.ann.post(f"/v1/jobs/{job['id']}/cancel").raise_for_status()
    assert [one["name"] for one in world.ann.get("/v1/workbenches").json()["data"]] == ["another"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"workbench": {"kind": "game"}}, "workbench.kind"),
        ({"resources": {"wall_time": "50min", "nodes": 1, "ranks_per_node": 64}}, "ranks_per_node"),
        ({"inputs": [{"dataset": "nothing"}]}, "inputs.0.dataset"),
        ({"network": ["pypi"]}, "network.0"),
        ({"steps": 3}, "steps"),
    ],
)
def test_what_is_wrong_is_named(world: World, change: dict[str, Any], param: str) -> None:
    answer = world.ann.post("/v1/jobs", json={**SPEC, **change})
    assert answer.status_code == 422
    assert param in answer.text


def refusal(client: TestClient, path: str) -> int:
    """The status with which a handshake is refused."""
    with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect(path):
        pass
    return int(caught.value.status_code)


def test_who_may_not_enter_is_told_as_a_request_is(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    path = f"/v1/workbenches/{job}/terminals/1"
    assert refusal(world.nobody, path) == 401
    assert refusal(world.bob, path) == 404
    assert refusal(world.staff, path) == 403  # a terminal is all that its owner may do
    assert refusal(world.ann, path) == 409  # it waits
    assert refusal(world.node, path) == 401
    ssh = f"/v1/workbenches/{job}/ssh?key=ssh-ed25519%20{'A' * 68}"
    assert refusal(world.nobody, ssh) == 401
    assert refusal(world.bob, ssh) == 404
    assert refusal(world.ann, ssh) == 409
    recipe = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    assert refusal(world.ann, f"/v1/workbenches/{recipe}/terminals/1") == 404


@pytest.mark.parametrize(
    "key", ["", "ssh-rsa AAAA", f"ssh-ed25519 {'A' * 67}", f"ssh-ed25519 {'A' * 68}%0Assh-rsa A"]
)
def test_nothing_but_an_ed25519_key_is_let_in(world: World, key: str) -> None:
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    path = f"/v1/workbenches/{job}/ssh?key={key}"
    with pytest.raises(WebSocketDisconnect), world.ann.websocket_connect(path):
        pass


def test_its_node_is_ordered_to_start_it_and_holds_the_tunnel_of_no_other(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    tunnel = f"/v1/node/workbenches/{job}/1/tunnel"
    assert refusal(world.node, tunnel) == 404
    assert place(world.database, job) == 1
    orders = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()
    order = Orders.model_validate(orders).attempts[0]
    assert isinstance(order.spec, Workbench)
    assert (order.launcher, order.code) == (Launcher.PYTHON, None)
    assert order.workspace is not None
    assert order.workspace.access == "write"
    assert refusal(world.nobody, tunnel) == 401
    assert refusal(world.ann, tunnel) == 401
    assert refusal(world.node, f"/v1/node/workbenches/{job}/2/tunnel") == 404
    with world.node.websocket_connect(tunnel) as held:
        assert unpack(held.receive_bytes()).kind is FrameKind.HELLO


def test_its_packages_are_built_on_its_node_before_its_lease(world: World) -> None:
    later = {**SPEC, "lease": lease(world, start=utc_now() + timedelta(hours=9))}
    assert world.ann.post("/v1/jobs", json=later).status_code == 201
    beat = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()
    assert "build_ahead" not in beat  # older workers refuse fields that they do not know
    soon = {**SPEC, "lease": lease(world, start=utc_now() + timedelta(minutes=50))}
    for name in ("one", "another"):
        assert world.ann.post("/v1/jobs", json={**soon, "name": name}).status_code == 201
    beat = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()
    assert beat["build_ahead"] == [{"requirements": "einops==0.8.1", "network": None}]


def test_one_that_has_started_before_its_lease_is_entered_when_that_begins(world: World) -> None:
    later = lease(world, start=utc_now() + timedelta(days=2))
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    assert place(world.database, job) == 1
    beat = heartbeat({"job_id": job, "epoch": 1, "phase": "running"})
    world.node.post("/v1/node/heartbeat", json=beat).raise_for_status()
    path = f"/v1/workbenches/{job}/terminals/1"

    def belongs_to(lease_id: str | None) -> bool:
        with world.database.write() as session:
            session.get_one(Job, job).lease_id = lease_id
        [listed] = world.ann.get("/v1/workbenches").json()["data"]
        return bool(listed["can_be_entered"])

    assert not belongs_to(later)
    assert refusal(world.ann, path) == 409
    assert belongs_to(None)
    assert refusal(world.ann, path) == 503  # the lock is open: its node is not connected


@quick_on_sqlite
def test_it_is_idle_by_the_policy_and_says_what_its_gpus_hold(world: World) -> None:
    yaml = {"Content-Type": "application/yaml"}
    policy = "policy: {id: idle, zone: UTC}\nscheduling: {idle_after_min: 15}\n"
    bench = {**SPEC, "workbench": {"kind": "terminal", "when_idle": "lend"}}
    job = world.ann.post("/v1/jobs", json=bench).json()["id"]
    assert place(world.database, job) == 1
    beat = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()
    assert "idle_after_s" not in beat["attempts"][0]  # no policy: nobody looks
    world.admin.post("/v1/policies", content=policy, headers=yaml).raise_for_status()
    beat = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()
    assert beat["attempts"][0]["idle_after_s"] == 900
    running = {"job_id": job, "epoch": 1, "phase": "running"}

    def look(pct: float | None, held_gib: float) -> None:
        load = {**heartbeat()["telemetry"], "gpu_pct": [pct], "gpu_memory_used_gib": [held_gib]}
        beat = {**heartbeat(running), "telemetry": load}
        world.node.post("/v1/node/heartbeat", json=beat).raise_for_status()

    def note() -> str:
        [found] = world.ann.get("/v1/workbenches").json()["data"]
        assert (found["idle_since"] is None) == (found["idle_note"] == "")
        return str(found["idle_note"])

    def report(held: WebSocketTestSession, *, is_idle: bool) -> str:
        """Its note once the report counts."""
        held.send_bytes(pack_idle(IdleReport(is_idle, after_s=900)))
        wait_for(lambda: (note() != "") == is_idle, what="the report", within_s=10)
        return note()

    look(0, 0)
    assert note() == ""
    with world.node.websocket_connect(f"/v1/node/workbenches/{job}/1/tunnel") as held:
        held.send_bytes(held.receive_bytes())  # HELLO
        assert "lent until your next key" in report(held, is_idle=True)
        look(0, 3.2)
        assert "holds 3.2 GiB of GPU memory, so its slots are not lent" in note()
        assert report(held, is_idle=False) == ""
        report(held, is_idle=True)
        look(80, 3.2)  # a program computes on the GPU
        assert note() == ""
        held.send_bytes(pack_idle(IdleReport(True, after_s=900)))
        look(0, 3.2)
        assert note() == "", "its GPUs were used a moment ago"
        with world.database.write() as session:
            session.scalars(select(Attempt)).one().gpus_used_at = None
        assert "lent until your next key" in report(held, is_idle=True)
        look(None, 0)
        assert note() == "", "nobody knows whether its GPUs are used"
    kinds = [one["kind"] for one in world.ann.get(f"/v1/jobs/{job}/events").json()["data"]]
    assert [one for one in kinds if one in ("left", "returned")] == ["left", "returned"] * 3


@pytest.mark.parametrize("outcome", ["lease_ended", "time_limit"])
def test_it_is_over_with_its_time_and_does_not_start_again_with_nobody_there(
    world: World, outcome: str
) -> None:
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    assert place(world.database, job) == 1
    seen = {"job_id": job, "epoch": 1}
    for observed in (
        {**seen, "phase": "running"},
        *([{**seen, "phase": "stopping"}] if outcome == "time_limit" else []),
        {
            **seen,
            "phase": "exited",
            "exit": exit_record(job, outcome=outcome, reason="Its time is over.", result=None),
        },
    ):
        world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).raise_for_status()
    found = world.ann.get(f"/v1/jobs/{job}").json()
    assert (found["state"], found["reason_code"]) == ("cancelled", outcome)
    assert "workspace is kept" in found["reason"]
    assert "Queued again" not in found["reason"]
    assert world.ann.get("/v1/workbenches").json()["data"] == []


def test_a_program_is_not_asked_for_a_profile(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=SPEC).json()["id"]
    answer = world.ann.post(f"/v1/jobs/{job}/profile")
    assert answer.status_code == 409
    assert "program" in answer.json()["detail"]
