"""The next step of a student, and points for a report."""

from typing import Any

import pytest

from core.courses.grading import (
    ExerciseProgress,
    NextStep,
    checks_of,
    expected_jobs,
    gradescope,
    has_done_its_work,
    next_step,
)

FRESH: dict[str, Any] = {
    "is_open": True,
    "has_lease": False,
    "needs_lease": True,
    "jobs": 0,
    "unfinished": 0,
    "failed": 0,
    "has_handed_in": False,
}


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"is_open": False}, NextStep.WAIT_FOR_OPENING),
        ({}, NextStep.BOOK),
        ({"needs_lease": False}, NextStep.START),
        ({"has_lease": True}, NextStep.START),
        ({"jobs": 3, "unfinished": 1}, NextStep.WAIT),
        ({"jobs": 3}, NextStep.HAND_IN),
        ({"jobs": 3, "failed": 1}, NextStep.BOOK),
        ({"jobs": 3, "failed": 1, "has_lease": True}, NextStep.START),
        ({"jobs": 3, "failed": 1, "unfinished": 1}, NextStep.WAIT),
        ({"has_handed_in": True, "is_open": False}, NextStep.DONE),
    ],
)
def test_the_next_step_follows_from_what_was_done(changes: dict[str, Any], step: NextStep) -> None:
    assert next_step(ExerciseProgress(**{**FRESH, **changes})) is step


def job(name: str, state: str = "succeeded", id: str = "") -> dict[str, Any]:
    words = {"state": state, "reason": f"{state}.", "reason_code": state, "spec": {}}
    return {"job": {"id": id or name, "name": name, **words}}


def test_running_out_of_memory_counts_where_it_was_the_lesson() -> None:
    allowed = {"resources": {"allow_oom": True}}
    assert has_done_its_work("failed", "out_of_memory", allowed)
    assert not has_done_its_work("failed", "out_of_memory", {"resources": {}})
    assert not has_done_its_work("failed", "bad_data", allowed)
    assert has_done_its_work("succeeded", "finished", {})


def test_each_expected_job_is_a_point_once() -> None:
    expected = expected_jobs({"common": {"name": "x"}, "jobs": [{"name": "a"}, {}, {"name": "a"}]})
    assert expected == ["a", "x", "a"]
    assert expected_jobs({"name": "alone"}) == ["alone"]
    content = {"jobs": [job("a"), job("x", "failed"), job("a", id="other")]}
    checks = checks_of(content, expected, started={"a", "x"})
    assert [one.passed for one in checks] == [True, False, False]
    assert checks[2].why == "The report's job was not started from this exercise's template."
    made = gradescope(checks, sha256="ab", is_late=True, is_genuine=True)
    assert (made["score"], [one["score"] for one in made["tests"]]) == (1, [1, 0, 0])
    assert "after the exercise was due" in made["output"]
    forged = gradescope(checks, sha256="ab", is_late=False, is_genuine=False)
    assert (forged["score"], {one["score"] for one in forged["tests"]}) == (0, {0})
    nothing = gradescope(
        checks_of(None, expected, started=set()), sha256=None, is_late=False, is_genuine=False
    )
    assert (nothing["score"], len(nothing["tests"])) == (0, 3)
