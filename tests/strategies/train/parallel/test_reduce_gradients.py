"""Gradients of fully sharded ranks, summed in every micro-batch or once in a step."""

from pathlib import Path
from typing import Any

import pytest

from strategies.plan.layout import Layout
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import ModelName, Precision, Strategy
from tests.strategies.support.law import BANDS, Bench, departure
from tests.strategies.support.layouts import Split, Variant
from tests.strategies.support.training_runs import HARDWARE, make_run_plan, make_spec

EACH = {"parallelism__reduce_gradients": "each_micro_batch"}
ONCE = {"parallelism__reduce_gradients": "once"}
SHARDS = Split(Strategy.FSDP, Layout(shard=2))
REPLICAS = Split(Strategy.HSDP, Layout(replicate=2, shard=2))
LATER = pytest.mark.slow


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("split", "asked", "precision", "variant"),
    [
        (SHARDS, EACH, Precision.FLOAT64, Variant(ModelName.LLAMA, tied=True, accumulation=4)),
        (SHARDS, ONCE, Precision.BFLOAT16, Variant(ModelName.LLAMA, accumulation=2)),
        pytest.param(REPLICAS, EACH, Precision.FLOAT64, Variant(accumulation=4), marks=LATER),
        pytest.param(REPLICAS, ONCE, Precision.BFLOAT16, Variant(accumulation=2), marks=LATER),
        pytest.param(SHARDS, ONCE, Precision.FLOAT16, Variant(accumulation=2), marks=LATER),
    ],
    ids=str,
)
def test_the_curve_is_that_of_one_rank_with_the_same_micro_batches(
    split: Split,
    asked: dict[str, Any],
    precision: Precision,
    variant: Variant,
    bench: Bench,
    tmp_path: Path,
) -> None:
    spec = split.spec(variant, precision=precision, steps=8, **asked)
    whole = variant._replace(accumulation=variant.accumulation * split.ranks)
    alone = split.alone.spec(whole, precision=precision, steps=8)
    one = bench.pool.train(make_run_plan(alone, **bench.dataset), tmp_path / "one")
    run_plan = make_run_plan(spec, ranks=split.ranks, **bench.dataset)
    found = departure(bench.pool.train(run_plan, tmp_path / "run"), one)
    assert found.within(BANDS[Precision.FLOAT64 if asked is EACH else Precision.FLOAT32]), found


def planned(**changes: Any) -> Plan:
    accumulates = {"training__gradient_accumulation_steps": 2, **changes}
    return plan(make_spec(**accumulates), nodes=1, ranks_per_node=2, hardware=HARDWARE)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_once_sends_less_and_holds_more(precision: str) -> None:
    asked = {"parallelism__strategy": "fsdp", "precision": precision}
    each, once = planned(**asked, **EACH), planned(**asked, **ONCE)
    gradients = [
        next(term.gib for term in found.memory if term.name == "gradients")
        for found in (each, once)
    ]
    assert gradients[1] == pytest.approx(2 * gradients[0])
    sent = []
    for found in (each, once):
        assert found.cost is not None
        sent += [part.num_bytes for part in found.cost.traffic]
    assert sent[0] - sent[1] == pytest.approx(4 * found.parameters / 2, rel=1e-3)
    chosen = planned(**asked)
    assert chosen.memory == (each if precision == "bfloat16" else once).memory


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (
            {"parallelism__strategy": "ddp", **ONCE},
            "nothing_to_reduce",
            "strategy ddp with shard degree 1 has none; take auto, or strategy fsdp",
        ),
        (
            {"parallelism__strategy": "zero2", **EACH},
            "nothing_to_reduce",
            "strategy zero2 with shard degree 2 has none",
        ),
    ],
)
def test_it_is_refused_where_nothing_is_sharded(
    changes: dict[str, Any], code: str, said: str
) -> None:
    (problem,) = planned(**changes).problems
    assert (problem.code, problem.param) == (code, "parallelism.reduce_gradients")
    assert said in problem.message


def test_the_stages_of_a_pipeline_reduce_once() -> None:
    asked = {
        "parallelism": {
            "strategy": "fsdp",
            "pipeline_parallel_degree": 2,
            "reduce_gradients": "each_micro_batch",
        }
    }
    spec = make_spec(**asked, training__gradient_accumulation_steps=2)
    (problem,) = plan(spec, nodes=1, ranks_per_node=4, hardware=HARDWARE).problems
    assert "whose stages reduce once in a step; take once or auto" in problem.message
