"""A recipe that mixes datasets: resolved at submission, brought to the node with their formats."""

from typing import Any

import pytest

from api.files.retention import named_files
from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def upload(world: World, name: str, content: bytes, format: str) -> None:
    told = {"name": name, "format": format}
    assert world.ann.post("/v1/datasets", params=told, content=content).status_code == 201


def submit(world: World, *parts: dict[str, Any]) -> Any:
    return world.ann.post("/v1/jobs", json=job_spec(data={"dataset": "a", "mixture": list(parts)}))


def test_the_node_gets_every_part_even_after_it_was_deleted(world: World) -> None:
    upload(world, "a", b"some text", "text")
    upload(world, "b", b'{"text": "rows"}', "jsonl")
    made = submit(world, {"dataset": "b", "share": 0.25})
    assert made.status_code == 201, made.text
    assert made.json()["spec"]["data"]["mixture"] == [{"dataset": "b", "share": 0.25}]
    assert world.ann.delete("/v1/datasets/b").status_code == 204
    place(world.database, made.json()["id"])
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    [part] = order["mixture"]
    assert (part["format"], len(part["files"])) == ("jsonl", 1)
    sha256 = part["files"][0]["sha256"]
    assert world.node.get(f"/v1/node/files/{sha256}").content == b'{"text": "rows"}'
    with world.database.read() as session:
        assert sha256 in named_files(session)
    plain = world.ann.post("/v1/jobs", json=job_spec(data={"dataset": "a"})).json()
    assert "mixture" not in plain["spec"]["data"]  # older workers do not know the field


def test_a_part_that_cannot_be_read_is_refused_with_its_field(world: World) -> None:
    upload(world, "a", b"some text", "text")
    upload(world, "b", b"other text", "text")
    for parts, param, word in (
        ([{"dataset": "nobody", "share": 0.2}], "data.mixture.0.dataset", "You have a, b"),
        ([{"dataset": "python-stdlib", "share": 0.2}], "data.mixture.0.dataset", "built in"),
        ([{"dataset": "b", "share": 1.0}], "data.mixture.0.share", "less than 1"),
        (
            [{"dataset": "b", "share": 0.2}, {"dataset": "a", "share": 0.2}],
            "data.mixture.1.dataset",
            "twice",
        ),
    ):
        refused = submit(world, *parts)
        assert refused.status_code == 422, refused.text
        problem = refused.json()
        assert param in {problem.get("param"), *(one["param"] for one in problem.get("errors", []))}
        assert word in refused.text
