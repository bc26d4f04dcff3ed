"""Results of a study's jobs together: speed-up, efficiency, bottleneck, and the check that the
loss curve is the same. Pure and torch-free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.estimates.timeline import bubble
from strategies.plan.learning_rate import batch_factor
from strategies.plan.planner import Plan
from strategies.plan.spec import Strategy, TrainSpec
from strategies.plan.trust.certificate import Comparison, Curve, compare, promise_of, told

WARM_UP_STEPS = 10  # of each attempt: memory is allocated, kernels chosen, layers compiled


class StudyKind(StrEnum):
    """Kind of a study, by what differs between its jobs.

    strong: the ranks; the batch stays. weak: the ranks, and the batch grows with them. schedules:
    the order of a pipeline's passes; ranks and batch stay.
    """

    STRONG = "strong"
    WEAK = "weak"
    SCHEDULES = "schedules"


class Judgement(NamedTuple):
    """Sentence about communication that takes a share of the passes below `below`."""

    below: float
    sentence: str


# Step times vary by about a tenth; from half on, ranks wait longer than they compute.
JUDGEMENTS = (
    Judgement(0.1, "Computing is the bottleneck: communication costs hardly anything."),
    Judgement(0.3, "Communication costs some time, but computing is the bottleneck."),
    Judgement(
        0.5, "Communication takes much of a step: larger micro-batches would use the ranks better."
    ),
    Judgement(math.inf, "Communication is the bottleneck: ranks wait longer than they compute."),
)


class StepMeasurement(NamedTuple):
    """Measurement of one step on rank 0, in seconds."""

    forward_s: float
    backward_s: float
    exposed_s: float


@dataclass(frozen=True)
class StudyRun:
    """One job of a study and its results so far."""

    spec: TrainSpec
    plan: Plan
    step_times_s: Sequence[Sequence[float]]
    """Step times of each attempt, in order, without the steps that a probe measured."""
    looks: Sequence[StepMeasurement]
    curve: Curve
    failure: str | None
    """Reason why it will have no result; None while it waits or trains, and when it is done."""


class MeasuredJob(BaseModel):
    """One job of a study in numbers; None if a number is not known, or never will be."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label: str
    """Name that distinguishes it: `2 ranks`, `GPipe`."""
    ranks: int
    global_batch_size: int
    learning_rate: float
    """Highest rate, after scaling by the batch size."""
    timed_steps: int
    """Number of steps in the median: all but the warm-up of each attempt and the measured ones."""
    step_time_s: float | None
    """Median step time."""
    tokens_per_s: float | None
    speed_up: float | None
    """Samples per second relative to the first job of the study."""
    expected_speed_up: float | None
    """Ratio of the numbers of ranks; for schedules, the ratio that their bubbles predict."""
    efficiency: float | None
    """Quotient speed_up / expected_speed_up."""
    serial_fraction: float | None
    """Share of the work that is not done in parallel, by Karp and Flatt; only in strong studies
    that start from one rank."""
    bubble: float | None
    """Share of a step in which a pipeline's ranks wait for each other, as predicted from its
    schedule."""
    communication: float | None
    """Exposed communication over forward and backward time, on rank 0."""
    judgement: str | None
    """Bottleneck, judged by that ratio."""
    curve: Comparison | None
    """Comparison with the first job of the study; None in weak studies, whose batches differ."""
    missing: str | None
    """Reason why there are no times."""


def measure(kind: StudyKind, runs: Sequence[StudyRun]) -> list[MeasuredJob]:
    """Return the numbers of every job of a study, relative to its first."""
    return [measured(kind, run, runs[0]) for run in runs]


def measured(kind: StudyKind, run: StudyRun, first: StudyRun) -> MeasuredJob:
    """Return the numbers of one job."""
    time_s, first_time_s = step_time(run), step_time(first)
    speed_up = None
    if time_s is not None and first_time_s is not None:
        larger = run.plan.global_batch_size / first.plan.global_batch_size
        speed_up = larger * first_time_s / time_s
    expected = expected_speed_up(kind, run.plan, first.plan, bubble_of(run), bubble_of(first))
    ratio = communication(run)
    return MeasuredJob(
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
    """Return the name that distinguishes a job from the others of its study."""
    if kind is not StudyKind.SCHEDULES:
        return ranks_label(plan.world_size)
    if plan.strategy is Strategy.NAIVE:
        return "naive"
    return spec.parallelism.pipeline_schedule.value


def ranks_label(ranks: int) -> str:
    """Return `1 rank`, `2 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def timed(run: StudyRun) -> list[float]:
    """Return step times after the warm-up of each attempt; none for a job that failed."""
    if run.failure is not None:
        return []
    return list(chain.from_iterable(times[WARM_UP_STEPS:] for times in run.step_times_s))


def step_time(run: StudyRun) -> float | None:
    """Return the median in seconds, which one slow step does not change."""
    times_s = timed(run)
    return median(times_s) if times_s else None


def why_missing(run: StudyRun) -> str:
    """Return a sentence about a job without times."""
    if run.failure is not None:
        return run.failure
    if run.spec.training.steps <= WARM_UP_STEPS:
        return (
            f"All of its {run.spec.training.steps} steps are warm-up: the first "
            f"{WARM_UP_STEPS} are not timed."
        )
    return f"It has not finished its first {WARM_UP_STEPS} steps, which are not timed."


def expected_speed_up(
    kind: StudyKind, plan: Plan, first: Plan, waits: float | None, first_waits: float | None
) -> float | None:
    """Return the speed-up if only the ranks, or the bubbles, made a difference."""
    if kind is not StudyKind.SCHEDULES:
        return plan.world_size / first.world_size
    if waits is None or first_waits is None:
        return None
    return (1 - waits) / (1 - first_waits)


def bubble_of(run: StudyRun) -> float | None:
    """Return the predicted share of waiting in a pipeline's step."""
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
    """Return the experimentally determined serial fraction, (1 / S - 1 / p) / (1 - 1 / p).

    It grows with p if overhead grows; below 0 the speed-up was more than p. Source: Karp and Flatt,
    Measuring parallel processor performance, CACM 33(5), 1990.
    """
    ranks = plan.world_size
    if kind is not StudyKind.STRONG or first.world_size != 1 or ranks == 1 or speed_up is None:
        return None
    return (1 / speed_up - 1 / ranks) / (1 - 1 / ranks)


def communication(run: StudyRun) -> float | None:
    """Return the median ratio of the measured steps."""
    if run.failure is not None:
        return None
    ratios = [
        look.exposed_s / (look.forward_s + look.backward_s)
        for look in run.looks
        if look.forward_s + look.backward_s > 0
    ]
    return median(ratios) if ratios else None


def judgement(ratio: float, *, pipeline: int) -> str:
    """Return a sentence or two about a ratio of communication.

    A forward or backward pass contains the communication that it waits for, but not the time that a
    pipeline's rank waits between two passes.
    """
    share = ratio if pipeline == 1 else ratio / (1 + ratio)
    sentence = next(one.sentence for one in JUDGEMENTS if share < one.below)
    return sentence if pipeline == 1 else f"{sentence} This includes the bubble."


def same_curve(kind: StudyKind, run: StudyRun, first: StudyRun) -> Comparison | None:
    """Compare with the first job by the rule of certificates, over the steps that both have."""
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


def summary(kind: StudyKind, points: Sequence[MeasuredJob]) -> str:
    """Return the findings of a study in one or two sentences."""
    return " ".join(part for part in (speed_sentence(kind, points), curve_sentence(points)) if part)


def speed_sentence(kind: StudyKind, points: Sequence[MeasuredJob]) -> str:
    """Return a sentence about the speed of the last timed job relative to the first."""
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
        return f"{sentence}; the predicted bubbles give {last.expected_speed_up:.2f}."
    assert last.efficiency is not None
    return f"{sentence}, an efficiency of {100 * last.efficiency:.0f} %."


def curve_sentence(points: Sequence[MeasuredJob]) -> str:
    """Return a sentence about whether the loss curves agree."""
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
            return f"The curve of {point.label} differs from that of {first}: {off}."
    if any(curve.verdict == "exempt" for _, curve in compared):
        return "Not all of these jobs promise the same loss curve."
    steps = min(curve.steps for _, curve in compared)
    return f"All compared jobs have the loss curve of {first} over {steps:,} steps."
