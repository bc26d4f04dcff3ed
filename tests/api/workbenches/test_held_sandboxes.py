"""Sandboxes of failed jobs that are held: told by their node, entered and released by their
owner."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from core.base.clock import utc_now
from core.states import Outcome
from tests.api.conftest import World
from tests.api.scripts.test_scripts import packed, script_spec, submit
from tests.api.shapes import exit_record, heartbeat, place
from tests.api.workbenches.test_workbenches import refusal

pytestmark = pytest.mark.db
WHY = "Rank 0 on box failed with exit code 1: KeyError: 'x'."
HELD = {"outcome": "user_error", "reason": WHY, "left_s": 1800}


@pytest.fixture
def job(world: World) -> str:
    """A job whose program has failed and is held, by what its node says."""
    answer = world.ann.post(
        "/v1/code",
        content=packed({"train.py": "1/0"}),
        headers={"Content-Type": "application/zip"},
    )
    spec = script_spec(answer.json()["sha256"]) | {"hold_on_failure": "30min"}
    found = submit(world, spec)
    assert found.status_code == 201, found.text
    job = str(found.json()["id"])
    place(world.database, job)
    say(world, job, phase="starting")
    say(world, job, phase="running", held=HELD)
    return job


def say(world: World, job: str, **observed: Any) -> Mapping[str, Any]:
    """What the node is told when it says this of the job."""
    beat = heartbeat({"job_id": job, "epoch": 1, **observed})
    answer = world.node.post("/v1/node/heartbeat", json=beat)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def get(world: World, job: str) -> Mapping[str, Any]:
    return dict(world.ann.get(f"/v1/jobs/{job}").raise_for_status().json())


def test_its_job_runs_until_then_and_says_why_it_has_failed(world: World, job: str) -> None:
    found = get(world, job)
    assert (found["state"], found["reason_code"], found["is_held"]) == (
        "running",
        "failed_held",
        True,
    )
    assert found["reason"].startswith(f"{WHY} Its sandbox is held until ")
    left = datetime.fromisoformat(found["stops_at"]) - utc_now()
    assert timedelta(minutes=29) < left <= timedelta(minutes=30)  # not its 20 min of wall time
    [order] = say(world, job, phase="running", held=HELD)["attempts"]
    assert order["hold_on_failure_s"] == 1800
    assert 29 * 60 < order["deadlines"]["stop_in_s"] <= 30 * 60
    told = [one["message"] for one in world.ann.get(f"/v1/jobs/{job}/events").json()["data"]]
    assert told[-1] == found["reason"]
    assert "Training." not in told
    [listed] = world.ann.get("/v1/workbenches").json()["data"]
    assert (listed["id"], listed["kind"], listed["is_held"]) == (job, "terminal", True)
    assert listed["can_be_entered"] is True


def test_its_node_holds_a_tunnel_and_its_owner_alone_may_enter(world: World, job: str) -> None:
    with world.node.websocket_connect(f"/v1/node/workbenches/{job}/1/tunnel"):
        path = f"/v1/workbenches/{job}/terminals/1"
        assert refusal(world.bob, path) == 404
        assert refusal(world.staff, path) == 403
    assert world.ann.post(f"/v1/workbenches/{job}/entry").status_code in (409, 501)


def test_it_is_released_once_and_the_job_fails_with_its_own_reason(world: World, job: str) -> None:
    assert world.bob.post(f"/v1/jobs/{job}/release").status_code == 404
    world.ann.post(f"/v1/jobs/{job}/release").raise_for_status()
    [order] = say(world, job, phase="running", held=HELD)["attempts"]
    assert order["request"] == {"number": 1, "action": "release"}
    record = exit_record(job, outcome="user_error", reason=WHY, result=None, code=1)
    say(world, job, phase="exited", exit=record)
    found = get(world, job)
    assert (found["state"], found["reason"], found["is_held"]) == ("failed", WHY, False)
    assert world.ann.get("/v1/workbenches").json()["data"] == []
    answer = world.ann.post(f"/v1/jobs/{job}/release")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_held")


def test_a_node_that_is_lost_meanwhile_does_not_start_it_again(world: World, job: str) -> None:
    beat = heartbeat({"job_id": job, "epoch": 1, "phase": "running"}, boot_id="boot-2")
    world.node.post("/v1/node/heartbeat", json=beat).raise_for_status()
    found = get(world, job)
    assert (found["state"], found["reason_code"]) == ("failed", Outcome.USER_ERROR)
    assert WHY in found["reason"]
