"""The tables of states, held against the design and against each other."""

from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

from api.contract.states_document import as_markdown
from core.states import (
    ATTEMPT_EDGES,
    INFRASTRUCTURE,
    INTERRUPTED,
    JOB_EDGES,
    LEASE_EDGES,
    LIVE_ATTEMPT,
    LIVE_JOB,
    LIVE_LEASE,
    MAX_INFRASTRUCTURE_FAILURES,
    NODE_EDGES,
    TERMINAL_JOB,
    WAITING_JOB,
    Desired,
    JobState,
    Outcome,
    job_after,
    sources,
)

# Written out once more, from the design map, so that an edge is not added by accident.
JOB = {
    "queued": "starting paused cancelled",
    "paused": "queued cancelled",
    "starting": "running stopping queued failed",
    "running": "stopping succeeded failed queued",
    "stopping": "queued paused cancelled failed succeeded",
    "succeeded": "",
    "failed": "",
    "cancelled": "",
}
ATTEMPT = {
    "assigned": "starting stopping exited",
    "starting": "running stopping exited",
    "running": "stopping exited",
    "stopping": "exited",
    "exited": "",
}
LEASE = {
    "booked": "active cancelled",
    "active": "ending",
    "ending": "ended",
    "ended": "",
    "cancelled": "",
}
NODE = {
    "pending": "ready retired",
    "ready": "draining dirty quarantined retired",
    "draining": "ready maintenance dirty quarantined retired",
    "maintenance": "ready retired",
    "dirty": "ready quarantined retired",
    "quarantined": "ready retired",
    "retired": "",
}
TABLES = [(JOB_EDGES, JOB), (ATTEMPT_EDGES, ATTEMPT), (LEASE_EDGES, LEASE), (NODE_EDGES, NODE)]
PAIRS = [
    pytest.param(edges, expected, before, after, id=f"{type(before).__name__}-{before}-{after}")
    for edges, expected in TABLES
    for before, after in product(edges, repeat=2)
]


@pytest.mark.parametrize(("edges", "expected", "before", "after"), PAIRS)
def test_every_pair_of_states_has_an_edge_or_none_as_designed(
    edges: dict[StrEnum, dict[StrEnum, str]],
    expected: dict[str, str],
    before: StrEnum,
    after: StrEnum,
) -> None:
    assert (after in edges[before]) is (str(after) in expected[before].split())
    assert (before in sources(edges, after)) is (after in edges[before])


def test_every_job_state_waits_lives_or_is_final() -> None:
    kinds = [*WAITING_JOB, *LIVE_JOB, *TERMINAL_JOB]
    assert sorted(kinds) == sorted(JobState)
    assert all(not JOB_EDGES[state] for state in TERMINAL_JOB)


def test_from_every_live_state_an_attempt_can_exit_and_a_lease_can_end() -> None:
    assert all("exited" in ATTEMPT_EDGES[state] for state in LIVE_ATTEMPT)
    for state in LIVE_LEASE:
        reached, frontier = set(), [state]
        while frontier:
            reached.add(here := frontier.pop())
            frontier += [there for there in LEASE_EDGES[here] if there not in reached]
        assert "ended" in reached


@pytest.mark.parametrize("desired", Desired)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("failures", [0, MAX_INFRASTRUCTURE_FAILURES - 1, 3, 4])
def test_what_an_outcome_makes_of_a_job(outcome: Outcome, desired: Desired, failures: int) -> None:
    after = job_after(outcome, desired, failures)
    if outcome == "succeeded":
        assert after == "succeeded"  # a finished training is never taken back
    elif desired == "cancel":
        assert after == "cancelled"
    elif outcome in ("paused", "cancelled", "preempted", "lease_ended"):
        assert after == ("paused" if desired == "pause" else "queued")
    elif outcome in ("start_failed", "gpu_failed", "stalled", "killed", "node_lost", "shim_lost"):
        again = "paused" if desired == "pause" else "queued"
        assert after == (again if failures < 3 else "failed")
    else:
        assert after == "failed"


def test_every_outcome_is_of_one_kind() -> None:
    assert not set(INFRASTRUCTURE) & set(INTERRUPTED)


def test_the_page_of_states_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "states.md"
    assert page.read_text() == as_markdown(), "print it again: its first lines say how"
