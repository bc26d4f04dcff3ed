"""What a job has fetched becomes a model or a dataset: checked, with its commit, not copied."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from core.process.settings import ApiSettings
from tests.api.conftest import World, running_world
from tests.api.files.test_models import SHAPE, files, safetensors
from tests.api.files.test_retention import put
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

COMMIT = "c0ffee" + "0" * 34


def fetched(
    world: World, contents: Mapping[str, bytes], *, kind: str = "model", **changes: Any
) -> str:
    """A job that has left these files and their record, as its node brings them; its id."""
    told = {"kind": kind, "repository": "lab/tiny", "commit": COMMIT, "files": sorted(contents)}
    left = {**contents, "hub.json": json.dumps({**told, **changes}).encode()}
    job = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    place(world.database, job)
    world.node.post("/v1/node/heartbeat", json=heartbeat())
    for path, body in left.items():
        artifact = {"job_id": job, "epoch": 1, "file": put(world, path, body)}
        assert world.node.post("/v1/node/artifacts", json=artifact).status_code == 204
    return job


def take(world: World, job: str, kind: str = "models", **headers: str) -> Any:
    body = {"job": job, "name": "tiny"}
    return world.ann.post(f"/v1/{kind}/fetched", json=body, headers=headers or None)


def test_a_fetched_model_is_kept_with_its_commit(world: World) -> None:
    job = fetched(world, files())
    before = sorted(path.name for path in world.store.root.rglob("*") if path.is_file())
    answer = take(world, job, **{"Idempotency-Key": "a-key-of-its-own-1"})
    assert answer.status_code == 201, answer.text
    model = answer.json()
    wanted = {path: hashlib.sha256(body).hexdigest() for path, body in files().items()}
    assert {file["path"]: file["sha256"] for file in model["files"]} == wanted
    assert model["model"] == {**SHAPE, "checkpoint": "tiny"}
    assert model["origin"] == {"job": job, "step": None, "epoch": 1, "hub": f"lab/tiny@{COMMIT}"}
    after = sorted(path.name for path in world.store.root.rglob("*") if path.is_file())
    assert after == before  # nothing is copied
    again = take(world, job, **{"Idempotency-Key": "a-key-of-its-own-1"}).json()
    assert (again["id"], again["version"]) == (model["id"], 1)
    assert take(world, job).json()["version"] == 2
    theirs = world.bob.post("/v1/models/fetched", json={"job": job, "name": "mine"})
    assert theirs.status_code == 404


@pytest.mark.parametrize(
    ("contents", "changes", "code", "part"),
    [
        (files(), {"commit": "main"}, "not_fetched", "commit: String should match"),
        (files(), {"kind": "dataset"}, "not_fetched", "has fetched a dataset, not a model"),
        (files(), {"files": ["config.json", "gone.json"]}, "not_fetched", "such as gone.json"),
        (files(), {"files": ["../config.json"]}, "not_fetched", "files.0"),
        ({"config.json": files()["config.json"]}, {}, "weights_missing", "weights are missing"),
        ({**files(), "model.bin": b"pickle"}, {}, "pickle", "model.bin"),
        (
            {**files(), "model.safetensors": safetensors(["model.embed_tokens.weight"])},
            {},
            "weights_missing",
            "weights are missing",
        ),
    ],
)
def test_what_is_no_model_or_has_no_record_is_refused(
    world: World, contents: dict[str, bytes], changes: dict[str, Any], code: str, part: str
) -> None:
    answer = take(world, fetched(world, contents, **changes))
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert part in answer.json()["detail"]
    assert world.ann.get("/v1/models").json()["data"] == []


LINES = {
    "data/b.jsonl": b'{"text": "two"}\n{"text": "three"}\n',
    "data/a.jsonl": b'{"prompt": "one", "completion": "1"}\n',
}


def test_a_fetched_dataset_is_kept_with_its_commit(world: World) -> None:
    job = fetched(world, LINES, kind="dataset")
    answer = take(world, job, "datasets", **{"Idempotency-Key": "a-key-of-its-own-2"})
    assert answer.status_code == 201, answer.text
    dataset = answer.json()
    assert [file["path"] for file in dataset["files"]] == ["data/a.jsonl", "data/b.jsonl"]
    assert (dataset["format"], dataset["lines"], dataset["warnings"]) == ("jsonl", 3, [])
    assert dataset["origin"] == {"job": job, "epoch": 1, "hub": f"lab/tiny@{COMMIT}"}
    again = take(world, job, "datasets", **{"Idempotency-Key": "a-key-of-its-own-2"})
    assert again.json()["id"] == dataset["id"]
    assert take(world, job, "datasets").json()["code"] == "name_taken"
    rows = world.ann.get("/v1/datasets/tiny/rows").json()["rows"]
    assert rows[0]["form"] == "completion"
    spec = job_spec(data={"dataset": "tiny", "tokenizer": "bytes", "sequence_length": 16})
    assert world.ann.post("/v1/jobs", json=spec).status_code == 201


def test_of_a_long_text_the_beginning_is_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.files.fetched.MOST_TEXT", 20)
    job = fetched(world, {"a.txt": "süß\n".encode() * 10, "b.txt": b"\0"}, kind="dataset")
    dataset = take(world, job, "datasets").json()
    assert (dataset["format"], dataset["lines"], dataset["size"]) == ("text", None, 61)
    assert dataset["warnings"] == [
        "The first 1 of 2 files were checked.",
        "The first 4 lines were checked.",
    ]


@pytest.mark.parametrize(
    ("contents", "code", "part"),
    [
        ({**LINES, "data/c.jsonl": b"{}\n"}, "bad_lines", "data/c.jsonl: line 1"),
        ({"a.txt": b"\xff"}, "not_utf8", "a.txt: This is not UTF-8"),
        ({"a.parquet": b"none"}, "bad_table", "a.parquet: The table"),
        ({"a.txt": b"one", "b.jsonl": b"{}"}, "not_fetched", "its files are jsonl, text"),
        ({"a.pkl": b"one"}, "not_fetched", "its files are unknown"),
    ],
)
def test_what_is_no_dataset_is_refused_with_its_file(
    world: World, contents: dict[str, bytes], code: str, part: str
) -> None:
    answer = take(world, fetched(world, contents, kind="dataset"), "datasets")
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert part in answer.json()["detail"]
    names = [one["name"] for one in world.ann.get("/v1/datasets").json()["data"]]
    assert "tiny" not in names


@pytest.fixture
def limited(settings: ApiSettings) -> Iterator[World]:
    """A platform on which a person may store 2,500 bytes."""
    with running_world(settings.model_copy(update={"user_storage_gib": 2500 / 2**30})) as world:
        yield world


@pytest.mark.parametrize(
    ("kind", "contents"), [("model", files()), ("dataset", {"a.txt": b"text " * 300})]
)
def test_what_was_fetched_needs_room(limited: World, kind: str, contents: dict[str, bytes]) -> None:
    size = sum(map(len, contents.values()))
    assert 1250 < size < 2000, size  # once as the job's own, and once more
    answer = take(limited, fetched(limited, contents, kind=kind), f"{kind}s")
    assert (answer.status_code, answer.json()["code"]) == (409, "storage_full"), answer.text
