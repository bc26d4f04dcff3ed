"""/v1/jobs/{id}/comparison: two jobs by the rule of certificates, after the fact."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.jobs.job_views import find_job, require_read
from api.studies.job_curves import curve_of
from api.studies.schemas import ComparisonView
from api.web.auth import SignedIn
from api.web.errors import InvalidRequest
from api.web.process import ProcessDep
from api.web.schemas import ProblemItem
from api.web.text_types import PlainText
from core.base.errors import BadRequest, Conflict
from core.spec.spec import AnyJobSpec, JobSpec, ScriptJobSpec, WorkbenchJobSpec
from core.tables.jobs import Job
from strategies.plan.planner import Plan
from strategies.plan.promise import Promise
from strategies.plan.spec import Precision, Strategy
from strategies.plan.trust.certificate import compare, differing_fields, promise_of

router = APIRouter(prefix="/v1/jobs", tags=["metrics and logs"])

KINDS = {JobSpec: "a recipe", ScriptJobSpec: "a script", WorkbenchJobSpec: "a workbench"}
# Nobody promises anything for a script; it is held to what data-parallel ranks reach in float32.
SCRIPT_PROMISE = Promise("exact", Precision.FLOAT32, Strategy.DDP)


@router.get("/{job_id}/comparison", summary="Compare the loss curves of two jobs")
def compare_jobs(
    job_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    other_id: Annotated[PlainText, Query(alias="with", description="Id of the other job.")],
) -> ComparisonView:
    """Compare the loss and gradient norm of two jobs: the largest differences, and whether the
    weaker of the jobs' promises allows them.

    Both must train the same model on the same data with the same seed and schedule; layout and
    precision may differ. Two scripts must be the same code with the same arguments and variables;
    ranks and launcher may differ. A script's curve is what it logged as loss and grad_norm; its
    tolerance is that of float32.
    """
    with process.read() as session:
        job, other = find_job(session, job_id, person), find_job(session, other_id, person)
        _require_comparable(job, other)
        found, expected = curve_of(session, job), curve_of(session, other)
    try:
        comparison = compare(found, expected, _promise(job), _promise(other))
    except ValueError:
        raise Conflict(
            f"{job.name} has {len(found.loss):,} steps with a loss and {other.name} has "
            f"{len(expected.loss):,}, but they have no step in common. Wait until both have "
            "trained.",
            code="no_common_step",
        ) from None
    return ComparisonView(job=job.id, other=other.id, **dict(comparison))


def _require_comparable(job: Job, other: Job) -> None:
    if job.id == other.id:
        raise BadRequest("Name another job to compare this one with.", param="with")
    differing = _differing(_spec(job), _spec(other))
    if differing:
        raise InvalidRequest(
            [
                ProblemItem(
                    param=name,
                    code="differs",
                    message=f"{name} is {one} in {job.name} and {two} in {other.name}",
                )
                for name, (one, two) in differing.items()
            ],
            code="not_comparable",
            detail=f"{job.name} and {other.name} are not the same training: they differ in "
            f"{', '.join(differing)}.",
        )


def _differing(one: AnyJobSpec, other: AnyJobSpec) -> dict[str, tuple[object, object]]:
    if isinstance(one, JobSpec) and isinstance(other, JobSpec):
        return differing_fields(one, other)
    if isinstance(one, ScriptJobSpec) and isinstance(other, ScriptJobSpec):
        ones, others = one.script.model_dump(), other.script.model_dump()
        return {
            f"script.{name}": (value, others[name])
            for name, value in ones.items()
            if value != others[name] and name != "launcher"
        }
    return {"script": (KINDS[type(one)], KINDS[type(other)])}


def _spec(job: Job) -> AnyJobSpec:
    """Return the spec, with its dataset by id, because one text may have been named in two ways."""
    spec, _ = require_read(job)
    if job.dataset_id is None or not isinstance(spec, JobSpec):
        return spec
    data = spec.data.model_copy(update={"dataset": job.dataset_id})
    return spec.model_copy(update={"data": data})


def _promise(job: Job) -> Promise:
    spec, plan = require_read(job)
    if not isinstance(spec, JobSpec) or not isinstance(plan, Plan):
        return SCRIPT_PROMISE
    return promise_of(spec, plan)
