"""A job that its owner shares: others read it and start from its checkpoints, and steer nothing."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import api_routes
from core.tables.kinds import Role
from tests.api.conftest import World, add_person, client
from tests.api.files.test_models import files as model_files
from tests.api.files.test_promotion import trained as with_checkpoints
from tests.api.files.test_retention import trained
from tests.api.jobs.test_inputs import packed
from tests.api.jobs.test_inputs import spec as program
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

BODIES = {"tags": {"tags": []}, "report": {"when_ended": True}}
"""Bodies of the routes that demand one, by the last word of their path."""
USES = {"/v1/jobs/{job_id}/clone"}
"""Routes that make something of the reader's own."""


def share(world: World, job: str, **who: object) -> Any:
    return world.ann.post("/v1/shares", json={"kind": "job", "thing": job, **who})


def routes_of_a_job(*methods: str) -> list[tuple[str, str]]:
    """(method, path) of every route of the API that names one job."""
    return [
        (method, route.path)
        for route in api_routes()
        for method in sorted(route.methods & set(methods))
        if re.match(r"/v1/jobs/\{job_id\}", route.path)
    ]


def statuses(caller: TestClient, job: str, *methods: str) -> dict[tuple[str, str], int]:
    """Map every route of a job -> the status of its answer; a stream is left at its first byte."""
    values = {"job_id": job}
    for room in ("checkpoints", "artifacts"):
        found = caller.get(f"/v1/jobs/{job}/{room}").json().get("data") or [{"id": "none"}]
        values[f"{room.removesuffix('s')}_id"] = found[0]["id"]
    told = {}
    for method, path in routes_of_a_job(*methods):
        address = re.sub(r"\{([a-z_]+)\}", lambda found: values[found[1]], path)
        body = None if method == "GET" else BODIES.get(path.rpartition("/")[2], {})
        with caller.stream(method, address, params={"with": job}, json=body) as answer:
            told[method, path] = answer.status_code
    return told


def test_readers_read_what_its_owner_reads_and_steer_nothing(world: World) -> None:
    job = trained(world, "source")
    person = client(world.app, add_person(world.database, "dan", Role.USER))
    everything = statuses(world.ann, job, "GET")
    answered = {route for route, status in everything.items() if status == 200}
    assert len(answered) >= 9  # the job, events, attempts, files, logs, metrics, the stream
    assert set(statuses(world.bob, job, "GET").values()) == {404}

    made = share(world, job, person="bob")
    assert (made.status_code, made.json()["name"]) == (201, "source"), made.text
    assert statuses(world.bob, job, "GET") == everything
    assert set(statuses(person, job, "GET").values()) == {404}
    steers = statuses(world.bob, job, "POST", "PUT", "PATCH", "DELETE")
    assert len(steers) >= 8
    assert {status for (_, path), status in steers.items() if path not in USES} == {404}
    refused = world.bob.post(f"/v1/jobs/{job}/cancel").json()
    assert refused["detail"] == "source is shared with you to read. Its owner steers it."
    assert (
        world.bob.post("/v1/shares", json={"kind": "job", "thing": job, "person": "dan"})
        .json()["detail"]
        .startswith("You have no job")
    )

    listed = world.bob.get("/v1/jobs", params={"shared": True}).json()["data"]
    assert [(one["id"], one["user"]) for one in listed] == [(job, "ann")]
    assert job not in {one["id"] for one in world.bob.get("/v1/jobs").json()["data"]}
    assert world.ann.get("/v1/jobs", params={"shared": True}).json()["data"] == []
    read = [row["kind"] for row in world.staff.get("/v1/admin/audit").json()["data"]]
    assert {"job.read_checkpoint", "job.read_artifact", "job.read_logs"} <= set(read)

    assert world.ann.delete(f"/v1/shares/{made.json()['id']}").status_code == 204
    assert set(statuses(world.bob, job, "GET").values()) == {404}


def test_a_reader_starts_from_its_checkpoint_and_keeps_it_when_sharing_ends(world: World) -> None:
    source = trained(world, "source")
    wanted = job_spec(name="fork", start_from={"job": source, "step": 200})
    for refused in (world.bob, world.staff):  # staff read it, and start from it if it is shared
        answer = refused.post("/v1/jobs", json=wanted)
        assert (answer.status_code, answer.json()["param"]) == (422, "start_from.job")
    made = share(world, source, everybody=True).json()
    fork = world.bob.post("/v1/jobs", json=wanted)
    assert fork.status_code == 201, fork.text
    assert world.ann.delete(f"/v1/shares/{made['id']}").status_code == 204
    assert world.bob.post("/v1/jobs", json=wanted).json()["code"] == "unknown_job"
    job = fork.json()["id"]
    place(world.database, job)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert order["resume"]["step"] == 200
    (file,) = order["resume"]["files"]
    content = world.node.get(f"/v1/node/files/{file['sha256']}").content
    assert content.startswith(b"source 200")


def test_a_reader_names_its_checkpoint_as_an_input_and_promotes_it(world: World) -> None:
    job = with_checkpoints(world, {400: model_files()})
    code = world.bob.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    ).json()["sha256"]
    reads = program(code, {"checkpoint": f"{job}/step-400"})
    asked = {"job": job, "step": 400, "name": "tuned"}
    assert world.bob.post("/v1/jobs", json=reads).json()["code"] == "unknown_job"
    assert world.bob.post("/v1/models/promoted", json=asked).status_code == 404
    assert share(world, job, person="bob").status_code == 201
    answer = world.bob.post("/v1/jobs", json=reads)
    assert answer.status_code == 201, answer.text
    assert answer.json()["inputs"][0]["source"] == f"{job}/step-400"
    model = world.bob.post("/v1/models/promoted", json=asked)
    assert model.status_code == 201, model.text
    assert (model.json()["owner"], model.json()["origin"]["job"]) == ("bob", job)
