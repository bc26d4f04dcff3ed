"""What the jobs of a study say together: how much faster, at what efficiency, what limits, and
whether the loss curve stayed. Pure and torch-free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.optimizers.learning_rate import batch_factor
from strategies.planning.planner import Plan
from strategies.planning.timeline import bubble
from strategies.spec import Strategy, TrainSpec
from strategies.trust.certificate import Comparison, Curve, compare, promise_of, told

WARM_UP_STEPS = (
    10  # of each attempt: memory is claimed, kernels are chosen, compiled layers written
)


class StudyKind(StrEnum):
    """What differs between the jobs of a study, and what stays.

    strong: the ranks; the batch stays. weak: the ranks, and the batch grows with them. schedules:
    the order of a pipeline's passes; ranks and batch stay.
    """

    STRONG = "strong"
    WEAK = "weak"
    SCHEDULES = "schedules"


class Judgement(NamedTuple):
    """What it means that communication takes a share of the passes below `below`."""

    below: float
    sentence: str


# A tenth is within what step times vary by; from half on, ranks wait longer than they compute.
JUDGEMENTS = (
    Judgement(0.1, "Computing limits: communication hardly costs anything."),
    Judgement(0.3, "Communication is felt, but computing limits."),
    Judgement(
        0.5, "Communication takes much of a step: larger micro-batches would use the ranks better."
    ),
    Judgement(math.inf, "Communication limits: ranks wait longer than they compute."),
)


class Look(NamedTuple):
    """What a probe saw of one step on rank 0, seconds."""

    forward_s: float
    backward_s: float
    exposed_s: float


@dataclass(frozen=True)
class Run:
    """One job of a study, as far as it has come."""

    spec: TrainSpec
    plan: Plan
    step_times_s: Sequence[Sequence[float]]
    """Of each attempt in order. Steps that a probe looked into are not among them."""
    looks: Sequence[Look]
    curve: Curve
    failure: str | None
    """Why it will have no result; None while it waits or trains, and when it is done."""


class Measured(BaseModel):
    """One job of a study in numbers; None is what is not known, or will not be."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label: str
    """What sets it apart: `2 ranks`, `GPipe`."""
    ranks: int
    global_batch_size: int
    learning_rate: float
    """The highest, with what the batch size makes of it."""
    timed_steps: int
    """How many the median is taken of: all after the first ones of each attempt, but those that
    were looked into."""
    step_time_s: float | None
    """The median."""
    tokens_per_s: float | None
    speed_up: float | None
    """Samples per second against the first job of the study."""
    expected_speed_up: float | None
    """As many times as there are ranks; of schedules: what their bubbles predict."""
    efficiency: float | None
    """speed_up / expected_speed_up."""
    serial_fraction: float | None
    """Share of the work that is not done in parallel, by Karp and Flatt; of strong studies from one
    rank on."""
    bubble: float | None
    """Share of a step in which a pipeline's ranks wait for each other, as its order of passes
    predicts."""
    communication: float | None
    """Exposed communication over forward and backward time, on rank 0."""
    judgement: str | None
    """What limits, by that ratio."""
    curve: Comparison | None
    """Against the first job of the study; of weak studies none, another batch is another curve."""
    missing: str | None
    """Why there are no times."""


def measure(kind: StudyKind, runs: Sequence[Run]) -> list[Measured]:
    """Every job of a study against its first."""
    return [measured(kind, run, runs[0]) for run in runs]


def measured(kind: StudyKind, run: Run, first: Run) -> Measured:
    """One of them."""
    time_s, first_time_s = step_time(run), step_time(first)
    speed_up = None
    if time_s is not None and first_time_s is not None:
        larger = run.plan.global_batch_size / first.plan.global_batch_size
        speed_up = larger * first_time_s / time_s
    expected = expected_speed_up(kind, run.plan, first.plan, bubble_of(run), bubble_of(first))
    ratio = communication(run)
    return Measured(
        label=label_of(kind, run.spec, run.plan),
        ranks=run.plan.world_size,
        global_batch_size=run.plan.global_batch_size,
        learning_rate=run.spec.training.learning_rate * batch_factor(run.spec.training),
        timed_steps=len(timed(run)),
        step_time_s=time_s,
        tokens_per_s=None if time_s is None else run.plan.tokens_per_step / time_s,
        speed_up=speed_up,
        expected_speed_up=expected,
        efficiency=None if speed_up is None or expected is None else speed_up / expected,
        serial_fraction=serial_fraction(kind, speed_up, run.plan, first.plan),
        bubble=bubble_of(run),
        communication=ratio,
        judgement=None if ratio is None else judgement(ratio, pipeline=run.plan.layout.pipeline),
        curve=same_curve(kind, run, first),
        missing=None if time_s is not None else why_missing(run),
    )


def label_of(kind: StudyKind, spec: TrainSpec, plan: Plan) -> str:
    """What sets a job apart from the others of its study."""
    if kind is not StudyKind.SCHEDULES:
        return ranks_label(plan.world_size)
    if plan.strategy is Strategy.NAIVE:
        return "naive"
    return spec.parallelism.pipeline_schedule.value


def ranks_label(ranks: int) -> str:
    """`1 rank`, `2 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def timed(run: Run) -> list[float]:
    """Step times after the warm-up of each attempt; none of a job that failed."""
    if run.failure is not None:
        return []
    return list(chain.from_iterable(times[WARM_UP_STEPS:] for times in run.step_times_s))


def step_time(run: Run) -> float | None:
    """The median, seconds: one slow step does not move it."""
    times_s = timed(run)
    return median(times_s) if times_s else None


def why_missing(run: Run) -> str:
    """In a sentence, of a job without times."""
    if run.failure is not None:
        return run.failure
    if run.spec.training.steps <= WARM_UP_STEPS:
        return (
            f"Its {run.spec.training.steps} steps are all warm-up: the first {WARM_UP_STEPS} are "
            "not timed."
        )
    return f"Its first {WARM_UP_STEPS} steps, which are not timed, are not over yet."


def expected_speed_up(
    kind: StudyKind, plan: Plan, first: Plan, waits: float | None, first_waits: float | None
) -> float | None:
    """If nothing but the ranks, or the bubbles, made a difference."""
    if kind is not StudyKind.SCHEDULES:
        return plan.world_size / first.world_size
    if waits is None or first_waits is None:
        return None
    return (1 - waits) / (1 - first_waits)


def bubble_of(run: Run) -> float | None:
    """The predicted share of waiting in a pipeline's step."""
    if run.plan.layout.pipeline == 1:
        return None
    return bubble(
        run.plan.strategy,
        run.spec.parallelism,
        ranks=run.plan.layout.pipeline,
        micro_batches=run.plan.gradient_accumulation_steps,
    )


def serial_fraction(
    kind: StudyKind, speed_up: float | None, plan: Plan, first: Plan
) -> float | None:
    """The experimentally determined serial fraction, (1 / S - 1 / p) / (1 - 1 / p).

    It grows with p where overhead grows; below 0 the speed-up was more than p. Source: Karp and
    Flatt, Measuring parallel processor performance, CACM 33(5), 1990.
    """
    ranks = plan.world_size
    if kind is not StudyKind.STRONG or first.world_size != 1 or ranks == 1 or speed_up is None:
        return None
    return (1 / speed_up - 1 / ranks) / (1 - 1 / ranks)


def communication(run: Run) -> float | None:
    """The median ratio of the steps that were looked into."""
    if run.failure is not None:
        return None
    ratios = [
        look.exposed_s / (look.forward_s + look.backward_s)
        for look in run.looks
        if look.forward_s + look.backward_s > 0
    ]
    return median(ratios) if ratios else None


def judgement(ratio: float, *, pipeline: int) -> str:
    """What it means, in a sentence or two.

    A forward or backward pass contains the communication that it waits for, but not what a
    pipeline's rank waits for between two passes.
    """
    share = ratio if pipeline == 1 else ratio / (1 + ratio)
    sentence = next(one.sentence for one in JUDGEMENTS if share < one.below)
    return sentence if pipeline == 1 else f"{sentence} This includes the bubble."


def same_curve(kind: StudyKind, run: Run, first: Run) -> Comparison | None:
    """By the rule of certificates, over the steps that both have."""
    if (
        kind is StudyKind.WEAK
        or run is first
        or run.failure is not None
        or first.failure is not None
    ):
        return None
    if not run.curve.loss.keys() & first.curve.loss.keys():
        return None
    return compare(
        run.curve, first.curve, promise_of(run.spec, run.plan), promise_of(first.spec, first.plan)
    )


def summary(kind: StudyKind, points: Sequence[Measured]) -> str:
    """What a study found, in one or two sentences."""
    return " ".join(part for part in (speed_sentence(kind, points), curve_sentence(points)) if part)


def speed_sentence(kind: StudyKind, points: Sequence[Measured]) -> str:
    """How much faster the last job that has times is than the first."""
    first = points[0]
    timed_points = [point for point in points[1:] if point.speed_up is not None]
    if not timed_points:
        waiting = first if first.step_time_s is None else points[1]
        return f"No speed-up is known yet. {waiting.label}: {waiting.missing or 'not timed.'}"
    last = timed_points[-1]
    if kind is StudyKind.SCHEDULES:
        last = max(timed_points, key=lambda point: point.speed_up or 0.0)
    verb = "is" if kind is StudyKind.SCHEDULES or last.ranks == 1 else "are"
    sentence = f"{last.label} {verb} {last.speed_up:.2f} times as fast as {first.label}"
    if kind is StudyKind.SCHEDULES and last.expected_speed_up is not None:
        return f"{sentence}; their bubbles predict {last.expected_speed_up:.2f}."
    assert last.efficiency is not None
    return f"{sentence}, an efficiency of {100 * last.efficiency:.0f} %."


def curve_sentence(points: Sequence[Measured]) -> str:
    """Whether the loss curve stayed."""
    compared = [(point, point.curve) for point in points if point.curve is not None]
    if not compared:
        return ""
    first = points[0].label
    for point, curve in compared:
        if curve.verdict == "fail":
            parts = [curve.loss, *([curve.grad_norm] if curve.grad_norm is not None else [])]
            names = ("loss", "gradient norm")
            off = next(
                told(name, of) for name, of in zip(names, parts, strict=False) if not of.is_within
            )
            return f"{point.label} took another curve than {first}: {off}."
    if any(curve.verdict == "exempt" for _, curve in compared):
        return "Not every one of them promises the same loss curve."
    steps = min(curve.steps for _, curve in compared)
    return f"All that were compared took the loss curve of {first} over {steps:,} steps."
