"""Datasets: checked while they stream, kept by content, or refused with the line."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select

from api.files.store import Store
from core.process.settings import ApiSettings
from core.tables.files import Dataset
from tests.api.conftest import World, running_world
from tests.api.shapes import heartbeat, job_spec, place

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def upload(world: World, content: Any, name: str = "mine", format: str = "text") -> Any:
    return world.ann.post("/v1/datasets", params={"name": name, "format": format}, content=content)


def test_a_text_is_kept_and_trains(world: World) -> None:
    answer = upload(world, "héllo\nworld".encode())
    assert answer.status_code == 201, answer.text
    dataset = answer.json()
    assert (dataset["size"], dataset["lines"], dataset["characters"]) == (12, 2, 11)
    assert world.ann.get("/v1/datasets/mine").json() == dataset
    names = [one["name"] for one in world.ann.get("/v1/datasets").json()["data"]]
    assert names == ["python-stdlib", "digits", "mine"]
    preview = world.ann.get("/v1/datasets/mine/preview", params={"num_bytes": 2}).json()
    assert preview == {"text": "h", "is_all": False}  # half of a character is left out

    job = world.ann.post("/v1/jobs", json=job_spec(data={"dataset": "mine"})).json()["id"]
    place(world.database, job)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    fetched = world.node.get(f"/v1/node/files/{order['dataset']['sha256']}")
    assert fetched.content == "héllo\nworld".encode()
    assert order["dataset"]["size"] == 12

    assert world.ann.delete("/v1/datasets/mine").status_code == 204
    assert world.ann.get("/v1/datasets/mine").status_code == 404
    assert upload(world, b"another").status_code == 201  # the name is free again
    assert world.node.get(f"/v1/node/files/{order['dataset']['sha256']}").status_code == 200


def test_json_lines_are_kept_as_documents(world: World) -> None:
    lines = [{"text": "one"}, {"text": "two\n", "source": "x"}, {"text": ""}]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    dataset = upload(world, body, format="jsonl").json()
    assert (dataset["format"], dataset["lines"], dataset["characters"]) == ("jsonl", 3, 7)
    assert "Line 3" in dataset["warnings"][0]
    preview = world.ann.get("/v1/datasets/mine/preview").json()
    assert preview == {"text": body.decode(), "is_all": True}
    job = world.ann.post("/v1/jobs", json=job_spec(data={"dataset": "mine"})).json()["id"]
    place(world.database, job)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert order["dataset_format"] == "jsonl"


def test_what_is_no_text_is_refused_with_the_place(world: World) -> None:
    rows: list[tuple[bytes, str, str, str]] = [
        (b"", "text", "empty", "empty"),
        (b"", "jsonl", "empty", "empty"),
        (b"ab\ncd\x00ef", "text", "binary", "byte 5 (line 2)"),
        (b"\x7fELF\x02\x01\x01\x00", "text", "binary", "NUL"),
        (b"ab\ncd\xe9ef\n", "text", "not_utf8", "byte 5 (line 2) is 0xe9"),
        (b"ab\xc3", "text", "not_utf8", "byte 2 (line 1)"),
        ("utf-16 text".encode("utf-16"), "text", "binary", "NUL"),
        (b'{"text": "a"}\nnonsense\n[1]\n', "jsonl", "bad_lines", "line 2"),
        (b'{"text": 1}', "jsonl", "bad_lines", "line 1"),
        (b'{"text": "\\ud800"}', "jsonl", "bad_lines", "line 1"),
        (b"[" * 100_000, "jsonl", "bad_lines", "line 1"),
    ]
    for body, format, code, word in rows:
        problem = upload(world, body, format=format).json()
        assert problem["code"] == code, problem
        assert word in problem["detail"], problem
    bad_lines = upload(world, b'{"text": "a"}\nnonsense\n[1]\n', format="jsonl").json()
    assert [error["param"] for error in bad_lines["errors"]] == ["body.2", "body.3"]
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Dataset)) == 0
    assert nothing_incoming(world.store)


def nothing_incoming(store: Store) -> bool:
    return not list(store.incoming.iterdir())


def test_names_are_plain_and_taken_once(world: World) -> None:
    for name in ("../up", "a b", "", "x" * 64, "<b>", "a\x00"):
        assert upload(world, b"text", name=name).status_code == 422, name
    assert upload(world, b"text", name="python-stdlib").status_code == 409
    assert upload(world, b"text").status_code == 201
    taken = upload(world, b"other")
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    assert world.ann.delete("/v1/datasets/python-stdlib").status_code == 409


def test_a_text_over_the_cap_is_refused_before_it_is_all_here(settings: ApiSettings) -> None:
    small = settings.model_copy(update={"max_dataset_bytes": 100_000})
    with running_world(small) as world:
        announced = upload(world, b"x" * 100_001)
        assert (announced.status_code, announced.json()["code"]) == (413, "too_large")
        assert "100,000" in announced.json()["detail"]

        def endless() -> Iterator[bytes]:
            for _ in range(1000):
                yield b"x" * 10_000

        assert upload(world, endless()).status_code == 413
        assert upload(world, b"x" * 100_000).status_code == 201
        assert nothing_incoming(world.store)


def test_a_node_brings_files_whole_and_fetches_only_what_it_needs(world: World) -> None:
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path = f"/v1/node/files/{sha256}"
    assert world.node.put(path, content=b"abc").status_code == 409  # it has no attempt
    assert upload(world, b"xyz").status_code == 201
    others = hashlib.sha256(b"xyz").hexdigest()  # nor is it told what others have uploaded
    assert world.store.has(others)
    assert world.node.head(f"/v1/node/files/{others}").status_code == 404
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    assert world.node.head(path).status_code == 404
    torn = world.node.put(path, content=b"ab")
    assert (torn.status_code, torn.json()["code"]) == (422, "hash_mismatch")
    assert world.node.head(path).status_code == 404
    assert world.node.put(path, content=b"abc").status_code == 201
    assert world.node.put(path, content=b"abc").status_code == 200
    assert world.node.head(path).headers["content-length"] == "3"
    assert world.node.get(path).status_code == 404  # nothing on the node needs it
    assert world.node.put("/v1/node/files/..%2f..%2fx", content=b"abc").status_code in (404, 422)
    missing = {"job_id": job, "epoch": 1, "step": 1}
    ref = {"path": "x", "sha256": "0" * 64, "size": 1}
    answer = world.node.post("/v1/node/checkpoints", json={**missing, "files": [ref]})
    assert (answer.status_code, answer.json()["code"]) == (422, "file_missing")
    for bad in ("/etc/passwd", "../x", "a/../b", ".hidden", "a\\b"):
        refused = world.node.post(
            "/v1/node/checkpoints", json={**missing, "files": [{**ref, "path": bad}]}
        )
        assert refused.status_code == 422, bad
