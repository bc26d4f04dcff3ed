"""A job starts from any checkpoint of another one of its owner's, and keeps its files."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from api.files.retention import Retention, named_files
from core.base.clock import utc_now
from core.tables.files import Checkpoint
from tests.api.conftest import World
from tests.api.files.test_models import files as model_files
from tests.api.files.test_retention import put, trained
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def fork(world: World, job: str, step: int, **changes: Any) -> Any:
    spec = job_spec(name="fork", start_from={"job": job, "step": step}, **changes)
    return world.ann.post("/v1/jobs", json=spec)


def test_a_fork_starts_from_the_checkpoint_and_outlives_its_source(world: World) -> None:
    source = trained(world, "source")
    made = fork(world, source, 200, training={"steps": 900})
    assert made.status_code == 201, made.text
    forked = made.json()["id"]
    assert made.json()["spec"]["start_from"] == {"job": source, "step": 200}
    [own] = world.ann.get(f"/v1/jobs/{forked}/checkpoints").json()["data"]
    assert (own["step"], own["epoch"]) == (200, 0)
    with world.database.write() as session:  # the source's checkpoints go
        session.execute(
            update(Checkpoint)
            .where(Checkpoint.job_id == source)
            .values(deleted_at=utc_now(), files=[])
        )
    later = utc_now() + timedelta(days=2)
    assert Retention(world.database, world.store, world.process.settings, "test").run(later)
    place(world.database, forked)
    orders = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    [order] = [one for one in orders if one["job_id"] == forked]
    assert order["resume"]["step"] == 200
    assert "start_from" not in order["spec"]
    for file in order["resume"]["files"]:
        assert world.node.get(f"/v1/node/files/{file['sha256']}").content.startswith(b"source 200")


def test_what_cannot_be_forked_is_refused_with_the_field(world: World) -> None:
    source = trained(world, "source")
    done = fork(world, source, 400, training={"steps": 400})
    for answer, field, code, word in (
        (fork(world, source, 300), "start_from.step", "unknown_checkpoint", "400, 200"),
        (fork(world, "job_" + "0" * 26, 200), "start_from.job", "unknown_job", "no job"),
        (done, "training.steps", "nothing_to_do", "400 steps are done"),
        (fork(world, source, 200, model={"layers": 7}), "start_from.job", "another_model", "model"),
    ):
        assert answer.status_code == 422, answer.text
        assert (answer.json()["param"], answer.json()["code"]) == (field, code), answer.text
        assert word in answer.json()["detail"]
    theirs = job_spec(name="fork", start_from={"job": source, "step": 200})
    assert world.bob.post("/v1/jobs", json=theirs).json()["code"] == "unknown_job"


def test_a_recipe_that_has_exported_its_model_is_promoted(world: World) -> None:
    job = str(world.ann.post("/v1/jobs", json=job_spec(training={"steps": 400})).json()["id"])
    place(world.database, job)
    world.node.post("/v1/node/heartbeat", json=heartbeat())
    told = {"job_id": job, "epoch": 1}
    for step in (200, 400):
        files = [put(world, "manifest.json", f"{step}".encode())]
        report = {**told, "step": step, "files": files}
        assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    asked = {"job": job, "step": 400, "name": "mine"}
    early = world.ann.post("/v1/models/promoted", json=asked)
    assert early.json()["code"] == "not_a_model"
    for path, content in {**model_files(), "sample.txt": b"x"}.items():
        artifact = {**told, "file": put(world, path, content)}
        assert world.node.post("/v1/node/artifacts", json=artifact).status_code == 204
    made = world.ann.post("/v1/models/promoted", json=asked)
    assert made.status_code == 201, made.text
    assert (made.json()["origin"]["job"], len(made.json()["files"])) == (job, 3)
    middle = world.ann.post("/v1/models/promoted", json={**asked, "step": 200})
    assert middle.json()["code"] == "not_a_model"
    assert f"start_from: {{job: {job}, step: 200}}" in middle.json()["detail"]
    with world.database.read() as session:
        assert {file["sha256"] for file in made.json()["files"]} <= named_files(session)
