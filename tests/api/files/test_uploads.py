"""Uploads in parts: they go on at the offset that is safe, for their owner, and are checked as
they arrive."""

import base64
import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from api.files.arrival import Arrivals
from api.files.resumable import forget_abandoned
from api.files.retention import named_files
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from core.tables.files import StoredFile, Upload
from tests.api.conftest import World, running_world
from tests.api.files.test_models import files as model_files
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import heartbeat, job_spec, place

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
MARK = "0123456789abcdef"


def begin(world: World, num_bytes: int, **told: Any) -> Any:
    body = {"path": "data.txt", "size": num_bytes, "fingerprint": MARK, "format": "text", **told}
    return world.ann.post("/v1/uploads", json=body)


def send(world: World, upload: str, offset: int, content: Any, **headers: str) -> Any:
    told = {"Upload-Offset": str(offset), "Content-Type": "application/partial-upload", **headers}
    return world.ann.patch(f"/v1/uploads/{upload}", headers=told, content=content)


def finish(world: World, upload: str, content: bytes) -> Any:
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    last = {"Upload-Complete": "?1", "Repr-Digest": f"sha-256=:{digest}:"}
    return send(world, upload, len(content), b"", **last)


def sent_whole(world: World, content: bytes, path: str, format: str) -> str:
    mark = hashlib.sha256(path.encode() + content).hexdigest()
    begun = begin(world, len(content), path=path, format=format, fingerprint=mark)
    upload = str(begun.json()["id"])
    assert send(world, upload, 0, content).status_code == 204
    done = finish(world, upload, content)
    assert (done.status_code, done.headers["upload-complete"]) == (204, "?1"), done.text
    return upload


def on_disk(world: World) -> list[str]:
    return [path.name for path in world.process.service(Arrivals).folder.glob("*")]


def test_a_text_arrives_in_parts_and_becomes_a_dataset(world: World) -> None:
    text = "one\ntwö\nthree\n".encode()
    begun = begin(world, len(text))
    upload = begun.json()["id"]
    assert begun.headers["location"] == f"/v1/uploads/{upload}"
    assert send(world, upload, 0, text[:6]).headers["upload-offset"] == "6"  # within a character
    again = begin(world, len(text)).json()  # the sender was killed, and finds it by its mark
    assert (again["id"], again["received"]) == (upload, 6)
    asked = world.ann.head(f"/v1/uploads/{upload}")
    assert (asked.status_code, asked.headers["upload-offset"]) == (204, "6")
    assert asked.headers["upload-length"] == str(len(text))

    wrong = send(world, upload, 0, text)
    assert (wrong.status_code, wrong.json()["code"]) == (409, "wrong_offset")
    assert wrong.headers["upload-offset"] == "6"
    early = world.ann.post("/v1/datasets/uploaded", json={"name": "mine", "uploads": [upload]})
    assert (early.status_code, early.json()["code"]) == (422, "upload_incomplete")
    assert "6 of 15 bytes" in early.json()["detail"]

    world.process.service(Arrivals)._known.clear()  # as after a restart: the hash is lost
    assert send(world, upload, 6, text[6:]).status_code == 204
    assert finish(world, upload, text).status_code == 204
    assert finish(world, upload, text).status_code == 204  # the first answer was lost
    key = {"Idempotency-Key": "one"}
    named = {"name": "mine", "uploads": [upload]}
    made = world.ann.post("/v1/datasets/uploaded", json=named, headers=key)
    assert made.status_code == 201, made.text
    assert (made.json()["lines"], made.json()["characters"]) == (3, 14)
    assert world.ann.post("/v1/datasets/uploaded", json=named, headers=key).json() == made.json()
    assert world.ann.get("/v1/datasets/mine/preview").json()["text"] == text.decode()
    assert world.ann.get("/v1/uploads").json()["data"] == []
    assert on_disk(world) == []
    with world.database.read() as session:
        kept = session.scalars(select(StoredFile.sha256)).all()
    assert kept == [hashlib.sha256(text).hexdigest()]


@on_sqlite
def test_only_one_request_at_a_time_and_only_its_owner_adds_bytes(world: World) -> None:
    upload = begin(world, 10).json()["id"]
    with world.process.service(Arrivals).locked(upload):
        busy = send(world, upload, 0, b"12345")
        assert (busy.status_code, busy.json()["code"]) == (409, "upload_busy")
    theirs = f"/v1/uploads/{upload}"
    headers = {"Upload-Offset": "0"}
    assert world.bob.patch(theirs, headers=headers, content=b"1").status_code == 404
    assert world.bob.head(theirs).status_code == 404
    assert world.bob.delete(theirs).status_code == 404
    assert world.nobody.patch(theirs, headers=headers, content=b"1").status_code == 401
    stolen = world.bob.post("/v1/datasets/uploaded", json={"name": "x", "uploads": [upload]})
    assert stolen.status_code == 404
    assert world.ann.delete(theirs).status_code == 204
    assert on_disk(world) == []


@on_sqlite
def test_a_mistake_ends_an_upload_with_its_line(world: World) -> None:
    rows = "\n".join(json.dumps({"text": "a"}) for _ in range(5)).encode()
    bad = rows + b"\nnonsense\n"
    upload = begin(world, len(bad), format="jsonl").json()["id"]
    assert send(world, upload, 0, bad).status_code == 204
    refused = finish(world, upload, bad)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_lines")
    assert "line 6" in refused.json()["detail"]
    assert on_disk(world) == []

    upload = begin(world, 100).json()["id"]
    assert send(world, upload, 0, b"ab\n").status_code == 204
    binary = send(world, upload, 3, b"c\x00" + b"d" * 5)
    assert (binary.status_code, binary.json()["code"]) == (422, "binary")
    assert "byte 4 (line 2)" in binary.json()["detail"]
    assert world.ann.head(f"/v1/uploads/{upload}").status_code == 404

    upload = begin(world, 4).json()["id"]
    assert send(world, upload, 0, b"12345").json()["code"] == "too_long"
    assert send(world, upload, 0, b"123").status_code == 204
    gap = send(world, upload, 3, b"", **{"Upload-Complete": "?1"})
    assert (gap.status_code, gap.json()["code"]) == (409, "upload_incomplete")
    assert send(world, upload, 3, b"4").status_code == 204
    changed = finish(world, upload, b"1235")
    assert (changed.status_code, changed.json()["code"]) == (422, "hash_mismatch")
    assert on_disk(world) == []
    for told in ({"size": 0}, {"path": "../up"}, {"path": "/etc"}, {"format": "pdf"}):
        assert begin(world, 10, **{"fingerprint": MARK, **told}).status_code == 422, told


@on_sqlite
def test_the_room_is_checked_and_reserved_before_the_bytes(settings: ApiSettings) -> None:
    limits = {"user_storage_gib": 1000 / (1 << 30), "max_dataset_bytes": 2000}
    small = settings.model_copy(update=limits)
    with running_world(small) as world:
        assert begin(world, 2001).status_code == 413
        assert begin(world, 1001).json()["code"] == "storage_full"
        assert begin(world, 700).status_code == 201
        assert begin(world, 700).status_code == 201  # the same one
        second = begin(world, 700, fingerprint=MARK[::-1])
        assert (second.status_code, second.json()["code"]) == (409, "storage_full")
        use = world.ann.get("/v1/me/storage").json()
        assert use["by_kind"] == {"uploads": 700}


@on_sqlite
def test_abandoned_uploads_go_after_three_days(world: World) -> None:
    old = begin(world, 10).json()["id"]
    new = begin(world, 10, fingerprint=MARK[::-1]).json()["id"]
    arrivals, now = world.process.service(Arrivals), utc_now()
    (arrivals.folder / "up_nobodys").write_bytes(b"x")
    with world.database.write() as session:
        session.execute(
            update(Upload).where(Upload.id == old).values(touched_at=now - timedelta(days=4))
        )
    forget_abandoned(world.database, arrivals, now)
    assert on_disk(world) == [new]
    assert [one["id"] for one in world.ann.get("/v1/uploads").json()["data"]] == [new]


@on_sqlite
def test_a_model_and_code_are_made_of_uploads(world: World) -> None:
    parts = model_files()
    uploads = [sent_whole(world, content, path, "file") for path, content in parts.items()]
    made = world.ann.post("/v1/models/uploaded", json={"name": "tiny", "uploads": uploads})
    assert made.status_code == 201, made.text
    assert (made.json()["version"], len(made.json()["files"])) == (1, len(parts))
    uploads = [sent_whole(world, content, path, "file") for path, content in parts.items()]
    lacking = {"name": "tiny", "uploads": uploads[:1]}
    assert world.ann.post("/v1/models/uploaded", json=lacking).json()["code"] == "weights_missing"
    again = world.ann.post("/v1/models/uploaded", json={"name": "tiny", "uploads": uploads})
    assert again.json()["version"] == 2
    assert world.ann.get("/v1/models/tiny@1").json()["id"] == made.json()["id"]

    archive = packed({"train.py": "print(1)\n"})
    upload = sent_whole(world, archive, "code.zip", "file")
    code = world.ann.post("/v1/code/uploaded", json={"upload": upload})
    assert code.json()["sha256"] == hashlib.sha256(archive).hexdigest()
    bad = sent_whole(world, b"not a zip", "code.zip", "file")
    refused = world.ann.post("/v1/code/uploaded", json={"upload": bad})
    assert refused.json()["code"] == "bad_archive"
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Upload)) == 1


@on_sqlite
def test_several_files_are_one_dataset_for_jobs_and_inputs(world: World) -> None:
    parts = {
        "train/b.jsonl": b'{"text": "two"}\n',
        "train/a.jsonl": b'{"text": "one"}\n{"text": "x"}',
    }
    uploads = [sent_whole(world, content, path, "jsonl") for path, content in parts.items()]
    text = sent_whole(world, b"plain", "c.txt", "text")
    for wrong, word in (([uploads[0], text], "c.txt is text"), ([uploads[0]] * 2, "twice")):
        mixed = world.ann.post("/v1/datasets/uploaded", json={"name": "rows", "uploads": wrong})
        assert (mixed.status_code, word in mixed.json()["detail"]) == (422, True), mixed.text
    made = world.ann.post("/v1/datasets/uploaded", json={"name": "rows", "uploads": uploads})
    assert made.status_code == 201, made.text
    dataset = made.json()
    assert [file["path"] for file in dataset["files"]] == ["train/a.jsonl", "train/b.jsonl"]
    assert (dataset["lines"], dataset["characters"], dataset["size"]) == (3, 7, 45)
    assert world.ann.get("/v1/datasets/rows/preview").json()["text"].startswith('{"text": "one"}')

    job = world.ann.post("/v1/jobs", json=job_spec(data={"dataset": "rows"})).json()["id"]
    place(world.database, job)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert (order["dataset"], order["dataset_format"]) == (None, "jsonl")
    for file in order["dataset_files"]:
        got = world.node.get(f"/v1/node/files/{file['sha256']}")
        assert got.content == parts[file["path"]]
    with world.database.read() as session:
        needed = named_files(session)
        stored = set(session.scalars(select(StoredFile.sha256)))
    assert stored <= needed  # with the listing that names the dataset

    code = world.ann.post("/v1/code", content=packed({"train.py": "print(1)\n"})).json()["sha256"]
    script = {
        "name": "reads",
        "script": {"entry": "train.py", "code": code},
        "inputs": [{"dataset": "rows"}],
        "resources": {"ranks_per_node": 1, "wall_time": "10min"},
    }
    reads = world.ann.post("/v1/jobs", json=script)
    assert reads.status_code == 201, reads.text
    [named] = reads.json()["inputs"]
    assert (named["files"], named["sha256"] in stored) == (2, True)


@on_sqlite
def test_a_table_is_checked_by_its_rows(world: World, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", "two"], "id": [1, 2]}), tmp_path / "good")
    upload = sent_whole(world, (tmp_path / "good").read_bytes(), "a.parquet", "parquet")
    made = world.ann.post("/v1/datasets/uploaded", json={"name": "table", "uploads": [upload]})
    assert (made.status_code, made.json()["format"], made.json()["lines"]) == (201, "parquet", 2)

    rows = pyarrow.table({"text": ["one", None, "three"]})
    parquet.write_table(rows, tmp_path / "bad")
    for content, code, word in (
        ((tmp_path / "bad").read_bytes(), "bad_rows", "row 2"),
        (b"PAR1 this is none", "bad_table", "not a readable parquet"),
    ):
        upload = begin(world, len(content), path="b.parquet", format="parquet").json()["id"]
        send(world, upload, 0, content)
        refused = finish(world, upload, content)
        assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text
        assert word in refused.json()["detail"]
    assert on_disk(world) == []
