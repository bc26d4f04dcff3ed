"""A study: one training as several jobs, in several sizes or pipeline schedules. Pure."""

from core.spec.spec import JobSpec
from strategies.plan.catalog import TECHNIQUES
from strategies.plan.rules.layout import DEGREE_FIELDS
from strategies.plan.spec import PipelineSchedule, Strategy
from strategies.plan.trust.scaling import StudyKind, ranks_label

MOST_JOBS = 8
LONGEST_NAME = 63  # of a job
NAIVE = "naive"
SCHEDULES = (NAIVE, *(schedule.value for schedule in PipelineSchedule))


def sized(spec: JobSpec, ranks: int, *, smallest: int, kind: StudyKind) -> JobSpec:
    """Return the job on so many ranks: the strategy's own axis takes them, the other degrees stay.

    The batch is that of the smallest size, scaled with the ranks in a weak study. micro_batch_size
    stays where it is given, and the accumulation follows. ValueError if a weak study's batch is not
    a whole number or too large.
    """
    training: dict[str, object] = {}
    if spec.training.micro_batch_size is not None:
        training["gradient_accumulation_steps"] = None
    if kind is StudyKind.WEAK:
        batch, rest = divmod(spec.training.global_batch_size * ranks, smallest)
        if rest:
            raise ValueError(
                f"a weak study of {smallest} ranks with {spec.training.global_batch_size} "
                f"samples per step would need a fraction of a sample for {ranks} ranks"
            )
        training["global_batch_size"] = batch
    technique = TECHNIQUES.get(spec.parallelism.strategy)
    axis = technique.open_axis if technique is not None else None
    degree = {} if axis is None else {DEGREE_FIELDS[axis]: None}
    return changed(
        spec,
        name=named(spec.name, ranks_label(ranks)),
        training=spec.training.model_copy(update=training),
        parallelism=spec.parallelism.model_copy(update=degree),
        resources=spec.resources.model_copy(update={"ranks_per_node": ranks}),
    )


def scheduled(spec: JobSpec, schedule: str) -> JobSpec:
    """Return the job with its pipeline in this order; `naive` is a strategy of its own."""
    strategy = spec.parallelism.strategy
    if schedule == NAIVE:
        changes = {"strategy": Strategy.NAIVE, "pipeline_schedule": PipelineSchedule.ONE_F_ONE_B}
    else:
        changes = {
            "strategy": Strategy.PIPELINE if strategy is Strategy.NAIVE else strategy,
            "pipeline_schedule": PipelineSchedule(schedule),
        }
    return changed(
        spec,
        name=named(spec.name, schedule),
        parallelism=spec.parallelism.model_copy(update=changes),
    )


def on_class(spec: JobSpec, node_class: str, *, threads_per_rank: int | None) -> JobSpec:
    """Return the job on nodes of this class only, with so many threads for each rank unless the
    spec says how many.

    Times on different hardware cannot be compared.
    """
    resources = {
        "node_class": node_class,
        "threads_per_rank": spec.resources.threads_per_rank or threads_per_rank,
    }
    return changed(spec, resources=spec.resources.model_copy(update=resources))


def changed(spec: JobSpec, **parts: object) -> JobSpec:
    """Return `spec` with other parts, checked as if a user had written it."""
    return JobSpec.model_validate(spec.model_copy(update=parts).model_dump(mode="json"))


def named(name: str, suffix: str) -> str:
    """Return a valid name of a job, such as `gpt-ddp 2 ranks`; a long `name` is cut."""
    return f"{name[: LONGEST_NAME - len(suffix) - 1].rstrip()} {suffix}"
