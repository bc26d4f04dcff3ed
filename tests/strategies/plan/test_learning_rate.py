"""The learning rate: closed forms, torch's own cosine, and how it follows the batch size."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from strategies.plan.learning_rate import learning_rate, scaling_policy
from strategies.plan.planner import plan
from strategies.plan.spec import TrainingSpec
from tests.strategies.support.training_runs import HARDWARE, make_spec


def training(**changes: Any) -> TrainingSpec:
    return make_spec(**{f"training__{key}": value for key, value in changes.items()}).training


def test_the_schedule_rises_evenly_then_falls_along_a_half_cosine() -> None:
    spec = training(steps=400, warmup_steps=20, learning_rate=2e-3)
    assert learning_rate(spec, 1) == pytest.approx(1e-4)
    assert learning_rate(spec, 10) == pytest.approx(1e-3)
    assert learning_rate(spec, 20) == pytest.approx(2e-3)
    assert learning_rate(spec, 210) == pytest.approx(1.1e-3)  # half way: the mean of 2e-3 and 2e-4
    assert learning_rate(spec, 400) == pytest.approx(2e-4)


def test_it_equals_torchs_cosine() -> None:
    spec = training(steps=60, warmup_steps=10, learning_rate=0.5, min_learning_rate_ratio=0.2)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    for step in range(10, 61):
        assert learning_rate(spec, step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


@given(st.integers(1, 300), st.integers(0, 300), st.sampled_from(["cosine", "constant"]))
def test_it_stays_within_its_bounds_and_never_rises_after_the_warm_up(
    steps: int, warmup: int, schedule: str
) -> None:
    spec = training(steps=steps, warmup_steps=min(warmup, steps), schedule=schedule)
    rates = [learning_rate(spec, step) for step in range(1, steps + 1)]
    assert all(0 < rate <= spec.learning_rate * (1 + 1e-12) for rate in rates)
    after = rates[spec.warmup_steps :]
    assert after == sorted(after, reverse=True)
    if schedule == "constant":
        assert set(after) <= {spec.learning_rate}


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_a_rate_found_for_8_samples_is_scaled_to_32(scaling: str, factor: float) -> None:
    spec = training(
        global_batch_size=32,
        reference_global_batch_size=8,
        learning_rate_scaling=scaling,
        learning_rate=3e-3,
    )
    plain = training(learning_rate=3e-3)
    for step in (1, 5, 6, 30, 50):
        assert learning_rate(spec, step) == pytest.approx(factor * learning_rate(plain, step))


def test_the_policy_is_told_in_numbers_by_the_plan() -> None:
    scaled = {
        "training__global_batch_size": 32,
        "training__reference_global_batch_size": 8,
        "training__learning_rate_scaling": "linear",
    }
    found = plan(make_spec(**scaled), nodes=1, ranks_per_node=1, hardware=HARDWARE)
    assert found.runnable
    assert found.warnings == ["learning rate 0.003 x 4 = 0.012 (linear, 32 / 8 samples)"]
    assert scaling_policy(training()) is None


def test_scaling_without_a_reference_is_refused() -> None:
    spec = make_spec(training__learning_rate_scaling="sqrt")
    (problem,) = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).problems
    assert problem.code == "reference_missing"
    assert problem.param == "training.reference_global_batch_size"
    assert "sqrt scaling multiplies learning_rate 0.003 by global_batch_size 8" in problem.message
