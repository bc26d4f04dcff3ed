"""Gradients that DDP rounds to 16 bits on their way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strategies.plan.planner import plan
from strategies.plan.spec import TrainSpec
from tests.strategies.support.by_hand import ByHand
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

BYTES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def spec_of(compression: str, **changes: Any) -> TrainSpec:
    return make_spec(
        **{
            "model__layers": 2,
            "model__width": 32,
            "parallelism__strategy": "ddp",
            "parallelism__gradient_compression": compression,
            **changes,
        }
    )


@pytest.mark.gloo
class TestOnRanks:
    @pytest.mark.parametrize("compression", BYTES)
    def test_every_rank_rounds_its_share_and_the_sum_is_rounded_once_more(
        self, compression: str, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        """One step of plain SGD tells the gradient: it is what the weights lost."""
        rate, dtype = 0.5, BYTES[compression]
        spec = spec_of(
            compression,
            precision="float64",
            training__steps=1,
            training__optimizer="sgd",
            training__beta1=0.0,
            training__weight_decay=0.0,
            training__max_grad_norm=1e9,
            training__learning_rate=rate,
            training__schedule="constant",
            training__warmup_steps=0,
            training__gradient_accumulation_steps=2,
        )
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        after = load_file(weights_file(pool.train(run_plan, tmp_path / "run")))
        ranks = [ByHand(run_plan, tmp_path / f"rank-{rank}", rank=rank) for rank in (0, 1)]
        shares = [rank.gradient(1)[1] for rank in ranks]
        scale = 1.0
        if dtype is torch.float16:  # the model is one bucket: one power of two for all of it
            largest = max(float(part.abs().max()) for share in shares for part in share)
            while scale * largest * 2 * 2 <= 2**15:
                scale *= 2
        uncompressed = 0.0
        for i, name in enumerate(ranks[0].names):
            first, second = ((share[i] * scale).to(dtype) for share in shares)
            expected = (first + second).double() / scale
            found = (ranks[0].weights[i].detach() - after[name]) / rate
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
            uncompressed += float((found - shares[0][i] - shares[1][i]).norm())
        assert uncompressed > 0

    def test_the_curve_is_near_and_nearer_the_more_digits_are_sent(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        losses = {}
        for compression in ("none", *BYTES):
            spec = spec_of(compression, precision="float64", training__steps=8)
            run_plan = make_run_plan(spec, ranks=2, **ragged)
            losses[compression] = pool.train(run_plan, tmp_path / compression).series("loss")
        apart = {
            compression: max(
                abs(a - b) / b for a, b in zip(losses[compression], losses["none"], strict=True)
            )
            for compression in BYTES
        }
        assert 0 < apart["float16"] < 3e-6  # found: 1.5e-7, and 4.1e-6 for bfloat16
        assert 3 * apart["float16"] < apart["bfloat16"] < 3e-5

    def test_float16_neither_overflows_nor_loses_small_numbers(self, warm: WarmRanks) -> None:
        assert warm.start("send_extreme_gradients", ranks=2).wait() == [0, 0], warm.said()

    def test_a_gradient_that_overflows_by_itself_is_still_seen(
        self, warm: WarmRanks, ragged: Options, tmp_path: Path
    ) -> None:
        spec = spec_of("float16", training__steps=5, precision="float16")
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="OverflowingEngine")
        lines = [line for line in run.lines if "skipped_steps" in line]
        assert lines[2]["skipped_steps"] == lines[1]["skipped_steps"] + 1


def weights_file(run: Run) -> Path:
    return run.directory.artifacts / "model.safetensors"


def planned(*, ranks: int = 4, **changes: Any) -> Any:
    spec = spec_of("float16", **changes)
    return plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE)


@pytest.mark.parametrize("strategy", ["ddp", "context", "auto"])
def test_it_runs_where_ddp_does_and_promises_no_curve(strategy: str) -> None:
    found = planned(parallelism__strategy=strategy)
    assert found.runnable, found.problems
    assert found.result_class == "exempt"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallelism__strategy": "fsdp"}, "data_parallel_shard_degree 4"),
        ({"parallelism__strategy": "zero2"}, "strategy zero2, data_parallel_shard_degree 4"),
        ({"parallelism__tensor_parallel_degree": 2}, "tensor_parallel_degree 2"),
        ({"parallelism__pipeline_parallel_degree": 2}, "pipeline_parallel_degree 2"),
        (
            {"parallelism__strategy": "local_sgd", "parallelism__average_every_steps": 4},
            "strategy local_sgd",
        ),
        ({"precision": "pure_bfloat16"}, "would save nothing"),
    ],
)
def test_elsewhere_it_is_refused(changes: dict[str, Any], said: str) -> None:
    (problem,) = planned(**changes).problems
    assert problem.param == "parallelism.gradient_compression"
    assert said in problem.message
