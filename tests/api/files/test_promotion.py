"""A job's checkpoint becomes a model by one request: checked, versioned, nothing copied."""

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.conftest import World
from tests.api.files.test_models import SHAPE, files, fine_tuning, safetensors, tar, upload
from tests.api.files.test_retention import put
from tests.api.shapes import job_spec, place

pytestmark = pytest.mark.db
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def trained(world: World, checkpoints: Mapping[int, Mapping[str, bytes]]) -> str:
    """A job with these files in its checkpoints, as its node brings them; its id."""
    job = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job)
    for step, contents in checkpoints.items():
        refs = [put(world, path, content) for path, content in contents.items()]
        report = {"job_id": job, "epoch": 1, "step": step, "files": refs}
        assert world.node.post("/v1/node/checkpoints", json=report).status_code == 204
    return job


def promote(world: World, job: str, step: int, name: str = "tuned", **headers: str) -> Any:
    body = {"job": job, "step": step, "name": name}
    return world.ann.post("/v1/models/promoted", json=body, headers=headers or None)


def test_a_checkpoint_becomes_a_model_that_knows_its_origin_and_its_jobs(world: World) -> None:
    below = {f"last/{path}": content for path, content in files().items()}
    job = trained(world, {400: {**below, "manifest.json": b"{}", "notes.txt": b"notes"}})
    stored = {path: hashlib.sha256(content).hexdigest() for path, content in files().items()}
    before = sorted(path.name for path in world.store.root.rglob("*") if path.is_file())
    answer = promote(world, job, 400)
    assert answer.status_code == 201, answer.text
    model = answer.json()
    assert {file["path"]: file["sha256"] for file in model["files"]} == stored
    assert model["model"] == {**SHAPE, "checkpoint": "tuned"}
    assert (model["version"], model["has_tokenizer"], model["used_by"]) == (1, True, [])
    assert model["origin"] == {"job": job, "step": 400, "epoch": 1, "hub": None}
    after = sorted(path.name for path in world.store.root.rglob("*") if path.is_file())
    assert after == before  # nothing is copied

    spec = fine_tuning(checkpoint="tuned")
    used = world.ann.post("/v1/jobs", json=spec)
    assert used.status_code == 201, used.text
    assert world.ann.get("/v1/models/tuned").json()["used_by"] == [used.json()["id"]]


def test_a_name_gets_its_next_version_and_the_earlier_one_stays(world: World) -> None:
    first = upload(world, tar(files()), "tuned").json()
    assert (first["version"], first["origin"]) == (1, None)
    job = trained(world, {200: files(), 400: {**files(), "tokenizer.json": b'{"new": 1}'}})
    second = promote(world, job, 200, **{"Idempotency-Key": "a-key-of-its-own-1"}).json()
    again = promote(world, job, 200, **{"Idempotency-Key": "a-key-of-its-own-1"}).json()
    assert (second["version"], again["id"]) == (2, second["id"])
    assert promote(world, job, 400).json()["version"] == 3
    named = {one["name"]: one["version"] for one in world.ann.get("/v1/models").json()["data"]}
    assert named == {"tuned@1": 1, "tuned@2": 2, "tuned": 3}
    assert world.ann.get("/v1/models/tuned@1").json()["id"] == first["id"]
    old = world.ann.post("/v1/jobs", json=fine_tuning(checkpoint="tuned@2"))
    assert old.status_code == 201, old.text


@on_sqlite
def test_what_is_no_model_or_anothers_is_refused_with_what_there_is(world: World) -> None:
    cut = safetensors(["model.embed_tokens.weight"])
    job = trained(
        world,
        {
            100: {"checkpoint.pt": b"pickle", "manifest.json": b"{}"},
            200: {**files(), "model.safetensors": cut},
            300: {**files(), "model.safetensors": files()["model.safetensors"][:-4]},
        },
    )
    for step, status, code, part in (
        (100, 422, "not_a_model", "It has checkpoint.pt, manifest.json."),
        (200, 422, "weights_missing", "weights are missing"),
        (300, 422, "torn", "truncated"),
        (999, 404, "not_found", "Its steps: 300, 200, 100."),
    ):
        answer = promote(world, job, step)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert part in answer.json()["detail"]
    theirs = world.bob.post("/v1/models/promoted", json={"job": job, "step": 200, "name": "mine"})
    assert theirs.status_code == 404
    assert world.ann.get("/v1/models").json()["data"] == []
