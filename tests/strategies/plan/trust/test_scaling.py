"""What the jobs of a study say together, checked against numbers worked out by hand."""

import math

import pytest

from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.spec import TrainSpec
from strategies.plan.trust.certificate import Curve
from strategies.plan.trust.scaling import (
    JUDGEMENTS,
    WARM_UP_STEPS,
    MeasuredJob,
    StepMeasurement,
    StudyKind,
    StudyRun,
    judgement,
    measure,
    summary,
)

STRONG, WEAK, SCHEDULES = StudyKind
HARDWARE = Hardware(class_name="cpu8", device="cpu", slots=8, memory_gib=32.0)
WARMING_UP = [9.0] * WARM_UP_STEPS


def run(
    ranks: int,
    step_time_s: float | None = None,
    *,
    batch: int = 8,
    losses: dict[int, float] | None = None,
    parallelism: dict[str, object] | None = None,
    **given: object,
) -> StudyRun:
    spec = TrainSpec.model_validate(
        {
            "model": {"name": "gpt", "layers": 4, "width": 16, "heads": 2},
            "data": {"dataset": "python-stdlib", "sequence_length": 8},
            "training": {"steps": 50, "global_batch_size": batch, "learning_rate": 0.001},
            "parallelism": parallelism or {"strategy": "ddp"},
        }
    )
    curve = Curve()
    for step, loss in (losses or {1: 4.0, 2: 3.0}).items():
        curve.add(step, loss, 1.0)
    made: dict[str, object] = {
        "spec": spec,
        "plan": plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE),
        "step_times_s": [] if step_time_s is None else [[*WARMING_UP, *[step_time_s] * 5]],
        "looks": [],
        "curve": curve,
        "failure": None,
    }
    return StudyRun(**{**made, **given})  # type: ignore[arg-type]


def one(kind: StudyKind, *runs: StudyRun) -> MeasuredJob:
    """What is found of the last of them."""
    return measure(kind, runs)[-1]


def test_strong_scaling_divides_the_time_of_the_smallest_size() -> None:
    first, second, fourth = measure(STRONG, [run(1, 0.8), run(2, 0.5), run(4, 0.25)])
    assert (first.speed_up, first.efficiency, first.serial_fraction) == (1.0, 1.0, None)
    assert (second.speed_up, second.efficiency) == (pytest.approx(1.6), pytest.approx(0.8))
    assert (fourth.speed_up, fourth.efficiency) == (pytest.approx(3.2), pytest.approx(0.8))
    assert [point.expected_speed_up for point in (first, second, fourth)] == [1, 2, 4]
    assert fourth.tokens_per_s == pytest.approx(8 * 8 / 0.25)


def test_the_serial_fraction_is_that_of_amdahls_law() -> None:
    """A program of which a tenth is serial: 1 / (0.1 + 0.9 / p)."""
    for ranks in (2, 4, 8):
        found = one(STRONG, run(1, 1.0), run(ranks, 0.1 + 0.9 / ranks))
        assert found.serial_fraction == pytest.approx(0.1)
    assert one(STRONG, run(2, 1.0), run(4, 0.6)).serial_fraction is None  # not known from 2 on


def test_weak_scaling_counts_samples_and_compares_no_curves() -> None:
    found = one(WEAK, run(1, 0.5), run(2, 0.625, batch=16))
    assert (found.speed_up, found.efficiency) == (pytest.approx(1.6), pytest.approx(0.8))
    assert (found.curve, found.serial_fraction) == (None, None)


def test_the_learning_rate_that_a_batch_makes_is_told() -> None:
    run_ = run(2, 0.5, batch=32)
    scaled = {"learning_rate_scaling": "linear", "reference_global_batch_size": 8}
    training = run_.spec.training.model_validate({**run_.spec.training.model_dump(), **scaled})
    spec = run_.spec.model_copy(update={"training": training})
    found = one(WEAK, run(1, 0.5), StudyRun(**{**vars(run_), "spec": spec}))
    assert found.learning_rate == pytest.approx(0.004)


def test_warm_up_of_every_attempt_is_left_out_and_one_slow_step_counts_as_one() -> None:
    resumed = [[*WARMING_UP, 0.5, 0.5, 30.0], [*WARMING_UP, 0.5, 0.4], [9.0]]
    found = one(STRONG, run(1, step_times_s=resumed))
    assert (found.timed_steps, found.step_time_s) == (5, 0.5)


def test_a_size_without_times_says_why_and_leaves_the_others_their_own() -> None:
    failed = "Failed: rank 1 ran out of memory."
    first, second, third = measure(
        STRONG, [run(1, 0.8), run(2, 0.5, failure=failed), run(4, step_times_s=[[9.0]])]
    )
    assert first.missing is None
    assert second.missing == failed
    assert third.missing == "It has not finished its first 10 steps, which are not timed."
    for point in (second, third):
        known = (point.step_time_s, point.tokens_per_s, point.speed_up, point.efficiency)
        assert known == (None, None, None, None)
    assert second.curve is None
    # Against a first size that failed nothing is faster or slower.
    assert one(STRONG, run(1, 0.8, failure=failed), run(2, 0.5)).speed_up is None


def test_communication_is_the_median_of_the_steps_that_were_looked_into() -> None:
    looks = [
        StepMeasurement(0.2, 0.8, 0.3),
        StepMeasurement(0.2, 0.8, 0.2),
        StepMeasurement(0.2, 0.8, 0.9),
    ]
    found = one(STRONG, run(1, 1.0), run(2, 0.5, looks=looks))
    assert found.communication == pytest.approx(0.3)
    assert found.judgement is not None
    assert "takes much of a step" in found.judgement
    assert one(STRONG, run(2, 0.5)).communication is None
    assert one(STRONG, run(2, 0.5, looks=[StepMeasurement(0.0, 0.0, 0.0)])).communication is None


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.0, "Computing is the bottleneck"),
        (0.0999, "Computing is the bottleneck"),
        (0.1, "costs some time"),
        (0.5, "wait longer"),
        (3.0, "wait longer"),
    ],
)
def test_each_ratio_has_one_judgement(ratio: float, words: str) -> None:
    assert words in judgement(ratio, pipeline=1)
    assert JUDGEMENTS[-1].below == math.inf


def test_what_a_pipeline_waits_between_its_passes_counts_as_waiting() -> None:
    assert judgement(0.9, pipeline=2) == (
        "Communication takes much of a step: larger micro-batches would use the ranks better. "
        "This includes the bubble."
    )
    assert judgement(1.1, pipeline=2).startswith("Communication is the bottleneck")


def test_curves_are_held_to_the_promise() -> None:
    same = one(STRONG, run(1, 1.0), run(2, 0.6))
    assert same.curve is not None
    assert (same.curve.verdict, same.curve.loss.tolerance) == ("pass", 1e-6)
    other = one(STRONG, run(1, 1.0), run(2, 0.6, losses={1: 4.0, 2: 3.1}))
    assert other.curve is not None
    assert (other.curve.verdict, other.curve.loss.step) == ("fail", 2)
    assert one(STRONG, run(1, 1.0), run(2, 0.6, losses={7: 4.0})).curve is None


def test_schedules_stand_beside_what_their_bubbles_predict() -> None:
    """Two ranks, four micro-batches: naive waits half of a step, 1F1B 1 / (4 + 1) of it."""
    naive = run(2, 1.0, parallelism={"strategy": "naive"})
    filled = run(2, 0.7, parallelism={"strategy": "pipeline", "pipeline_schedule": "1F1B"})
    assert naive.plan.gradient_accumulation_steps == 4
    first, second = measure(SCHEDULES, [naive, filled])
    assert (first.label, second.label) == ("naive", "1F1B")
    assert (first.bubble, second.bubble) == (0.5, pytest.approx(0.2))
    assert second.expected_speed_up == pytest.approx(0.8 / 0.5)
    assert second.speed_up == pytest.approx(1 / 0.7)
    assert summary(SCHEDULES, [first, second]) == (
        "1F1B is 1.43 times as fast as naive; the predicted bubbles give 1.60. All compared "
        "jobs have the loss curve of naive over 2 steps."
    )


def test_the_summary_says_what_was_found() -> None:
    def said(kind: StudyKind, *runs: StudyRun) -> str:
        return summary(kind, measure(kind, runs))

    assert said(STRONG, run(1, 0.8), run(2, 0.5)) == (
        "2 ranks are 1.60 times as fast as 1 rank, an efficiency of 80 %. All compared jobs "
        "have the loss curve of 1 rank over 2 steps."
    )
    assert said(STRONG, run(1, 0.8), run(2, losses={9: 1.0})) == (
        "No speed-up is known yet. 2 ranks: It has not finished its first 10 steps, which "
        "are not timed."
    )
    assert (
        "The curve of 2 ranks differs from that of 1 rank: loss off by 3.2e-02 at step 2"
        in said(STRONG, run(1, 0.8), run(2, 0.5, losses={1: 4.0, 2: 3.1}))
    )
