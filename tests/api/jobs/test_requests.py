"""What a running job can be asked for: the node hears of it until a newer request."""

from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place


def running(world: World) -> str:
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job_id)
    observed = {"job_id": job_id, "epoch": 1, "phase": "running", "step": 3}
    assert world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).status_code == 200
    return job_id


def test_requests_are_numbered_and_reach_the_node(world: World) -> None:
    job_id = running(world)
    for number, action in enumerate(("profile", "snapshot", "profile"), start=1):
        answer = world.ann.post(f"/v1/jobs/{job_id}/{action}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["state"] == "running"
        observed = {"job_id": job_id, "epoch": 1, "phase": "running", "step": 3}
        orders = world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).json()
        assert orders["attempts"][0]["request"] == {"number": number, "action": action}
    events = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    asked = [event["kind"] for event in events if event["kind"].endswith("_asked")]
    assert asked == ["profile_asked", "snapshot_asked", "profile_asked"]


def test_only_a_running_job_can_be_asked_and_only_by_its_owner(world: World) -> None:
    waiting = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    answer = world.ann.post(f"/v1/jobs/{waiting}/snapshot")
    assert answer.status_code == 409
    assert "only a running job can be asked for a memory snapshot" in answer.json()["detail"]
    assert world.bob.post(f"/v1/jobs/{waiting}/profile").status_code == 404
