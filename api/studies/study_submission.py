"""Planning of a study: one job and its variations, all on one node class, or none."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError
from sqlalchemy.orm import Session

from api.jobs.plan_cache import Offers, PlanCache, PlanOnClass
from api.jobs.submission import PlannedSpec, plan_job, require_runnable
from api.web.errors import InvalidRequest, validation_items
from api.web.schemas import ProblemItem
from core.base.errors import BadRequest
from core.spec.spec import AnyJobSpec, JobSpec
from core.spec.study import MOST_JOBS, SCHEDULES, on_class, scheduled, sized
from strategies.plan.planner import Plan
from strategies.plan.trust.scaling import StudyKind, ranks_label
from strategies.plan.words import counted

MOST_RANKS = 1024
NUMBER = re.compile(r"^[1-9][0-9]{0,8}$", re.ASCII)


@dataclass(frozen=True)
class StudySpecs:
    """The jobs of a study, with the label that distinguishes each."""

    kind: StudyKind
    param: str
    """The parameter of the request that lists them."""
    labels: Sequence[str]
    specs: Sequence[JobSpec]


@dataclass(frozen=True)
class Variant:
    """One job of the study with its plan."""

    planned: PlannedSpec
    chosen: PlanOnClass


def asked_for(
    spec: AnyJobSpec,
    *,
    ranks: Sequence[str] | None,
    scaling: str | None,
    schedules: Sequence[str] | None,
) -> StudySpecs:
    """Return the study that a request asks for. Raises BadRequest with the name of the
    parameter."""
    if not isinstance(spec, JobSpec):
        raise BadRequest(
            "script: a study can only vary a recipe. Submit the script once for each number "
            "of ranks, and compare the jobs: trainyard verify JOB --against OTHER.",
            param="script",
        )
    if (ranks is None) == (schedules is None):
        raise BadRequest(
            "Give either ranks, such as ranks=1,2,4, or schedules, such as schedules=naive,1F1B.",
            param="ranks",
        )
    if ranks is not None:
        sizes = sorted(_size(one) for one in _listed(ranks, "ranks"))
        kind = StudyKind(scaling or StudyKind.STRONG)
        labels = [ranks_label(size) for size in sizes]
        makes = [partial(sized, spec, size, smallest=sizes[0], kind=kind) for size in sizes]
        return StudySpecs(kind, "ranks", labels, _made(makes, labels, "ranks"))
    assert schedules is not None
    if scaling is not None:
        raise BadRequest(
            "scaling can only be given with ranks; schedules keep the batch size.", param="scaling"
        )
    names = _listed(schedules, "schedules")
    for name in names:
        if name not in SCHEDULES:
            raise BadRequest(
                f"schedules: {name!r} is not a pipeline schedule. Choose from "
                f"{', '.join(SCHEDULES)}.",
                param="schedules",
            )
    makes = [partial(scheduled, spec, name) for name in names]
    return StudySpecs(StudyKind.SCHEDULES, "schedules", names, _made(makes, names, "schedules"))


def plan_study(
    session: Session, cache: PlanCache, asked: StudySpecs, *, user_id: str
) -> list[Variant]:
    """Return each job with its plan on the smallest class that can run them all. Reads only.

    Raises InvalidRequest if there is none, with every reason and the job that it keeps from
    running.
    """
    offers = Offers(session)
    planned = [
        plan_job(session, cache, spec, user_id=user_id, offers=offers) for spec in asked.specs
    ]
    specs = [one.spec for one in planned if isinstance(one.spec, JobSpec)]
    by_class = list(zip(*(one.plans for one in planned), strict=True))
    if not by_class:
        require_runnable(planned[0])  # says that there is no node
    chosen = next((row for row in by_class if all(each.plan.runnable for each in row)), None)
    if chosen is None:
        raise _refused(asked, min(by_class, key=_badness))
    if asked.kind is StudyKind.SCHEDULES:
        _require_one_pipeline(chosen)
    threads = equal_threads(chosen)
    return [
        Variant(
            PlannedSpec(
                on_class(spec, each.offer.name, threads_per_rank=threads),
                one.dataset_id,
                one.model_id,
                one.tokenizer_id,
                [each],
            ),
            each,
        )
        for spec, one, each in zip(specs, planned, chosen, strict=True)
    ]


def _require_one_pipeline(row: Sequence[PlanOnClass]) -> None:
    """Raise BadRequest unless all jobs have a pipeline over the same number of ranks."""
    plan = row[0].plan
    if isinstance(plan, Plan) and plan.layout.pipeline == 1:
        raise BadRequest(
            f"schedules: {plan.strategy} on {counted(plan.world_size, 'rank')} has no "
            "pipeline, so there is no schedule to vary. Use strategy pipeline on 2 ranks or "
            "more.",
            param="schedules",
        )
    ranks = {each.plan.ranks_per_node for each in row}
    if len(ranks) > 1:
        raise BadRequest(
            "resources.ranks_per_node: auto stands for different numbers of ranks in these jobs, "
            f"so their times could not be compared. Give a number, such as {min(ranks)}.",
            param="resources.ranks_per_node",
        )


def equal_threads(row: Sequence[PlanOnClass]) -> int | None:
    """Return the threads per rank that all sizes can have on a CPU node; None on GPUs. If a smaller
    size used the cores that a larger one needs, more ranks would gain nothing."""
    hardware = row[0].offer.hardware
    if hardware.device != "cpu":
        return None
    return max(1, hardware.slots // max(each.plan.ranks_per_node for each in row))


def _refused(asked: StudySpecs, row: Sequence[PlanOnClass]) -> InvalidRequest:
    items = [
        ProblemItem(
            param=problem.param,
            code=problem.code,
            message=f"{label}: {problem.param}: {problem.message}",
        )
        for label, each in zip(asked.labels, row, strict=True)
        for problem in each.plan.problems
    ]
    return InvalidRequest(
        items,
        code="cannot_run",
        detail=f"Nothing was submitted, because not every job of the study can run on class "
        f"{row[0].offer.name}. {'. '.join(item.message for item in items)}.",
    )


def _badness(row: Sequence[PlanOnClass]) -> tuple[int, float]:
    """Return a class's distance from running all jobs: jobs that cannot run, then size, largest
    first."""
    return sum(not each.plan.runnable for each in row), -row[0].offer.hardware.memory_gib


def _listed(texts: Sequence[str], param: str) -> list[str]:
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not 2 <= len(names) <= MOST_JOBS or len(set(names)) < len(names):
        raise BadRequest(
            f"{param}: a study needs 2 to {MOST_JOBS} different values, not "
            f"{', '.join(names) or 'none'}.",
            param=param,
        )
    return names


def _size(text: str) -> int:
    if not NUMBER.match(text) or int(text) > MOST_RANKS:
        raise BadRequest(
            f"ranks: {text!r} is not a whole number from 1 to {MOST_RANKS}.", param="ranks"
        )
    return int(text)


def _made(
    makes: Sequence[Callable[[], JobSpec]], labels: Sequence[str], param: str
) -> list[JobSpec]:
    specs = []
    for make, label in zip(makes, labels, strict=True):
        try:
            specs.append(make())
        except ValidationError as error:
            items = validation_items(error.errors(include_url=False), prefix=f"{label}: ")
            raise InvalidRequest(items) from error
        except ValueError as error:
            raise BadRequest(f"{param}: {error}.", param=param) from error
    return specs
