"""AdamW with averages in eight bits: bitsandbytes' own steps, and where they can be taken."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from strategies.plan.estimates.memory import GIB
from strategies.plan.planner import plan
from strategies.plan.run_directory import Action, write_control
from strategies.plan.spec import TrainSpec
from strategies.train.optimizers.optimizer import build_optimizer, set_learning_rate
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Options, make_run_plan, make_spec

EIGHT_BIT: Options = {"training__optimizer": "adamw_8bit"}


def test_steps_are_bitsandbytes_own() -> None:
    """A matrix in codes and a bias in numbers, decayed and not."""
    from bitsandbytes.optim import AdamW8bit

    training = make_spec(training__optimizer="adamw_8bit").training
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(80, 100)), nn.Parameter(torch.randn(100))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    found = build_optimizer(ours, training)
    betas = (training.beta1, training.beta2)
    matrix, bias = (
        AdamW8bit([parameter], lr=0.01, betas=betas, weight_decay=decay)
        for parameter, decay in zip(theirs, (training.weight_decay, 0.0), strict=True)
    )
    set_learning_rate(found, 0.01)
    for _ in range(10):
        for parameter, twin in zip(ours, theirs, strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
        for optimizer in (found, matrix, bias):
            optimizer.step()
    # Bit for bit; once, on a busy machine, a few numbers were seen to be off by a code.
    assert (ours[0] != theirs[0]).float().mean() < 0.005
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-6)
    held = sum(part.numel() * part.element_size() for part in found.state[ours[0]].values())
    assert held / ours[0].numel() == pytest.approx(2 + 8 / 256, rel=0.01)


def short(**changes: Any) -> TrainSpec:
    """Matrices of 64 x 64 numbers and more; the rate stays, wherever the run ends."""
    fixed = {"training__warmup_steps": 0, "training__schedule": "constant", "training__steps": 8}
    return make_spec(**{"data__sequence_length": 16, "model__layers": 2, **fixed, **changes})


@pytest.mark.slow
@pytest.mark.gloo
def test_it_follows_adamw_where_ranks_hold_whole_matrices_and_goes_on_there(
    pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """Exempt: a gradient rounded otherwise may take another code. Eight steps differ little."""
    wanted = pool.train(make_run_plan(short(), **ragged), tmp_path / "adamw").series("loss")
    for strategy, ranks in (("single", 1), ("ddp", 2), ("pipeline", 2), ("context", 2)):
        spec = short(parallelism__strategy=strategy, **EIGHT_BIT)
        run_plan = make_run_plan(spec, ranks=ranks, **ragged)
        assert run_plan.plan.result_class == "exempt"
        run = pool.train(run_plan, tmp_path / strategy)
        assert run.series("loss") == pytest.approx(wanted, rel=0.02)
        if strategy == "ddp":
            whole = run.series("loss")
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    run_plan = make_run_plan(short(parallelism__strategy="ddp", **EIGHT_BIT), ranks=2, **ragged)
    write_control(stopped / "control.json", Action.STOP)  # is heard in the first step
    assert pool.train(run_plan, stopped).series("loss") == whole[:1]
    (stopped / "control.json").unlink()
    assert pool.train(run_plan, stopped).series("loss") == whole


def test_the_plan_counts_two_bytes_a_weight() -> None:
    found = make_run_plan(short(**EIGHT_BIT)).plan
    (term,) = [term for term in found.memory if term.name == "optimizer"]
    assert term.gib * GIB / found.parameters == pytest.approx(2 + 8 / 256)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallelism__strategy": "fsdp"}, "shard degree 2 would cut them"),
        ({"parallelism__strategy": "tensor"}, "tensor degree 2 would cut them"),
        ({"parallelism__strategy": "zero2"}, "cannot update the flat rows of zero2"),
        ({"parallelism__strategy": "ddp", "precision": "float64"}, "less than precision float64"),
    ],
)
def test_a_rule_says_where_it_cannot_run(changes: Options, said: str) -> None:
    spec = make_spec(**EIGHT_BIT, **changes)
    (problem,) = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE).problems
    assert problem.param == "training.optimizer"
    assert said in problem.message
