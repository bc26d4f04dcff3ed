"""Results of an exercise, from a report that a student handed in. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from core.spec.template import MISSING, value_at
from core.states import JobState, Outcome


class NextStep(StrEnum):
    """Next act of a student in an exercise."""

    WAIT_FOR_OPENING = "wait_for_opening"
    BOOK = "book"
    START = "start"
    WAIT = "wait"
    HAND_IN = "hand_in"
    DONE = "done"


@dataclass(frozen=True)
class ExerciseProgress:
    """Progress of a student in an exercise."""

    is_open: bool
    has_lease: bool
    """True if a booked lease is to come or runs."""
    needs_lease: bool
    """True for an agenda: it starts in a lease alone."""
    jobs: int
    """Jobs that were started; 0 before a start."""
    unfinished: int
    failed: int
    has_handed_in: bool


@dataclass(frozen=True)
class ExerciseCheck:
    """One check of a report, worth one point."""

    name: str
    passed: bool
    why: str


def next_step(progress: ExerciseProgress) -> NextStep:
    """Return what comes next: after a failed job a new start, although handing in is possible."""
    if progress.has_handed_in:
        return NextStep.DONE
    if not progress.is_open:
        return NextStep.WAIT_FOR_OPENING
    if progress.unfinished:
        return NextStep.WAIT
    if progress.jobs and not progress.failed:
        return NextStep.HAND_IN
    if progress.needs_lease and not progress.has_lease:
        return NextStep.BOOK
    return NextStep.START


def expected_jobs(spec: Mapping[str, Any]) -> list[str]:
    """Return the names of the jobs that a template starts."""
    jobs = spec.get("jobs")
    if not isinstance(jobs, list):
        return [str(spec.get("name", ""))]
    common = value_at(spec, "common.name")
    default = "" if common is MISSING else common
    return [str(one.get("name", default)) if isinstance(one, dict) else "" for one in jobs]


def has_done_its_work(state: str, reason_code: str, spec: Mapping[str, Any]) -> bool:
    """Return True if a job succeeded, or ran out of memory where it was allowed to (`allow_oom`):
    then that is the lesson."""
    allowed = value_at(spec, "resources.allow_oom") is True
    return state == JobState.SUCCEEDED or (allowed and reason_code == Outcome.OUT_OF_MEMORY)


def checks_of(
    content: Mapping[str, Any] | None, expected: Sequence[str], *, started: Collection[str]
) -> list[ExerciseCheck]:
    """Return a check for each job that the exercise starts: the report holds it, it was started
    from the exercise's template by the student, and it has done its work. None is no report."""
    reported = [] if content is None else [one["job"] for one in content["jobs"]]
    left = [job for job in reported if job["id"] in started]
    found = []
    for name in expected:
        job = next((one for one in left if one["name"] == name), None)
        if job is None:
            why = "No report was handed in." if content is None else "The report has no such job."
            if any(one["name"] == name for one in reported):
                why = "The report's job was not started from this exercise's template."
            found.append(ExerciseCheck(name, passed=False, why=why))
            continue
        left.remove(job)
        passed = has_done_its_work(job["state"], job["reason_code"], job["spec"])
        found.append(ExerciseCheck(name, passed=passed, why=job["reason"]))
    return found


def gradescope(
    checks: Sequence[ExerciseCheck], *, sha256: str | None, is_late: bool, is_genuine: bool
) -> dict[str, Any]:
    """Return a `results.json` as Gradescope's autograder reads it, a point for each check."""
    told = "No report was handed in." if sha256 is None else f"Report {sha256}."
    if is_late:
        told += " It was handed in after the exercise was due."
    if sha256 is not None and not is_genuine:
        told += " Its content is not what the platform wrote, so nothing counts."
    counts = is_genuine and sha256 is not None
    return {
        "score": sum(one.passed for one in checks) if counts else 0,
        "output": told,
        "visibility": "visible",
        "tests": [
            {
                "name": one.name,
                "score": int(one.passed and counts),
                "max_score": 1,
                "status": "passed" if one.passed and counts else "failed",
                "output": one.why,
            }
            for one in checks
        ],
        "extra_data": {"report": sha256, "late": is_late},
    }
