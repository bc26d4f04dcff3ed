"""Inputs of a script: resolved to exact bytes at submission, given to its node, its owner's."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from api.files.retention import named_files
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.spec.inputs import tree_sha256
from core.tables.files import Checkpoint, StoredFile
from tests.api.agendas.test_agendas import lease
from tests.api.conftest import World
from tests.api.files.test_models import files, tar, upload
from tests.api.scripts.test_scripts import packed, submit
from tests.api.shapes import TELEMETRY, heartbeat, job_spec, place

ROWS = b'{"text": "one"}\n{"text": "two"}\n'
ROWS_SHA256 = hashlib.sha256(ROWS).hexdigest()

pytestmark = pytest.mark.db
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def code(world: World) -> str:
    answer = world.ann.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    )
    return str(answer.json()["sha256"])


@pytest.fixture
def dataset(world: World) -> dict[str, Any]:
    answer = world.ann.post("/v1/datasets?name=rows&format=jsonl", content=ROWS)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def spec(code: str, *inputs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": "mine",
        "script": {"entry": "train.py", "code": code, "launcher": "python"},
        "inputs": list(inputs),
        "resources": {"ranks_per_node": 1, "wall_time": "20min"},
    }


def add_checkpoint(world: World, job_id: str, step: int, contents: Mapping[str, bytes]) -> str:
    """What a node's report of a checkpoint leaves in the rows."""
    now, rows = utc_now(), []
    with world.database.write() as session:
        for path, content in contents.items():
            sha256 = hashlib.sha256(content).hexdigest()
            session.merge(StoredFile(sha256=sha256, size=len(content), created_at=now))
            rows.append({"path": path, "sha256": sha256, "size": len(content)})
        checkpoint = Checkpoint(
            id=new_id(IdKind.CHECKPOINT),
            job_id=job_id,
            epoch=1,
            step=step,
            size=sum(len(content) for content in contents.values()),
            files=rows,
            created_at=now,
        )
        session.add(checkpoint)
        return checkpoint.id


def test_inputs_are_resolved_to_their_bytes_and_given_to_the_node(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    model = upload(world, tar(files())).json()
    earlier = submit(world, job_spec()).json()["id"]
    add_checkpoint(world, earlier, 400, {"manifest.json": b"{}", "rank/0.pt": b"weights"})
    answer = submit(
        world,
        spec(
            code,
            {"dataset": "rows", "name": "lab/rows"},
            {"model": "tiny"},
            {"checkpoint": f"{earlier}/step-400"},
        ),
    )
    assert answer.status_code == 201, answer.text
    job = answer.json()
    rows, tiny, checkpoint = job["inputs"]
    assert rows == {
        "kind": "dataset",
        "name": "lab/rows",
        "source": "rows",
        "source_id": dataset["id"],
        "path": "/job/inputs/lab/rows",
        "variable": "TRAINYARD_INPUT_LAB_ROWS",
        # as `sha256sum data.jsonl | sha256sum` has it
        "sha256": hashlib.sha256(f"{ROWS_SHA256}  data.jsonl\n".encode()).hexdigest(),
        "size": len(ROWS),
        "files": 1,
    }
    assert tiny["sha256"] == tree_sha256((one["path"], one["sha256"]) for one in model["files"])
    assert (tiny["size"], tiny["source_id"]) == (model["size"], model["id"])
    assert (checkpoint["source"], checkpoint["files"]) == (f"{earlier}/step-400", 2)
    assert checkpoint["variable"] == f"TRAINYARD_INPUT_{earlier.upper()}_STEP_400"
    assert world.ann.get(f"/v1/jobs/{job['id']}").json() == job
    listed = world.ann.get("/v1/jobs").json()["data"]
    assert {one["id"]: len(one["inputs"]) for one in listed} == {job["id"]: 3, earlier: 0}

    fetched = f"/v1/node/files/{ROWS_SHA256}"
    assert world.node.get(fetched).status_code == 404  # nothing on the node needs it yet
    place(world.database, job["id"])
    [order] = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert [(one["kind"], one["name"]) for one in order["inputs"]] == [
        ("dataset", "lab/rows"),
        ("model", "tiny"),
        ("checkpoint", f"{earlier}/step-400"),
    ]
    assert {one["path"] for one in order["inputs"][1]["files"]} == set(files())
    assert world.node.get(fetched).content == ROWS

    report = world.ann.post("/v1/reports", json={"jobs": [job["id"]]}).json()
    assert report["content"]["jobs"][0]["job"]["inputs"] == job["inputs"]


@on_sqlite
def test_an_order_of_a_job_without_inputs_does_not_name_them(world: World, code: str) -> None:
    """Older workers refuse fields that they do not know."""
    place(world.database, submit(world, spec(code)).json()["id"])
    [order] = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert "inputs" not in order
    assert "inputs" not in world.ann.get("/v1/jobs").json()["data"][0]["spec"]


def test_a_waiting_job_keeps_the_files_of_inputs_that_were_deleted(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    job = submit(world, spec(code, {"dataset": dataset["id"], "name": "rows"})).json()
    assert world.ann.delete("/v1/datasets/rows").status_code == 204
    with world.database.read() as session:
        assert ROWS_SHA256 in named_files(session)
    clone = world.ann.post(f"/v1/jobs/{job['id']}/clone", json={})
    assert (clone.status_code, clone.json()["code"]) == (422, "unknown_dataset")
    world.ann.post(f"/v1/jobs/{job['id']}/cancel")
    with world.database.read() as session:
        assert ROWS_SHA256 not in named_files(session)
    assert world.ann.get(f"/v1/jobs/{job['id']}").json()["inputs"] == job["inputs"]


@on_sqlite
def test_what_cannot_be_read_is_refused_with_the_field_and_what_there_is(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    job = submit(world, job_spec()).json()["id"]
    add_checkpoint(world, job, 200, {"manifest.json": b"{}"})
    add_checkpoint(world, job, 400, {"manifest.json": b"{}"})
    first = {"dataset": "rows"}
    wrong: Sequence[tuple[Mapping[str, str], str, str, str]] = [
        ({"dataset": "alpaca"}, "inputs.1.dataset", "unknown_dataset", "You have rows."),
        ({"model": "tiny"}, "inputs.1.model", "unknown_model", "You have none."),
        ({"dataset": "digits"}, "inputs.1.dataset", "built_in_dataset", "is built in"),
        (
            {"checkpoint": f"{job}/step-300"},
            "inputs.1.checkpoint",
            "unknown_checkpoint",
            "It has step-400, step-200.",
        ),
        (
            {"checkpoint": f"job_{'0' * 26}/step-1"},
            "inputs.1.checkpoint",
            "unknown_job",
            "you have no job",
        ),
        ({"checkpoint": "mine"}, "inputs.1.checkpoint", "string_pattern_mismatch", "checkpoint"),
        ({}, "inputs.1", "value_error", "not none"),
        ({"dataset": "rows", "model": "tiny"}, "inputs.1", "value_error", "dataset and model"),
        ({"dataset": "rows"}, "inputs", "value_error", "too alike"),
        ({"dataset": "rows", "name": "rows/more"}, "inputs", "value_error", "too alike"),
        ({"dataset": "rows", "name": "../etc"}, "inputs.1.name", "string_pattern_mismatch", ""),
        ({"dataset": "rows", "name": "a--b"}, "inputs.1", "value_error", "contains --"),
    ]
    for second, param, error, part in wrong:
        answer = submit(world, spec(code, first, second))
        assert answer.status_code == 422, (second, answer.text)
        problem = answer.json()
        found = (problem.get("errors") or [problem])[0]
        assert (found["param"], found["code"]) == (param, error), problem
        assert part in (found.get("message") or problem["detail"]), problem


@on_sqlite
def test_what_is_anothers_is_not_there(world: World, code: str, dataset: dict[str, Any]) -> None:
    theirs = world.bob.post(
        "/v1/code",
        content=packed({"train.py": "print()"}),
        headers={"Content-Type": "application/zip"},
    ).json()["sha256"]
    job = submit(world, job_spec()).json()["id"]
    add_checkpoint(world, job, 400, {"manifest.json": b"{}"})
    for one in (
        {"dataset": "rows"},
        {"dataset": dataset["id"], "name": "rows"},
        {"checkpoint": f"{job}/step-400"},
    ):
        answer = world.bob.post("/v1/jobs", json=spec(theirs, one))
        assert (answer.status_code, answer.json()["code"][:8]) == (422, "unknown_"), answer.text
    assert world.bob.get("/v1/jobs").json()["data"] == []


@on_sqlite
def test_an_agenda_passes_inputs_on_and_a_recipe_has_none(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    refused = submit(world, {**job_spec(), "inputs": [{"dataset": "rows"}]})
    assert (refused.status_code, refused.json()["errors"][0]["param"]) == (422, "inputs")
    agenda = {"name": "lab", "jobs": [spec(code, {"dataset": "rows"})]}
    answer = world.ann.post(f"/v1/agendas?lease={lease(world)}", json=agenda)
    assert answer.status_code == 201, answer.text
    [job] = world.ann.get("/v1/jobs").json()["data"]
    assert [one["source"] for one in job["inputs"]] == ["rows"]


def lease_and_spec(world: World, code: str, starts_in: timedelta) -> dict[str, Any]:
    """A job that waits for ann's lease on the node, and reads her rows."""
    lease_id = lease(world, start=utc_now() + starts_in)
    return {**spec(code, {"dataset": "rows"}), "lease": lease_id}


def beat(world: World, **telemetry: Any) -> dict[str, Any]:
    changed = heartbeat(telemetry={**TELEMETRY, **telemetry})
    answer = world.node.post("/v1/node/heartbeat", json=changed)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_node_fetches_ahead_what_jobs_read_whose_lease_begins_within_an_hour(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    later = lease_and_spec(world, code, timedelta(hours=9))
    assert submit(world, later).status_code == 201
    assert "fetch_ahead" not in beat(world)  # older workers refuse fields that they do not know
    fetched = f"/v1/node/files/{ROWS_SHA256}"
    assert world.node.get(fetched).status_code == 404
    soon = lease_and_spec(world, code, timedelta(minutes=50))
    job = submit(world, soon).json()
    assert [(one["kind"], one["name"]) for one in beat(world)["fetch_ahead"]] == [
        ("dataset", "rows")
    ]
    assert world.node.get(fetched).content == ROWS
    recipe = {**job_spec(data={"dataset": "rows"}), "lease": soon["lease"]}
    assert submit(world, recipe).status_code == 201
    ahead = beat(world)["fetch_ahead"]
    assert [one["files"][0]["sha256"] for one in ahead] == 2 * [ROWS_SHA256]
    world.ann.post(f"/v1/jobs/{job['id']}/cancel")
    assert [one["name"] for one in beat(world)["fetch_ahead"]] == ["dataset"]


@on_sqlite
def test_the_plan_says_how_long_the_inputs_take(
    world: World, code: str, dataset: dict[str, Any]
) -> None:
    document = spec(code, {"dataset": "rows"})
    plan = world.ann.post("/v1/jobs/plan", json=document).json()
    assert (plan["fetch_s"], [one["source"] for one in plan["inputs"]]) == (None, ["rows"])
    assert "A node without its inputs (32 bytes) fetches them before the start." in plan["reason"]
    beat(world, fetch_bytes_per_s=4.0)
    plan = world.ann.post("/v1/jobs/plan", json=document).json()
    assert plan["fetch_s"] == len(ROWS) / 4
    assert "(32 bytes) fetches them in about 8s before the start." in plan["reason"]
    booked = lease_and_spec(world, code, timedelta(hours=9))
    plan = world.ann.post("/v1/jobs/plan", json=booked).json()
    assert "before the start, in the hour before the lease." in plan["reason"]
    assert world.ann.post("/v1/jobs/plan", json=job_spec()).json()["fetch_s"] is None  # built in


@on_sqlite
def test_the_plan_of_a_recipe_says_how_long_its_data_and_model_take(world: World) -> None:
    text = b"a text of some words, " * 300
    uploaded = world.ann.post("/v1/datasets?name=text&format=text", content=text)
    assert uploaded.status_code == 201, uploaded.text
    recipe = job_spec()
    recipe["data"] = {"dataset": "text", "sequence_length": 32}
    beat(world, fetch_bytes_per_s=100.0)
    plan = world.ann.post("/v1/jobs/plan", json=recipe).json()
    assert plan["fetch_s"] == len(text) / 100
    assert plan["inputs"] == []
    fetched = "A node without its data and model (6.4 KiB) fetches them in about 1min 6s before"
    assert f"{fetched} the start." in plan["reason"]
