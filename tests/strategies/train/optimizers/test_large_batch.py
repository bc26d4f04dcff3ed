"""LARS and LAMB against their papers, step by step in float64, and on every layout."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from strategies.plan.planner import plan
from strategies.plan.spec import Precision
from strategies.train.optimizers.optimizer import build_optimizer, set_learning_rate
from tests.strategies.support.law import BANDS, departure, distance
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Options, make_run_plan, make_spec

Numbers = npt.NDArray[np.float64]

DECAY, MOMENTUM, BETA2 = 0.1, 0.9, 0.95
SHAPES = {"matrix": (6, 4), "zeros": (3, 5), "vector": (4,)}
LAYOUTS = {
    "fsdp": (2, {"strategy": "fsdp"}),
    "tensor": (2, {"strategy": "tensor", "sequence_parallel": True}),
    "fsdp-x-tensor": (4, {"strategy": "fsdp", "tensor_parallel_degree": 2}),
    "hsdp": (4, {"strategy": "hsdp", "data_parallel_shard_degree": 2}),
}
RATES = {"sgd": 0.3, "lars": 5.0, "lamb": 0.01}
OPTIMIZERS = [
    "lamb",  # has all that LARS has, and Adam's two moments
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "lars")),
]


def length(values: Numbers) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in values.flatten()))


class PaperLars:
    """arXiv:1708.03888, algorithm 1, for one layer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.v: Numbers = np.zeros(shape)

    def step(self, w: Numbers, g: Numbers, rate: float) -> Numbers:
        trust, decay = 1.0, 0.0
        if w.ndim > 1:
            decay = DECAY
            if length(w) > 0:
                trust = 0.001 * length(w) / (length(g) + decay * length(w))
        self.v = MOMENTUM * self.v + rate * trust * (g + decay * w)
        return w - self.v


class PaperLamb:
    """arXiv:1904.00962, algorithm 2, for one layer; phi is the identity."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.m: Numbers = np.zeros(shape)
        self.v: Numbers = np.zeros(shape)
        self.steps = 0

    def step(self, w: Numbers, g: Numbers, rate: float) -> Numbers:
        self.steps += 1
        self.m = MOMENTUM * self.m + (1 - MOMENTUM) * g
        self.v = BETA2 * self.v + (1 - BETA2) * g * g
        m = self.m / (1 - MOMENTUM**self.steps)
        v = self.v / (1 - BETA2**self.steps)
        update = m / (np.sqrt(v) + 1e-6)
        trust = 1.0
        if w.ndim > 1:
            update = update + DECAY * w
            if length(w) > 0:
                trust = length(w) / length(update)
        return w - rate * trust * update


@pytest.mark.parametrize(("optimizer", "paper"), [("lars", PaperLars), ("lamb", PaperLamb)])
def test_it_follows_its_paper(optimizer: str, paper: type[PaperLars] | type[PaperLamb]) -> None:
    """A matrix, one that begins at zero and would have no trust in itself, and a vector."""
    spec = make_spec(training__optimizer=optimizer, training__weight_decay=DECAY).training
    random = np.random.default_rng(3)
    expected = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    expected["zeros"] = np.zeros(SHAPES["zeros"])
    parameters = {n: nn.Parameter(torch.from_numpy(w.copy())) for n, w in expected.items()}
    layers = {name: paper(shape) for name, shape in SHAPES.items()}
    ours = build_optimizer(parameters.values(), spec)
    for step in range(1, 9):
        rate = 0.05 * step
        for name, parameter in parameters.items():
            gradient = random.normal(size=SHAPES[name])
            parameter.grad = torch.from_numpy(gradient)
            expected[name] = layers[name].step(expected[name], gradient, rate)
        set_learning_rate(ours, rate)
        ours.step()
        for name, parameter in parameters.items():
            np.testing.assert_allclose(
                parameter.detach().numpy(), expected[name], rtol=1e-12, atol=1e-15
            )


def test_a_layer_without_a_gradient_stays_finite() -> None:
    for optimizer in ("lars", "lamb"):
        spec = make_spec(training__optimizer=optimizer, training__weight_decay=0).training
        parameter = nn.Parameter(torch.ones(2, 2))
        parameter.grad = torch.zeros(2, 2)
        build_optimizer([parameter], spec).step()
        assert torch.equal(parameter.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_zero_flattens_what_they_need(optimizer: str) -> None:
    spec = make_spec(training__optimizer=optimizer, parallelism__strategy="zero2")
    problems = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE).problems
    (problem,) = [p for p in problems if p.code == "optimizer_needs_matrices"]
    assert problem.param == "training.optimizer"
    assert "take strategy fsdp" in problem.message


def run_spec(optimizer: str, **changes: Any) -> Any:
    return make_spec(
        precision="float64",
        training__warmup_steps=2,
        training__optimizer=optimizer,
        training__learning_rate=RATES[optimizer],
        model__layers=2,
        model__width=32,
        **{"training__steps": 8, **changes},
    )


@pytest.mark.slow  # two of the layouts follow it in the next test, too
@pytest.mark.gloo
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_layout_follows_the_curve_of_one_rank(
    optimizer: str, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    one = pool.train(make_run_plan(run_spec(optimizer), **ragged), tmp_path / "one")
    losses = one.series("loss")
    assert losses[-1] < losses[0]
    for name, (ranks, parallelism) in LAYOUTS.items():
        run_plan = make_run_plan(
            run_spec(optimizer, parallelism=parallelism), ranks=ranks, **ragged
        )
        found = departure(pool.train(run_plan, tmp_path / name), one)
        assert found.within(BANDS[Precision.FLOAT64]), f"{name}: {found}"


@pytest.mark.gloo
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_goes_on_at_another_layout(
    optimizer: str, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """Four steps on two sharded ranks, four on two that split matrices: eight steps on one."""
    fixed = {"training__schedule": "constant"}  # does not depend on where the run ends
    one = pool.train(make_run_plan(run_spec(optimizer, **fixed), **ragged), tmp_path / "one")
    for name, steps in (("fsdp", 4), ("tensor", 8)):
        ranks, parallelism = LAYOUTS[name]
        spec = run_spec(optimizer, parallelism=parallelism, training__steps=steps, **fixed)
        run = pool.train(make_run_plan(spec, ranks=ranks, **ragged), tmp_path / "run")
    assert run.series("loss") == pytest.approx(one.series("loss"), rel=1e-13)
    assert distance(run, one) <= BANDS[Precision.FLOAT64].weights
