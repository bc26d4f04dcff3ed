"""People's own tokenizers: kept, named in specs, and brought to the nodes that train with them."""

import json
from typing import Any

import pytest
from sqlalchemy import select

from api.files.retention import named_files
from core.tables.files import StoredFile
from tests.api.conftest import World
from tests.api.files.test_retention import put
from tests.api.files.test_uploads import sent_whole
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def content(tokens: int, **changes: Any) -> bytes:
    vocabulary = {f"t{number}": number for number in range(tokens)}
    added = [{"id": tokens, "content": "<|endoftext|>"}]
    told = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": added}
    return json.dumps({**told, **changes}).encode()


def upload(world: World, name: str, files: dict[str, bytes]) -> Any:
    uploads = [sent_whole(world, body, path, "file") for path, body in files.items()]
    return world.ann.post("/v1/tokenizers/uploaded", json={"name": name, "uploads": uploads})


def pretraining(**data: Any) -> dict[str, Any]:
    told = {
        "dataset": "python-stdlib",
        "tokenizer": "huggingface",
        "tokenizer_name": "mine",
        **data,
    }
    return job_spec(data=told)


def test_a_tokenizer_is_kept_and_its_vocabulary_follows_into_the_job(world: World) -> None:
    files = {"tokenizer.json": content(299), "tokenizer_config.json": b"{}"}
    made = upload(world, "mine", files)
    assert made.status_code == 201, made.text
    tokenizer = made.json()
    assert (tokenizer["vocabulary_size"], len(tokenizer["files"])) == (300, 2)
    assert world.ann.get("/v1/tokenizers").json()["data"] == [tokenizer]
    assert upload(world, "mine", files).json()["code"] == "name_taken"
    assert world.bob.get("/v1/tokenizers/mine").status_code == 404

    job = world.ann.post("/v1/jobs", json=pretraining())
    assert job.status_code == 201, job.text
    assert job.json()["spec"]["data"]["vocabulary_size"] == 300
    assert world.ann.delete("/v1/tokenizers/mine").status_code == 204  # the job keeps its files
    with world.database.read() as session:
        named = named_files(session)
        stored = set(session.scalars(select(StoredFile.sha256)))
    assert {file["sha256"] for file in tokenizer["files"]} <= named & stored
    place(world.database, job.json()["id"])
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    for file in order["tokenizer"]:
        got = world.node.get(f"/v1/node/files/{file['sha256']}")
        assert got.content == files[file["path"]]


def test_what_is_no_tokenizer_or_does_not_fit_is_refused(world: World) -> None:
    for files, word in (
        ({"tokenizer.json": b"{}"}, "is not a tokenizer"),
        ({"tokenizer.json": content(5, added_tokens=[{"id": 2**40}])}, "numbers its tokens up to"),
        ({"tokenizer_config.json": b"{}"}, "tokenizer.json is missing"),
        ({"tokenizer.json": content(5), "evil.py": b"x"}, "evil.py is none of"),
    ):
        refused = upload(world, "mine", files)
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_tokenizer")
        assert word in refused.json()["detail"]
    unknown = world.ann.post("/v1/jobs", json=pretraining())
    assert unknown.json()["code"] == "unknown_tokenizer"
    assert upload(world, "mine", {"tokenizer.json": content(299)}).status_code == 201
    small = world.ann.post("/v1/jobs", json=pretraining(vocabulary_size=299))
    assert small.json()["code"] == "vocabulary_too_small"
    assert "300 tokens" in small.json()["detail"]
    larger = world.ann.post("/v1/jobs", json=pretraining(vocabulary_size=320))
    assert larger.json()["spec"]["data"]["vocabulary_size"] == 320
    unused = world.ann.post("/v1/jobs", json=pretraining(tokenizer="bytes", vocabulary_size=None))
    assert "tokenizer_name" in unused.json()["detail"]


def test_a_job_that_has_left_a_tokenizer_gives_it(world: World) -> None:
    job = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    asked = {"job": job, "name": "mine"}
    early = world.ann.post("/v1/tokenizers/promoted", json=asked)
    assert early.json()["code"] == "not_a_tokenizer"
    place(world.database, job)
    world.node.post("/v1/node/heartbeat", json=heartbeat())
    for path, body in (("tokenizer.json", content(9)), ("sample.txt", b"x")):
        artifact = {"job_id": job, "epoch": 1, "file": put(world, path, body)}
        assert world.node.post("/v1/node/artifacts", json=artifact).status_code == 204
    made = world.ann.post("/v1/tokenizers/promoted", json=asked).json()
    assert (made["vocabulary_size"], made["job"], len(made["files"])) == (10, job, 1)
    assert world.bob.post("/v1/tokenizers/promoted", json=asked).status_code == 404


def test_rows_are_shown_as_tokens_with_what_is_learned(world: World) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
        {"prompt": "one ", "completion": "two"},
    ]
    body = "\n".join(json.dumps(row) for row in rows).encode()
    told = {"name": "chats", "format": "jsonl"}
    assert world.ann.post("/v1/datasets", params=told, content=body).status_code == 201
    shown = world.ann.get("/v1/datasets/chats/rows").json()
    chat, completion = shown["rows"]
    assert (shown["tokenizer"], chat["place"], chat["form"]) == ("bytes", "line 1", "chat")
    learned = "".join(piece["text"] for piece in chat["pieces"] if piece["learned"])
    assert (learned, chat["num_learned"]) == ("Ho\n", 3)
    assert completion["pieces"] == [
        {"text": "one ", "learned": False},
        {"text": "two", "learned": True},
    ]
    assert (completion["num_tokens"], completion["is_cut"]) == (7, False)
    few = world.ann.get("/v1/datasets/chats/rows", params={"count": 1, "max_tokens": 2}).json()
    assert [row["is_cut"] for row in few["rows"]] == [True]
    unknown = world.ann.get("/v1/datasets/chats/rows", params={"tokenizer": "mine"})
    assert unknown.status_code == 404
    assert world.bob.get("/v1/datasets/chats/rows").status_code == 404
    assert world.ann.get("/v1/datasets/digits/rows").json()["code"] == "no_preview"


def test_rows_are_shown_by_a_tokenizer_of_ones_own(world: World) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    words = {"one": 0, "two": 1, "[UNK]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    files = {
        "tokenizer.json": made.to_str().encode(),
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
    }
    assert upload(world, "mine", files).status_code == 201
    told = {"name": "rows", "format": "jsonl"}
    body = b'{"prompt": "one two ", "completion": "two one"}'
    assert world.ann.post("/v1/datasets", params=told, content=body).status_code == 201
    answer = world.ann.get("/v1/datasets/rows/rows", params={"tokenizer": "mine"})
    assert answer.status_code == 200, answer.text
    [row] = answer.json()["rows"]
    assert [(piece["text"], piece["learned"]) for piece in row["pieces"]] == [
        ("one", False),
        ("two", False),
        ("two", True),
        ("one", True),
    ]
    assert (row["num_tokens"], row["num_learned"]) == (4, 2)
