"""AdamW and SGD against their formulas, and state by name. LARS and LAMB: test_large_batch.py."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from strategies.plan.estimates.optimizer_step import COPIES_IN_STEP
from strategies.plan.spec import OptimizerName, Precision, TrainingSpec
from strategies.train.gradients import Weight
from strategies.train.optimizers.optimizer import (
    build_optimizer,
    optimizer_state,
    set_learning_rate,
)
from strategies.train.precision import dtype_of
from strategies.train.watching.scales import Highest, malloc_of_this_process
from tests.strategies.support.training_runs import make_spec

STATE = {
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
    "sgd": {"momentum_buffer"},
    "lars": {"momentum"},
    "lamb": {"step", "exp_avg", "exp_avg_sq"},
}


def training(**changes: Any) -> TrainingSpec:
    return make_spec(**{f"training__{key}": value for key, value in changes.items()}).training


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


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_follows_its_formula_with_decay_on_matrices_only(momentum: float) -> None:
    spec = training(optimizer="sgd", beta1=momentum, weight_decay=0.1)
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(s, dtype=torch.float64)) for s in ((3, 4), (4,))]
    optimizer = build_optimizer(parameters, spec)
    expected = [p.detach().clone() for p in parameters]
    speeds = [torch.zeros_like(p) for p in expected]
    for step in range(1, 6):
        for i, decay in enumerate((0.1, 0.0)):
            grad = torch.randn(expected[i].shape, dtype=torch.float64)
            parameters[i].grad = grad
            speeds[i] = momentum * speeds[i] + grad + decay * expected[i]
            expected[i] = expected[i] - 0.1 * step * speeds[i]
        set_learning_rate(optimizer, 0.1 * step)
        optimizer.step()
        for parameter, wanted in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("optimizer", "parts"), STATE.items())
def test_its_state_is_there_before_the_first_step_and_is_live(
    optimizer: str, parts: set[str]
) -> None:
    linear = nn.Linear(2, 2)
    weights = [Weight(name, parameter, 1) for name, parameter in linear.named_parameters()]
    built = build_optimizer(linear.parameters(), training(optimizer=optimizer))
    state = optimizer_state(built, weights)
    assert set(state) == {f"{name}.{part}" for name in ("weight", "bias") for part in parts}
    assert all(float(tensor.abs().sum()) == 0 for tensor in state.values())
    linear(torch.ones(1, 2)).sum().backward()
    built.step()
    assert all(float(tensor.abs().sum()) != 0 for tensor in state.values())
    after = optimizer_state(built, weights)
    assert all(after[name] is tensor for name, tensor in state.items())
    if "exp_avg" in parts:
        assert math.isclose(float(state["weight.exp_avg"][0, 0]), 0.1, rel_tol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sgd_takes_the_steps_of_torchs_own_bit_by_bit(momentum: float, dtype: torch.dtype) -> None:
    spec = training(optimizer="sgd", beta1=momentum, weight_decay=0.1)
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(s, dtype=dtype)) for s in ((30, 40), (7, 9), (40,))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    groups = [
        {"params": theirs[:2], "weight_decay": 0.1},
        {"params": theirs[2:], "weight_decay": 0.0},
    ]
    wanted = torch.optim.SGD(groups, lr=0.1, momentum=momentum, foreach=True)
    built = build_optimizer(ours, spec)
    for step in range(1, 6):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, dtype=dtype)
            its.grad = mine.grad.clone()
        for optimizer in (built, wanted):
            set_learning_rate(optimizer, 0.1 * step)
            optimizer.step()
        assert all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.PURE_BFLOAT16])
@pytest.mark.parametrize("name", [each for each in OptimizerName if each != "adamw_triton"])
def test_a_step_copies_no_more_than_the_plan_says(name: str, precision: Precision) -> None:
    """Counted by the allocator after every operation, beside weights, gradients and state."""
    malloc, dtype = malloc_of_this_process(), dtype_of(precision)
    if malloc is None:
        pytest.skip("the C library does not count its memory")
    matrices = [nn.Parameter(torch.randn(512, 512).to(dtype)) for _ in range(6)]
    for matrix in matrices:
        matrix.grad = torch.randn(512, 512).to(dtype)
    optimizer = build_optimizer(matrices, training(optimizer=name, weight_decay=0.1))
    optimizer.step()  # libraries allocate in their first step
    before, highest = malloc.in_use(), Highest(malloc)
    with highest:
        optimizer.step()
    largest = matrices[0].numel() * matrices[0].element_size()
    allowed = COPIES_IN_STEP[OptimizerName(name)] * largest
    assert highest.num_bytes - before <= allowed + largest / 4


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_without_momentum_there_is_no_state(name: str) -> None:
    matrix = nn.Parameter(torch.ones(3, 3))
    matrix.grad = torch.ones(3, 3)
    optimizer = build_optimizer([matrix], training(optimizer=name, beta1=0.0))
    optimizer.step()
    assert not optimizer_state(optimizer, [Weight("matrix", matrix, 1)])
    assert float(matrix.detach()[0, 0]) < 1
