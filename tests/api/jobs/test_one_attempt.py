"""A job that may run out of memory has one attempt."""

from tests.api.conftest import World
from tests.api.shapes import exit_record, free, heartbeat, job_spec, place


def test_a_job_with_allow_oom_is_never_retried(world: World) -> None:
    for allowed, state in ((True, "failed"), (False, "queued")):
        spec = job_spec(resources={"wall_time": "20min", "allow_oom": allowed})
        job = world.ann.post("/v1/jobs", json=spec).json()["id"]
        place(world.database, job)
        record = exit_record(job, outcome="start_failed", reason="Port taken.", result=None)
        observed = {"job_id": job, "epoch": 1, "phase": "exited", "exit": record, "kept": True}
        assert world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).status_code == 200
        free(world.database)
        found = world.ann.get(f"/v1/jobs/{job}").json()
        assert found["state"] == state, found
        if allowed:
            assert "has one attempt" in found["reason"]
