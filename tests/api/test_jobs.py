"""Jobs over HTTP: submit, list, steer."""

from tests.api.conftest import World
from tests.api.shapes import job_spec


def submitted(world: World, **changes: object) -> dict[str, object]:
    answer = world.ann.post("/v1/jobs", json=job_spec(**changes))
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_submitted_job_is_queued_with_its_plan_and_a_reason(world: World) -> None:
    job = submitted(world)
    assert job["state"] == "queued"
    assert job["reason"]
    assert job["user"] == "ann"
    assert job["plan"]["world_size"] == 2
    assert job["spec"]["resources"]["wall_time"] == "20min"
    assert world.ann.get(f"/v1/jobs/{job['id']}").json() == job
