"""Rules about pipelines: layers for all stages, and a number of micro-batches that the schedule
can order."""

from collections.abc import Iterator
from itertools import count

from strategies.plan.rules.problem import Problem, ResolvedSpec, largest_divisor
from strategies.plan.spec import ActivationCheckpointing, PipelineSchedule, Strategy
from strategies.plan.stages import ZERO_BUBBLE, can_order, schedule_of, stages_per_rank
from strategies.plan.words import counted

DEGREE = "parallelism.pipeline_parallel_degree"
PER_RANK = "parallelism.pipeline_stages_per_rank"


def stages_suit_schedule(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism, ranks = resolved.spec.parallelism, resolved.layout.pipeline
    given = parallelism.pipeline_stages_per_rank
    if ranks == 1:
        if given is not None:
            yield Problem(
                code="needs_pipeline",
                param=PER_RANK,
                message=f"pipeline_stages_per_rank {given} divides the layers of a pipeline's "
                "ranks, but the pipeline degree is 1; take a pipeline degree of 2 or more, or "
                "leave it out",
            )
        return
    schedule = schedule_of(resolved.strategy, parallelism)
    needed = {PipelineSchedule.GPIPE: 1, PipelineSchedule.ONE_F_ONE_B: 1, PipelineSchedule.ZBV: 2}
    if given is not None and given != needed.get(schedule, given):
        advice = "" if schedule is PipelineSchedule.ZBV else ", or Interleaved1F1B for more"
        yield Problem(
            code="stages_per_rank",
            param=PER_RANK,
            message=f"{named(resolved)} has {counted(needed[schedule], 'stage')} on each rank, not "
            f"{given}; take {needed[schedule]}{advice}",
        )


def layers_bear_two_backward_passes(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse zero-bubble schedules for layers that cannot go backward twice.

    Such a schedule computes the gradient of a layer's input first, and that of its weights later.
    """
    schedule = schedule_of(resolved.strategy, resolved.spec.parallelism)
    if resolved.layout.pipeline == 1 or schedule not in ZERO_BUBBLE:
        return
    if resolved.spec.compile is True:
        yield Problem(
            code="not_supported_by_schedule",
            param="compile",
            message=f"{schedule} runs the backward pass of each layer in two parts, which a "
            "compiled layer cannot; take Interleaved1F1B, or compile: false",
        )
    if resolved.spec.activation_checkpointing is ActivationCheckpointing.SELECTIVE:
        yield Problem(
            code="not_supported_by_schedule",
            param="activation_checkpointing",
            message=f"{schedule} runs the backward pass of each layer in two parts, and "
            "selective checkpointing keeps its saved tensors for one part only; take "
            "full or none, or Interleaved1F1B",
        )


def layers_fill_stages(resolved: ResolvedSpec) -> Iterator[Problem]:
    ranks, layers = resolved.layout.pipeline, resolved.spec.model.layers
    per_rank = stages_per_rank(
        schedule_of(resolved.strategy, resolved.spec.parallelism), resolved.spec.parallelism
    )
    if ranks == 1 or ranks * per_rank <= layers:
        return
    advice = f"take {ranks * per_rank} layers or more"
    nearest = largest_divisor(max(1, layers // per_rank), max(1, resolved.world_size))
    if nearest > 1:
        advice += f", or a pipeline degree of {nearest}"
    yield Problem(
        code="too_few_layers",
        param=DEGREE,
        message=f"{layers} layers cannot fill {ranks} pipeline ranks x "
        f"{counted(per_rank, 'stage')} = "
        f"{ranks * per_rank} stages with at least one layer each; {advice}",
    )


def micro_batches_fill_pipeline(resolved: ResolvedSpec) -> Iterator[Problem]:
    ranks, micro_batches = resolved.layout.pipeline, resolved.gradient_accumulation_steps
    if ranks == 1 or resolved.strategy is Strategy.NAIVE:
        return
    schedule = resolved.spec.parallelism.pipeline_schedule
    if can_order(schedule, ranks=ranks, micro_batches=micro_batches):
        return
    nearest = next(
        number
        for distance in count(1)
        for number in (micro_batches + distance, micro_batches - distance)
        if number > 0 and can_order(schedule, ranks=ranks, micro_batches=number)
    )
    need = (
        f"at least {ranks}, one for each rank of the pipeline"
        if schedule is PipelineSchedule.ONE_F_ONE_B
        else f"equal rounds of at least {ranks}"
    )
    yield Problem(
        code="micro_batches",
        param="training.gradient_accumulation_steps",
        message=f"{schedule} needs {need} micro-batches per step, not {micro_batches}; the "
        f"nearest gradient_accumulation_steps is {nearest}, and GPipe runs with any "
        "number",
    )


def named(resolved: ResolvedSpec) -> str:
    """Return the schedule's name as a user asks for it."""
    if resolved.strategy is Strategy.NAIVE:
        return "naive"
    return resolved.spec.parallelism.pipeline_schedule.value
