"""Logits in parts, and weights gathered matrix by matrix."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from strategies.plan.estimates.memory import GIB
from strategies.plan.planner import plan
from strategies.plan.spec import ActivationCheckpointing, ModelName, Precision
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from strategies.train.models.transformer import Head
from tests.strategies.support.law import BANDS, Bench, departure
from tests.strategies.support.layouts import Variant
from tests.strategies.support.matrix import MATRIX
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    WarmRanks,
    make_run_plan,
    make_spec,
)

BY_NAME = {str(split): split for split in MATRIX}
FULL = ActivationCheckpointing.FULL
PARTS = {"tiling__loss_parts": 4}
MATRICES = {"tiling__gather": "matrix"}


def test_the_loss_in_parts_keeps_no_logits_and_gives_the_same_gradient() -> None:
    spec = make_spec(precision="float64", model__layers=1, model__width=32)
    model = build_model(spec, device=torch.device("cpu"))
    assert isinstance(model.head, Head)
    model.head.parts = 4
    torch.manual_seed(0)
    tokens_BT = torch.randint(0, 256, (2, 48))
    labels_BT = torch.where(torch.rand(2, 48) < 0.3, -100, tokens_BT.roll(-1, dims=1))
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: list[int] = []

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[-1:] == (256,) and tensor.data_ptr() not in weights:
            kept.append(tensor.numel())
        return tensor

    losses, gradients, logits = [], [], []
    for in_parts in (False, True):
        kept.clear()
        with saved_tensors_hooks(watch, lambda tensor: tensor):
            if in_parts:
                loss = model(tokens_BT, None, labels_BT)
            else:
                loss = token_loss_sum(model(tokens_BT), labels_BT)
        logits.append(max(kept, default=0))
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert logits == [2 * 48 * 256, 0]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-14, atol=0)
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.gloo
class TestOnRanks:
    @pytest.mark.parametrize(
        ("name", "changes", "variant"),
        [
            ("single", PARTS, Variant(ModelName.LLAMA, tied=True, packed=True)),
            pytest.param("replicate2", PARTS, Variant(accumulation=4), marks=pytest.mark.slow),
            ("context2", PARTS, Variant()),
            pytest.param(
                "shard2",
                PARTS | MATRICES,
                Variant(ModelName.LLAMA, tied=True, checkpointing=FULL),
                marks=pytest.mark.slow,
            ),
            pytest.param(
                "shard2", PARTS | MATRICES, Variant(accumulation=4), marks=pytest.mark.slow
            ),
            pytest.param(
                "replicate2-shard2",
                MATRICES,
                Variant(checkpointing=FULL),
                marks=pytest.mark.slow,
            ),
        ],
        ids=str,
    )
    def test_the_curve_stays(
        self, name: str, changes: Options, variant: Variant, bench: Bench, tmp_path: Path
    ) -> None:
        split = BY_NAME[name]
        one = bench.twin(split, variant, precision=Precision.FLOAT64, steps=8)
        run_plan = make_run_plan(split.spec(variant, **changes), ranks=split.ranks, **bench.dataset)
        found = departure(bench.pool.train(run_plan, tmp_path / "run"), one)
        assert found.within(BANDS[Precision.FLOAT64]), str(found)

    def test_no_more_than_a_matrix_is_gathered(self, warm: WarmRanks) -> None:
        """Of 256 tokens x 32 features, with the last norm; a layer has 12 x 32 x 32 and 4 x 32."""
        head, layer = 256 * 32 + 64, 12 * 32 * 32 + 6 * 32
        for gather, checkpointing, most, codes in (
            ("matrix", "none", head, [0, 0]),
            ("matrix", "full", layer, [0, 0]),  # that is computed again is gathered whole
            ("layer", "none", head, [1, 1]),  # beside a layer, but not beside the embedding
            ("layer", "none", head + layer, [0, 0]),
        ):
            started = warm.start(
                "gather_by_matrix", ranks=2, gather=gather, checkpointing=checkpointing, most=most
            )
            assert started.wait() == codes, warm.said()

    @pytest.mark.slow
    def test_a_run_goes_on_without_tiles_and_with_them_again(
        self, pool: Pool, ragged: Options, tmp_path: Path
    ) -> None:
        def train(name: str, steps: int, ranks: int, **changes: Any) -> Any:
            spec = make_spec(
                **{
                    "model__layers": 2,
                    "model__width": 32,
                    "training__schedule": "constant",
                    "data__held_out": 0,
                    "precision": "float64",
                    "training__steps": steps,
                    **changes,
                }
            )
            return pool.train(make_run_plan(spec, ranks=ranks, **ragged), tmp_path / name)

        fsdp = {"parallelism__strategy": "fsdp"}
        whole = train("whole", 8, 1)
        train("tour", 5, 2, **fsdp, **PARTS, **MATRICES)
        train("tour", 6, 1)
        found = departure(train("tour", 8, 2, **fsdp, **MATRICES), whole)
        assert found.within(BANDS[Precision.FLOAT64]), str(found)


def planned(**changes: Any) -> Any:
    return plan(make_spec(**changes), nodes=1, ranks_per_node=4, hardware=HARDWARE)


def test_the_plan_counts_what_they_save() -> None:
    def terms(**changes: Any) -> dict[str, float]:
        found = planned(parallelism__strategy="fsdp", model__layers=1, **changes)
        assert found.runnable, found.problems
        assert found.result_class == "exact"
        return {term.name: term.gib * GIB for term in found.memory}

    plain, tiled = terms(), terms(**PARTS, **MATRICES)
    assert plain["logits"] - tiled["logits"] == 3 / 4 * 96 * 256 * 4  # of 96 tokens
    matrix = 64 * 4 * 64  # of the vocabulary, and of the feed-forward part
    head = matrix + 2 * 64  # with the last norm: its gradient is complete once logits are gone
    passing = tiled["gathered"] + tiled["logits"]
    # It exists as it is, to be sent, copied by gloo, and as the part of one of 4 ranks.
    assert passing == (3.25 * head + matrix) * 4 < plain["gathered"] + tiled["logits"]
    again = terms(**MATRICES, activation_checkpointing="full")
    assert again["gathered"] == terms(activation_checkpointing="full")["gathered"]


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        (
            {"parallelism__strategy": "ddp", "tiling__loss_parts": 7},
            "tiling.loss_parts",
            "the 96 tokens of a rank's micro-batch cannot be cut in 7 equal parts; the nearest is",
        ),
        ({"parallelism__strategy": "ddp", **MATRICES}, "tiling.gather", "shard degree 1"),
        ({"parallelism__strategy": "zero3", **MATRICES}, "tiling.gather", "strategy zero3"),
        (
            {"parallelism__strategy": "fsdp", "adapter": {"rank": 4}, **MATRICES},
            "tiling.gather",
            "adapters of rank 4",
        ),
    ],
)
def test_they_are_refused_where_there_is_nothing_to_split(
    changes: dict[str, Any], param: str, said: str
) -> None:
    (problem,) = planned(**changes).problems
    assert problem.param == param
    assert said in problem.message
