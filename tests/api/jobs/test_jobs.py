"""Jobs over HTTP: submit, list, steer."""

import json

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


def test_fields_in_the_query_are_laid_over_the_body(world: World) -> None:
    changes = {"name": "other", "resources": {"wall_time": "9h"}, "lease": None}
    key = {"Idempotency-Key": "over"}
    path = "/v1/jobs"
    made = world.ann.post(
        path, params={"changes": json.dumps(changes)}, json=job_spec(), headers=key
    )
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["wall_time_s"]) == ("other", 9 * 3600)
    for wrong, why in (
        ({"resources": {"wall_time": "never"}}, "resources.wall_time"),
        ({"colour": "red"}, "colour"),
    ):
        refused = world.ann.post(path, params={"changes": json.dumps(wrong)}, json=job_spec())
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"][0]["param"] == why
    refused = world.ann.post(path, params={"changes": "[1]"}, json=job_spec())
    assert refused.status_code in (400, 422)
    other = world.ann.post(path, json=job_spec(), headers=key)
    assert other.status_code == 422, other.text  # the key was used for another request
