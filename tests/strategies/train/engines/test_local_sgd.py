"""Ranks that train weights of their own and average them now and then."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strategies.plan.planner import plan
from strategies.plan.spec import Precision, TrainSpec
from tests.strategies.support.by_hand import ByHand
from tests.strategies.support.law import BANDS, departure, furthest
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Options, Run, make_run_plan, make_spec

NEVER_CLIPPED = 1e9


def spec_of(every: int | None, **changes: Any) -> TrainSpec:
    return make_spec(
        **{
            "model__layers": 2,
            "model__width": 32,
            "training__steps": 8,
            "training__schedule": "constant",
            "precision": "float64",
            "parallelism__strategy": "ddp" if every is None else "local_sgd",
            "parallelism__average_every_steps": every,
            **changes,
        }
    )


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.directory.artifacts / "model.safetensors")


@pytest.mark.gloo
class TestOnRanks:
    @pytest.mark.slow  # the loop written out averages alike
    def test_an_average_after_every_step_of_sgd_is_the_synchronous_update(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        """With momentum, too; on three ranks, whose samples have different numbers of tokens."""
        sgd = {
            "training__optimizer": "sgd",
            "training__learning_rate": 0.3,
            "training__max_grad_norm": NEVER_CLIPPED,
            "training__global_batch_size": 6,
        }
        local, together = (
            pool.train(make_run_plan(spec_of(every, **sgd), ranks=3, **ragged), tmp_path / name)
            for every, name in ((1, "local"), (None, "together"))
        )
        found, band = departure(local, together), BANDS[Precision.FLOAT64]
        assert found.loss <= band.loss
        assert found.weights <= band.weights
        assert found.eval_loss <= band.eval_loss
        assert found.grad_norm > 1e-2  # the mean of the ranks' norms, not the norm of their mean

    @pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
    def test_it_is_what_the_loop_written_out_does(
        self, every: int, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        """AdamW, clipped, in micro-batches; the last average comes with the last checkpoint."""
        spec = spec_of(every, training__micro_batch_size=2)
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = pool.train(run_plan, tmp_path / "run")
        ranks = [ByHand(run_plan, tmp_path / f"rank-{rank}", rank=rank) for rank in (0, 1)]
        optimizers = [rank.adamw() for rank in ranks]
        losses, norms = [], []
        for step in range(1, 9):
            shares = [rank.gradient(step) for rank in ranks]
            losses.append(sum(loss for loss, _ in shares))
            own = []
            for rank, optimizer, (_, gradient) in zip(ranks, optimizers, shares, strict=True):
                torch._foreach_mul_(gradient, 2)  # of the mean over its own samples
                own.append(rank.clip(gradient))
                rank.update(optimizer, gradient, step)
            norms.append(sum(own) / 2)
            if step % every == 0 or step == 8:
                average(ranks, optimizers)
        assert run.series("loss") == pytest.approx(losses, rel=1e-13)
        assert run.series("grad_norm") == pytest.approx(norms, rel=1e-12)
        after = weights(run)
        for name, weight in zip(ranks[0].names, ranks[0].weights, strict=True):
            torch.testing.assert_close(after[name], weight.detach(), rtol=1e-11, atol=1e-13)

    def test_going_on_from_a_checkpoint_is_not_having_stopped(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        def train(name: str, steps: int, ranks: int = 2) -> Run:
            spec = spec_of(
                3, training__steps=steps, training__eval_every_steps=5, checkpoint__every_steps=4
            )
            return pool.train(make_run_plan(spec, ranks=ranks, **ragged), tmp_path / name)

        whole, _ = train("whole", 8), train("stopped", 5)
        stopped = train("stopped", 8)
        found = departure(stopped, whole)
        assert found.within(BANDS[Precision.FLOAT64]), str(found)
        assert len(set(train("stopped", 10, ranks=1).series("loss"))) == 10

    def test_ranks_skip_together_where_one_overflows(
        self, warm: Any, ragged: Options, tmp_path: Path
    ) -> None:
        spec = spec_of(2, precision="float16", training__steps=6)
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="OverflowingLocalEngine")
        lines = [line for line in run.lines if "skipped_steps" in line]
        assert lines[2]["skipped_steps"] == lines[1]["skipped_steps"] + 1

    @pytest.mark.slow
    def test_rare_averages_take_another_curve(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        local, together = (
            pool.train(make_run_plan(spec_of(every), ranks=2, **ragged), tmp_path / name)
            for every, name in ((4, "local"), (None, "together"))
        )
        assert local.series("loss")[0] == pytest.approx(together.series("loss")[0], rel=1e-13)
        assert 1e-4 < furthest(local, together, "loss") < 0.2


@torch.no_grad()
def average(ranks: list[ByHand], optimizers: list[torch.optim.AdamW]) -> None:
    """Weights and both of Adam's averages, of two ranks."""
    for first, second in zip(*(rank.weights for rank in ranks), strict=True):
        states = optimizers[0].state[first], optimizers[1].state[second]
        pairs = [(first, second)]
        pairs += [(states[0][key], states[1][key]) for key in ("exp_avg", "exp_avg_sq")]
        for one, other in pairs:
            one.copy_((one + other) / 2)
            other.copy_(one)


def planned(**changes: Any) -> Any:
    spec = spec_of(4, **changes)
    return plan(spec, nodes=1, ranks_per_node=4, hardware=HARDWARE)


def test_it_promises_no_curve() -> None:
    found = planned()
    assert found.runnable, found.problems
    assert (found.layout.replicate, found.result_class) == (4, "exempt")


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        ({"parallelism__average_every_steps": None}, "parallelism.average_every_steps", "8 for"),
        ({"parallelism__strategy": "ddp"}, "parallelism.average_every_steps", "leave it out"),
        (
            {"parallelism__tensor_parallel_degree": 2},
            "parallelism.tensor_parallel_degree",
            "local_sgd keeps this degree at 1, not 2",
        ),
        ({"parallelism__gradient_delay": 2}, "parallelism.gradient_delay", "take strategy ddp"),
    ],
)
def test_it_is_refused_where_it_means_nothing(
    changes: dict[str, Any], param: str, said: str
) -> None:
    (problem,) = planned(**changes).problems
    assert problem.param == param
    assert said in problem.message
