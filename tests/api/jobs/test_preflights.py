"""What the ranks proved before the first step is told with their attempt."""

from typing import Any

import pytest

from tests.api.conftest import World
from tests.api.shapes import heartbeat, job_spec, place

CHECK = {"collective": "all_reduce", "operation": "sum", "dtype": "float32", "size_bytes": 16384}
TIMING = {
    "check": CHECK,
    "right": True,
    "p50_ms": 0.9,
    "p95_ms": 0.9,
    "bus_gb_per_s": 0.018,
    "slowest_rank": 1,
}
REPORT: dict[str, Any] = {
    "device": "cpu",
    "backend": "gloo",
    "torch": "2.13.0",
    "ranks": ["box, process 10", "box, process 11"],
    "seconds": 0.05,
    "timings": [TIMING],
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Nothing here differs between the databases."""
    return sqlite_url


def told(world: World, report: dict[str, Any], *, status: int = 200) -> Any:
    """The preflight of a job's only attempt, after its node has told this report, twice."""
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job_id)
    observed = {"job_id": job_id, "epoch": 1, "phase": "starting", "preflight": report}
    for _ in range(2):
        answer = world.node.post("/v1/node/heartbeat", json=heartbeat(observed))
        assert answer.status_code == status, answer.text
    [attempt] = world.ann.get(f"/v1/jobs/{job_id}/attempts").json()["data"]
    return attempt["preflight"]


def test_a_preflight_is_kept_with_its_attempt(world: World) -> None:
    found = told(world, REPORT)
    assert (found["ranks"], found["backend"], found["seconds"]) == (2, "gloo", 0.05)
    assert found["findings"] == []
    assert found["checks"] == [
        {
            "check": "all_reduce (sum, float32, 16 KiB)",
            "right": True,
            "ms": 0.9,
            "bus_gb_per_s": 0.018,
            "slowest_rank": 1,
        }
    ]


def test_what_was_wrong_is_a_sentence(world: World) -> None:
    wrong = {"check": CHECK, "rank": 1, "index": 5, "expected": 3.0, "got": None}
    timing = {**TIMING, "right": False}
    found = told(world, {**REPORT, "timings": [timing], "wrong": [wrong]})
    assert [check["right"] for check in found["checks"]] == [False]
    assert found["findings"] == [
        "rank 1 received nan or infinity instead of 3 at index 5 of "
        "all_reduce (sum, float32, 16 KiB)"
    ]


def test_a_node_cannot_store_just_anything(world: World) -> None:
    assert told(world, {**REPORT, "seconds": "long"}, status=422) is None
