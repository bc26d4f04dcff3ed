"""A course's model and its students: bytes in the store and in each node's cache, measured."""

import json
import os
import threading
from pathlib import Path

import pytest

from api.nodes.fetching_ahead import script_inputs
from core.tables.jobs import Job
from core.tables.kinds import Role
from core.wire.messages import InputFiles
from tests.api.conftest import World, add_person, client, enrol
from tests.api.files.test_models import files, tar, weights
from tests.api.jobs.test_inputs import spec as program
from tests.api.scripts.test_scripts import packed
from tests.api.shapes import INVENTORY, heartbeat, place
from worker.node.api_client import ApiClient
from worker.preparing.fetching import Fetcher, FetchRate

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

NUMBERS = 1 << 18  # of each tensor: a mebibyte


def large_model() -> dict[str, bytes]:
    """A whole model of some ten mebibytes."""
    names, size = weights(), 4 * NUMBERS
    header = json.dumps(
        {
            name: {"dtype": "F32", "shape": [NUMBERS], "data_offsets": [size * at, size * (at + 1)]}
            for at, name in enumerate(names)
        }
    ).encode()
    content = len(header).to_bytes(8, "little") + header + os.urandom(size * len(names))
    return {**files(), "model.safetensors": content}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("students", [7, pytest.param(191, marks=pytest.mark.slow)])
def test_students_of_one_model_leave_one_copy_in_the_store_and_one_on_each_node(
    world: World, tmp_path: Path, students: int
) -> None:
    model = large_model()
    size, store = sum(len(content) for content in model.values()), world.process.settings.store
    assert world.ann.post("/v1/models?name=base", content=tar(model)).status_code == 201
    held = bytes_in(store)
    assert size <= held < size + 100_000, "one copy, and next to nothing beside it"

    names = [f"student-{number:03}" for number in range(students)]
    secrets = [add_person(world.database, name, Role.USER) for name in names]
    rows = "\n".join(["name,lab", "ann,course", *(f"{name},course" for name in names)])
    assert world.admin.post("/v1/users/import", json={"csv": rows}).is_success
    shared = world.ann.post(
        "/v1/shares", json={"kind": "model", "thing": "base", "group": "course"}
    )
    assert shared.status_code == 201, shared.text
    archive = packed({"train.py": "print()"})
    jobs = []
    for secret in secrets:
        student = client(world.app, secret)
        code = student.post("/v1/code", content=archive).json()["sha256"]
        made = student.post("/v1/jobs", json=program(code, {"model": "ann/base"}))
        assert made.status_code == 201, made.text
        jobs.append(made.json()["id"])
    assert bytes_in(store) == held + len(archive), "one more file: the code of all"

    with world.database.read() as session:
        inputs = [
            InputFiles.model_validate(one)
            for job in jobs
            for one in script_inputs(session, session.get_one(Job, job))
        ]
    assert len(inputs) == students
    tokens = {"box": world.tokens["box"], "east": enrol(world.app, world.database, "east")}
    client(world.app, tokens["east"]).post(
        "/v1/node/heartbeat", json=heartbeat(inventory=INVENTORY)
    ).raise_for_status()
    for number, (node, token) in enumerate(tokens.items()):
        place(world.database, jobs[number], node)
        cache, asked = tmp_path / f"cache-{node}", list[str]()
        cache.mkdir()
        api = ApiClient("http://127.0.0.1:8471")
        api.http = client(world.app, token)  # type: ignore[assignment]
        api.http.event_hooks["request"].append(lambda one, to=asked: to.append(one.url.path))
        fetcher = Fetcher(
            cache,
            new_client=lambda api=api: api,  # type: ignore[misc]
            rate=FetchRate(),
            cancelled=threading.Event(),
            tell=lambda _: None,
        )
        for one in inputs:
            fetcher.input(one)
        assert bytes_in(cache) == size, node
        assert len(asked) == len(model), "each file came once"
