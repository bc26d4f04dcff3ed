"""Updates that take the gradient of some steps before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from strategies.plan.planner import plan
from strategies.plan.run_directory import ExitCode
from strategies.plan.spec import ModelName, Precision, TrainSpec
from strategies.train.optimizers.delayed_gradients import delay_gradients
from strategies.train.optimizers.optimizer import build_optimizer
from tests.strategies.support.by_hand import ByHand
from tests.strategies.support.law import BANDS, Bench, band_of, departure
from tests.strategies.support.layouts import Variant
from tests.strategies.support.matrix import MATRIX
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

BY_NAME = {str(split): split for split in MATRIX}


def spec_of(delay: int, strategy: str = "single", **changes: Any) -> TrainSpec:
    return make_spec(
        **{
            "model__layers": 2,
            "model__width": 32,
            "training__steps": 8,
            "training__schedule": "constant",
            "precision": "float64",
            "parallelism__strategy": strategy,
            "parallelism__gradient_delay": delay,
            **changes,
        }
    )


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars", "lamb"])
def test_the_first_steps_change_nothing_and_the_next_ones_are_late(name: str) -> None:
    """The same updates as of an optimizer that is given the gradients in time, two steps later."""
    training = make_spec(training__optimizer=name).training
    torch.manual_seed(0)
    start = torch.randn(3, 4, dtype=torch.float64)
    late, prompt = (nn.Parameter(start.clone()) for _ in range(2))
    delayed, reference = (build_optimizer([each], training) for each in (late, prompt))
    delay_gradients(delayed, steps=2)
    kept = {key: value.clone() for key, value in reference.state[prompt].items()}
    gradients = torch.randn(6, 3, 4, dtype=torch.float64)
    for step, gradient in enumerate(gradients):
        late.grad = gradient.clone()
        delayed.step()
        if step < 2:
            assert torch.equal(late, start)
            assert all(torch.equal(delayed.state[late][key], kept[key]) for key in kept)
            continue
        prompt.grad = gradients[step - 2].clone()
        reference.step()
        assert torch.equal(late, prompt)


def test_no_delay_leaves_the_optimizer_alone() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([parameter], make_spec().training)
    before = set(optimizer.state[parameter])
    delay_gradients(optimizer, steps=0)
    assert set(optimizer.state[parameter]) == before
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.gloo
class TestOnRanks:
    def test_one_rank_does_what_the_loop_written_out_does(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        delay, run_plan = 3, make_run_plan(spec_of(3), **ragged)
        run = pool.train(run_plan, tmp_path / "run")
        rank = ByHand(run_plan, tmp_path / "hand")
        optimizer = rank.adamw()
        losses, norms, waiting = [], [], []
        for step in range(1, 9):
            loss, gradient = rank.gradient(step)
            losses.append(loss)
            norms.append(rank.clip(gradient))
            waiting.append(gradient)
            if len(waiting) > delay:
                rank.update(optimizer, waiting.pop(0), step)
        assert run.series("loss") == pytest.approx(losses, rel=1e-13)
        assert run.series("grad_norm") == pytest.approx(norms, rel=1e-12)
        after = load_file(run.directory.artifacts / "model.safetensors")
        for name, weight in zip(rank.names, rank.weights, strict=True):
            torch.testing.assert_close(after[name], weight.detach(), rtol=1e-11, atol=1e-13)

    @pytest.mark.parametrize(
        "name",
        [
            "pipeline2-1F1B",
            # Two ranks that replicate or shard take a part in the next test, too.
            *(
                pytest.param(name, marks=pytest.mark.slow)
                for name in ("replicate2", "shard2", "replicate2-shard2")
            ),
        ],
    )
    def test_every_layout_is_late_by_the_same_steps(self, name: str, bench: Bench) -> None:
        split = BY_NAME[name]
        tied = Variant(ModelName.LLAMA, tied=True)
        variant = next(legal for legal in split.legal_variants if legal.twin == tied)
        found = bench.departure(split, variant, parallelism__gradient_delay=2)
        assert found.within(band_of(split, Precision.FLOAT64)), str(found)

    def test_what_waits_is_saved_and_goes_on_with_other_ranks(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        def train(name: str, steps: int, strategy: str, ranks: int) -> Run:
            spec = spec_of(2, strategy, training__steps=steps, data__held_out=0)
            return pool.train(make_run_plan(spec, ranks=ranks, **ragged), tmp_path / name)

        whole = train("whole", 8, "single", 1)
        train("tour", 5, "ddp", 2)  # one waiting gradient is older than the other
        train("tour", 6, "fsdp", 2)
        found = departure(train("tour", 8, "single", 1), whole)
        assert found.within(BANDS[Precision.FLOAT64]), str(found)

    def test_a_checkpoint_of_another_delay_is_refused(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = spec_of(1, training__steps=2, training__warmup_steps=1)
        warm.train(make_run_plan(spec, **ragged), tmp_path / "run")
        run_plan = make_run_plan(spec_of(2, training__steps=9), **ragged)
        _, started = warm.start_training(run_plan, tmp_path / "run")
        assert started.wait() == [ExitCode.BAD_CHECKPOINT]
        assert "gradient_delay is 2 here, 1 there" in warm.error(0)["message"]

    def test_a_gradient_that_overflowed_never_waits(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = spec_of(2, precision="float16", training__steps=10)
        run = warm.train(
            make_run_plan(spec, **ragged), tmp_path / "run", engine="OverflowingEngine"
        )
        lines = [line for line in run.lines if "skipped_steps" in line]
        assert lines[2]["skipped_steps"] == lines[1]["skipped_steps"] + 1
        assert run.result.finished


def planned(delay: int, strategy: str, **changes: Any) -> Any:
    spec = spec_of(delay, strategy, **changes)
    return plan(spec, nodes=1, ranks_per_node=4, hardware=HARDWARE)


def test_each_step_of_delay_costs_a_gradient_and_promises_no_curve() -> None:
    found = planned(3, "ddp")
    assert found.runnable, found.problems
    assert found.result_class == "exempt"
    terms = {term.name: term.gib for term in found.memory}
    assert terms["late gradients"] == 3 * terms["gradients"]
    assert "late gradients" not in {term.name for term in planned(0, "ddp").memory}


@pytest.mark.parametrize(
    ("delay", "strategy", "said"),
    [(2, "zero3", "take strategy fsdp"), (8, "ddp", "7 would leave one update")],
)
def test_it_is_refused_where_it_means_nothing(delay: int, strategy: str, said: str) -> None:
    (problem,) = planned(delay, strategy).problems
    assert problem.param == "parallelism.gradient_delay"
    assert said in problem.message
