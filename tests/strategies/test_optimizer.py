"""AdamW against its formula, the schedule against closed forms and torch's own."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from training_runs import make_spec

from strategies.gradients import Weight
from strategies.optimizer import (
    build_optimizer,
    learning_rate,
    optimizer_state,
    set_learning_rate,
)
from strategies.spec import TrainingSpec


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


def test_adamw_follows_its_formula_with_decay_on_matrices_only() -> None:
    """Loshchilov and Hutter (arXiv:1711.05101), algorithm 2, written out in fp64."""
    spec = training(weight_decay=0.1)
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    vector = nn.Parameter(torch.randn(4, dtype=torch.float64))
    optimizer = build_optimizer([matrix, vector], spec)
    expected = [p.detach().clone() for p in (matrix, vector)]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    for step in range(1, 8):
        rate = 0.01 * step
        for i, (parameter, decay) in enumerate(((matrix, 0.1), (vector, 0.0))):
            grad = torch.randn(parameter.shape, dtype=torch.float64)
            parameter.grad = grad
            mean = 0.9 * moments[i][0] + 0.1 * grad
            square = 0.95 * moments[i][1] + 0.05 * grad**2
            moments[i] = mean, square
            corrected = (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
            expected[i] = expected[i] - rate * decay * expected[i] - rate * corrected
        set_learning_rate(optimizer, rate)
        optimizer.step()
        torch.testing.assert_close(matrix.detach(), expected[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(vector.detach(), expected[1], rtol=1e-12, atol=1e-14)


def test_its_state_is_there_before_the_first_step_and_is_live() -> None:
    linear = nn.Linear(2, 2)
    weights = [Weight(name, parameter, 1) for name, parameter in linear.named_parameters()]
    optimizer = build_optimizer(linear.parameters(), training())
    state = optimizer_state(optimizer, weights)
    parts = {"step", "exp_avg", "exp_avg_sq"}
    assert set(state) == {f"{name}.{part}" for name in ("weight", "bias") for part in parts}
    assert all(float(tensor.abs().sum()) == 0 for tensor in state.values())
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert float(state["weight.step"]) == 1
    assert math.isclose(float(state["weight.exp_avg"][0, 0]), 0.1, rel_tol=1e-6)
