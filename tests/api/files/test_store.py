"""The store's folder: what is refused leaves nothing in it, and what nobody names leaves it."""

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api.files.retention import Retention
from core.base.clock import utc_now
from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place
from tests.worker.script_orders import packed

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
DAY = timedelta(days=1)
TEXT = b"some text\n" * 500


def upload(world: World, content: bytes, *, key: str | None = None, name: str = "mine") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return world.ann.post("/v1/datasets", params={"name": name}, content=content, headers=headers)


def on_disk(world: World) -> list[Path]:
    """Every file of the store, those that are coming in too."""
    root = world.store.root
    return [path for path in root.rglob("*") if path.is_file() and "built-in" not in path.parts]


def sweep(world: World, *, after: timedelta) -> None:
    settings = world.process.settings
    assert Retention(world.database, world.store, settings, "test").run(utc_now() + after)


@on_sqlite
def test_an_upload_that_is_refused_leaves_nothing_on_the_disk(world: World) -> None:
    assert upload(world, TEXT).status_code == 201
    before = on_disk(world)
    assert len(before) == 1
    for number in range(3):
        answer = upload(world, TEXT + str(number).encode(), key=f"key-{number}")
        assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert on_disk(world) == before


@on_sqlite
def test_a_refused_upload_leaves_what_somebody_else_has_of_the_same_content(world: World) -> None:
    assert upload(world, b"another").status_code == 201
    theirs = world.bob.post("/v1/datasets", params={"name": "theirs"}, content=TEXT)
    assert theirs.status_code == 201
    assert upload(world, TEXT, key="again").status_code == 409
    assert world.bob.get("/v1/datasets/theirs/preview").json()["text"].startswith("some text")


@on_sqlite
def test_uploads_while_the_platform_is_read_only_leave_nothing_on_the_disk(world: World) -> None:
    place(world.database, world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    world.node.post("/v1/node/heartbeat", json=heartbeat())
    wish = {"minutes": 10, "reason": "It moves."}
    assert world.admin.post("/v1/admin/read-only", json=wish).status_code < 300
    sha256 = hashlib.sha256(TEXT).hexdigest()
    for answer in (
        upload(world, TEXT),
        world.ann.post("/v1/code", content=packed({"train.py": "print(1)"})),
        world.node.put(f"/v1/node/files/{sha256}", content=TEXT),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "read_only")
    assert not on_disk(world)


def test_a_file_that_an_upload_left_when_its_process_died_is_swept_from_the_disk(
    world: World,
) -> None:
    assert upload(world, b"mine").status_code == 201
    kept = on_disk(world)
    left = world.store.path(hashlib.sha256(TEXT).hexdigest())
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(TEXT)
    sweep(world, after=timedelta(0))
    assert left.exists()  # something may be about to name it
    sweep(world, after=DAY + timedelta(hours=6))
    assert on_disk(world) == kept
    sweep(world, after=30 * DAY)
    assert on_disk(world) == kept


def test_a_file_that_was_found_on_the_disk_and_is_uploaded_again_stays(world: World) -> None:
    left = world.store.path(hashlib.sha256(TEXT).hexdigest())
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(TEXT)
    sweep(world, after=timedelta(0))
    assert upload(world, TEXT).status_code == 201
    sweep(world, after=30 * DAY)
    assert world.ann.get("/v1/datasets/mine/preview").json()["text"].startswith("some text")
