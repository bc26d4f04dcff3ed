"""A failed job's page names changes with the numbers of that job."""

from typing import Any

import pytest

from api.jobs.schemas import JobView
from core.states import JobState, Outcome
from dashboard.failures import TRIES, Failure, failure_of, marked
from strategies.plan.estimates.advice import Advice
from tests.dashboard.fake_api import attempt, job, planned, spec
from trainyard.transport.decoding import decode
from trainyard.views import Attempt, Job

ENDS_A_JOB = set(Outcome) - {
    Outcome.SUCCEEDED,
    Outcome.PREEMPTED,
    Outcome.LEASE_ENDED,
    Outcome.PAUSED,
    Outcome.CANCELLED,
}


def failure(outcome: Outcome, shown: JobView | None = None, **changes: Any) -> Failure:
    """The failure of the example's job after one attempt."""
    shown = shown or job()
    ended = shown.model_copy(update={"state": JobState.FAILED, "reason_code": outcome})
    tried = attempt(outcome=outcome, **changes)
    found = failure_of(
        decode(Job, ended.model_dump(mode="json")),
        [decode(Attempt, tried.model_dump(mode="json"))],
    )
    assert found is not None
    return found


def test_every_outcome_that_ends_a_job_has_something_to_try() -> None:
    assert set(TRIES) == {str(outcome) for outcome in ENDS_A_JOB}
    for outcome in ENDS_A_JOB:
        assert all(one.endswith(".") for one in failure(outcome).tries)


def test_a_running_job_has_no_failure() -> None:
    assert failure_of(decode(Job, job().model_dump(mode="json")), []) is None


def test_a_job_that_never_started_has_no_lines_and_a_way_out() -> None:
    never = job(state=JobState.FAILED, reason_code="start_failed")
    found = failure_of(decode(Job, never.model_dump(mode="json")), [])
    assert found is not None
    assert (found.source, found.lines) == ("", [])
    assert found.tries == [
        "Run it again without changes: the fault was not in your job.",
        "If it fails there again, tell staff: the node.",
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        (["loss 3", "ValueError: no", "bye"], [False, True, False]),
        (["loss 3", "terminate called", "Aborted"], [False, False, True]),
        (["an errorless line", "ok"], [False, True]),
    ],
)
def test_the_line_that_tells_the_error_is_marked_else_the_last(
    lines: list[str], expected: list[bool]
) -> None:
    assert [is_error for _, is_error in marked(lines)] == expected


def test_a_divergence_halves_the_rate_and_a_time_limit_extrapolates() -> None:
    wanted = spec(
        training={
            **spec().training.model_dump(),
            "learning_rate": 0.002,
            "warmup_steps": 20,
            "max_grad_norm": 1.0,
        }
    )
    assert failure(Outcome.DIVERGED, job(spec=wanted)).tries == [
        "Halve training.learning_rate: 1.0e-3, not 0.002.",
        "Lengthen training.warmup_steps: 100, not 20.",
    ]
    slow = job(step=100, steps=400, used_s=1200)
    assert failure(Outcome.TIME_LIMIT, slow).tries[0] == (
        "Raise resources.wall_time to 1 h 36 min: it did 100 of 400 steps in 20 min."
    )


def test_out_of_memory_names_the_plans_advice_that_fits_and_no_other() -> None:
    plan = planned(spec())
    advice = [
        Advice.model_validate(
            {
                "title": title,
                "change": {"parallelism.strategy": "fsdp"},
                "costs": "",
                "fits": fits,
                "needed_gib": 1.0,
                "slow_down": None,
                "result_class": "exact",
                "changes_training": False,
            }
        )
        for title, fits in (("Halve the micro-batch.", False), ("Use fsdp.", True))
    ]
    advised = job(plan=plan.model_copy(update={"advice": advice}))
    assert failure(Outcome.OUT_OF_MEMORY, advised).tries == ["Use fsdp."]
    bare = job(plan=plan.model_copy(update={"advice": [], "micro_batch_size": 4}))
    assert failure(Outcome.OUT_OF_MEMORY, bare).tries[0] == (
        "Halve training.micro_batch_size: 2, not 4."
    )


def test_out_of_memory_names_real_fields_and_not_what_the_job_does_already() -> None:
    def tries(micro_batch_size: int, **changes: object) -> list[str]:
        wanted = spec(**changes)
        plan = planned(wanted).model_copy(
            update={"advice": [], "micro_batch_size": micro_batch_size}
        )
        return failure(Outcome.OUT_OF_MEMORY, job(spec=wanted, plan=plan)).tries

    plain = tries(4, parallelism={"strategy": "ddp"})
    assert [one.split(":")[0] for one in plain] == [
        "Halve training.micro_batch_size",
        "Recompute activations",
        "Divide the model between ranks",
    ]
    done = spec(
        training={**spec().training.model_dump(), "micro_batch_size": 2},
        activation_checkpointing="full",
        parallelism={"strategy": "fsdp"},
    )
    assert done.training.micro_batch_size == 2, "fields of a spec, which the form takes"
    assert tries(1, parallelism={"strategy": "fsdp"}, activation_checkpointing="full") == [
        "Use a smaller model, or shorter sequences: data.sequence_length."
    ]
