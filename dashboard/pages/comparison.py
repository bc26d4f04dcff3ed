"""Several jobs over one another: their curves, what they reached and cost, and where specs differ.

The server draws what the jobs say of themselves; the page's script reads the curves and fills in
what only they know, such as the time to a loss.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from dashboard.formats import count, decimal
from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Attempt, Comparison, Job

MOST = 6  # as many colours as a chart has
NOT_COMPARABLE = (409, 422)
BETWEEN = " -._"  # what stands between the words of a name


@dataclass(frozen=True)
class ComparedJob:
    """One job of the page."""

    job: Job
    label: str
    hours: float
    """Hours of all its attempts."""
    against: Comparison | None
    """Comparison with the first job; None for the first job, and if the two cannot be compared."""
    why_not: str

    @property
    def gpu_hours(self) -> float:
        """Ranks times hours."""
        return self.hours * self.job.plan.world_size


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    ids = list(dict.fromkeys(viewer.request.query_params.getlist("job")))
    me = await viewer.me()
    if len(ids) < 2 or len(ids) > MOST:
        return render("compare_none.html", {"me": me, "section": "jobs", "found": len(ids)})
    now = datetime.now(UTC)
    found = await asyncio.gather(*(_read(viewer, job_id, ids[0], now) for job_id in ids))
    names = [one.job.name for one in found]
    labels = labels_of(names, [one.job.id for one in found])
    compared = [
        ComparedJob(one.job, label, one.hours, one.against, one.why_not)
        for one, label in zip(found, labels, strict=True)
    ]
    fields = differing_first([one.job.spec for one in compared])
    context = {
        "me": me,
        "section": "jobs",
        "compared": compared,
        "sentence": verdict_sentence(compared),
        "fields": fields,
        "differing": sum(field.differs for field in fields),
        "is_gpu": all(one.job.plan.device == "cuda" for one in compared),
        "title": _title(names),
    }
    return render("compare.html", context)


@dataclass(frozen=True)
class Field:
    """One field of the specs, its value in each; `differs` if not all are the first one's."""

    name: str
    values: list[str]

    @property
    def differs(self) -> bool:
        """True if the jobs do not all have the same value."""
        return len(set(self.values)) > 1


def differing_first(specs: list[dict[str, Any]]) -> list[Field]:
    """Every field that one of the specs gives, those that differ first."""
    flat = [_flat(spec) for spec in specs]
    names = list(dict.fromkeys(name for one in flat for name in one))
    fields = [Field(name, [one.get(name, "\u2013") for one in flat]) for name in names]
    return sorted(
        (field for field in fields if field.name != "name"), key=lambda field: not field.differs
    )


def verdict_sentence(compared: list[ComparedJob]) -> str:
    """Return a sentence on the jobs' curves: the same, with the numbers, or their difference."""
    first, others = compared[0], compared[1:]
    refused = next((one for one in others if one.against is None), None)
    if refused is not None:
        return f"{first.label} and {refused.label} cannot be compared: " + (refused.why_not)
    verdicts = [(one, one.against) for one in others if one.against is not None]
    failed = next(((one, found) for one, found in verdicts if found.verdict == "fail"), None)
    if failed is not None:
        one, found = failed
        return (
            f"Different curves: the loss of {one.label} differs from that of {first.label} by "
            f"{decimal(found.loss.largest, 3)} at step {count(found.loss.step)}, where "
            f"{decimal(found.loss.tolerance, 3)} is allowed."
        )
    largest = max((found.loss.largest or 0.0 for _, found in verdicts), default=0.0)
    if all(found.verdict == "pass" for _, found in verdicts):
        bands = [found.loss.tolerance for _, found in verdicts if found.loss.tolerance]
        return (
            f"All {len(compared)} jobs have the same curve: the largest relative difference "
            f"from {first.label} is {decimal(largest, 3)}, within the allowed "
            f"{decimal(min(bands, default=None), 3)}. The jobs only differ in time and memory."
        )
    return (
        "One of these layouts promises no particular curve; the largest relative difference "
        f"from {first.label} is {decimal(largest, 3)}."
    )


@dataclass(frozen=True)
class _JobReading:
    job: Job
    hours: float
    against: Comparison | None
    why_not: str


async def _read(viewer: Viewer, job_id: str, first: str, now: datetime) -> _JobReading:
    job, (attempts, _) = await asyncio.gather(
        viewer.get(Job, f"/v1/jobs/{viewer.quoted(job_id)}"),
        viewer.page(Attempt, f"/v1/jobs/{viewer.quoted(job_id)}/attempts"),
    )
    against, why_not = None, ""
    if job_id != first:
        path = f"/v1/jobs/{viewer.quoted(job_id)}/comparison"
        found = await viewer.or_refusal(
            viewer.get(Comparison, path, {"with": first}), NOT_COMPARABLE
        )
        if isinstance(found, ApiProblem):
            why_not = found.detail
        else:
            against = found
    seconds = sum(
        ((one.ended_at or now) - one.started_at).total_seconds()
        for one in attempts
        if one.started_at is not None
    )
    return _JobReading(job, seconds / 3600, against, why_not)


def labels_of(names: list[str], ids: list[str]) -> list[str]:
    """Return the distinguishing parts of the names; equal names get the end of their ids."""
    shared = _beginning(names)
    short = [name[len(shared) :].lstrip(BETWEEN) for name in names]
    if all(short):
        names = short
    return [
        name if names.count(name) == 1 else f"{name} {job_id[-4:]}"
        for name, job_id in zip(names, ids, strict=True)
    ]


def _title(names: list[str]) -> str:
    """What the names have in common, or how many there are."""
    shared = _beginning(names)
    return shared if len(shared) >= 3 else f"{len(names)} jobs"


def _beginning(names: list[str]) -> str:
    """The words with which all of them begin."""
    first = names[0]
    same = [len(set(column)) == 1 for column in zip(*names, strict=False)]
    shared = first[: same.index(False) if False in same else len(same)]
    if any(name[len(shared) :][:1] not in ("", *BETWEEN) for name in names):
        cut = max((shared.rfind(mark) for mark in BETWEEN), default=-1)
        shared = shared[: cut + 1]
    return shared.rstrip(BETWEEN)


def _flat(part: dict[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in part.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        elif value is not None:
            found[f"{before}{name}"] = _words(value)
    return found


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
