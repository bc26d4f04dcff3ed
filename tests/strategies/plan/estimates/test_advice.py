"""What is advised where a job does not fit, and what the planner chooses when it is left open."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.plan.estimates.advice import DECISIONS, changed
from strategies.plan.gpus import PRODUCTS, known_node
from strategies.plan.hardware import Hardware
from strategies.plan.known_models import KNOWN, as_spec, known_model
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import Strategy, TrainSpec
from tests.strategies.support.training_runs import HARDWARE, make_spec

PAGE = Path(__file__).parents[4] / "docs" / "planning.md"


def asking_for(model: str, **changes: Any) -> TrainSpec:
    """A run of a known model, 8 samples of 2,048 tokens."""
    shape = known_model(model)
    return make_spec(
        model=as_spec(shape).model_dump(),
        data__tokenizer="characters",
        data__vocabulary_size=shape.vocabulary,
        **{"data__sequence_length": 2048, **changes},
    )


def on(spec: TrainSpec, ranks: int, node_class: str = "a100-80gb", nodes: int = 1) -> Plan:
    hardware = known_node(node_class, gpus=8)
    return plan(spec, nodes=nodes, ranks_per_node=ranks, hardware=hardware)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    "model",
    [
        "llama-3-8b",
        *(
            pytest.param(model, marks=pytest.mark.slow)
            for model in ("openllama-3b", "llama-2-7b", "llama-2-70b")
        ),
    ],
)
def test_an_advised_change_does_what_is_said(model: str, ranks: int) -> None:
    spec = asking_for(model, parallelism={"strategy": "ddp" if ranks > 1 else "single"})
    found = on(spec, ranks, "l40s-48gb")
    assert not found.fits
    assert found.advice
    for advice in found.advice:
        own_ranks = advice.change.get("resources.ranks_per_node", ranks)
        then = on(changed(spec, advice.change), own_ranks, "l40s-48gb")
        assert (then.fits, then.needed_gib) == (advice.fits, advice.needed_gib), advice.title
        assert then.needed_gib < found.needed_gib
        assert {problem.code for problem in then.problems} <= {"does_not_fit"}
        assert then.result_class == advice.result_class


def test_a_job_that_fits_gets_no_advice() -> None:
    assert on(asking_for("gpt2"), 1).advice == []


def test_what_keeps_the_training_comes_before_what_changes_it() -> None:
    changing = [decision.changes_training for decision in DECISIONS]
    assert changing == sorted(changing)
    assert True in changing


def test_a_7b_model_on_one_gpu_is_offered_the_hosts_memory() -> None:
    """ZeRO-Offload (arXiv:2101.06840): 16 bytes a parameter do not fit 80 GB, 4 do."""
    found = on(asking_for("llama-2-7b", training__micro_batch_size=1), 1)
    fitting = [advice for advice in found.advice if advice.fits]
    assert {"strategy": "zero3", "offload_optimizer": "cpu"}.items() <= next(
        advice.change["parallelism"].items()
        for advice in fitting
        if "host" in advice.title and advice.change["parallelism"]["strategy"] == "zero3"
    )


@pytest.mark.parametrize(("nodes", "strategy"), [(1, "fsdp"), (2, "hsdp")])
def test_a_7b_model_on_small_gpus_may_keep_its_parts_on_the_host(nodes: int, strategy: str) -> None:
    spec = asking_for(
        "llama-2-7b",
        precision="bfloat16",
        parallelism={"strategy": "fsdp"},
        training__global_batch_size=4 * nodes,
        training__micro_batch_size=1,
    )
    found = on(spec, 4 // nodes, "rtx4090-24gb", nodes)
    assert not found.fits
    advice = next(one for one in found.advice if "(FSDP, HSDP)" in one.title)
    assert advice.fits
    host = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    assert {"strategy": strategy, **host}.items() <= advice.change["parallelism"].items()
    assert on(changed(spec, advice.change), 4 // nodes, "rtx4090-24gb", nodes).runnable


def test_several_nodes_are_told_to_shard_inside_each() -> None:
    spec = asking_for("llama-2-7b", parallelism__strategy="ddp", training__global_batch_size=16)
    titles = {advice.title for advice in on(spec, 8, nodes=2).advice}
    assert "sharded inside each node, replicated across (HSDP)" in titles
    assert "weights, gradients and optimizer sharded (FSDP)" not in titles


def test_a_sample_that_is_too_long_is_split_along_its_tokens() -> None:
    spec = asking_for(
        "llama-2-7b",
        data__sequence_length=262_144,
        precision="bfloat16",
        activation_checkpointing="full",
        parallelism={"strategy": "fsdp"},
    )
    found = on(spec, 8)
    advice = next(a for a in found.advice if "context" in a.title)
    assert advice.fits
    assert advice.change["parallelism"]["context_parallel_degree"] > 1


def test_changes_are_joined_where_none_is_enough() -> None:
    spec = asking_for("llama-2-13b", parallelism={"strategy": "ddp"})
    found = on(spec, 4, "l40s-48gb")
    single = [advice for advice in found.advice if len(advice.change) == 1]
    joined = found.advice[-1]
    if any(advice.fits for advice in single):
        pytest.skip("one change is enough on this hardware by the present arithmetic")
    assert joined.fits
    assert len(joined.change) > 1
    assert joined.title.count(",") >= 1


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_auto_takes_data_parallel_where_it_fits(ranks: int) -> None:
    found = on(asking_for("gpt2", parallelism={}), ranks)
    assert found.strategy is Strategy.DDP
    assert f"{ranks} ranks" in found.warnings[0]


def test_auto_takes_the_fastest_that_fits_and_says_why() -> None:
    spec = asking_for(
        "llama-2-7b", parallelism={}, precision="bfloat16", training__micro_batch_size="auto"
    )
    found = on(spec, 8)
    assert found.runnable
    assert found.strategy is Strategy.FSDP
    assert re.search(
        r"ddp needs [\d.]+ GiB per rank of 72\.00.*shortest expected step", found.warnings[0]
    )
    for strategy in ("tensor", "pipeline"):
        other = on(changed(spec, {"parallelism": {"strategy": strategy}}), 8)
        assert other.step_s is None or not other.fits or other.step_s >= (found.step_s or 0)


def test_auto_shards_beside_what_heads_can_be_split() -> None:
    """Two heads for keys and values: of four ranks no more than two can split them."""
    spec = asking_for(
        "qwen2.5-1.5b",
        parallelism={},
        precision="bfloat16",
        training__micro_batch_size="auto",
        data__sequence_length=8192,
    )
    found = on(spec, 4, "rtx4090-24gb")
    assert found.runnable
    assert (found.layout.tensor, found.layout.shard) == (2, 2)
    assert "auto chose fsdp with tensor degree 2" in found.warnings[0]


def test_auto_micro_batch_is_the_largest_power_of_two_that_fits() -> None:
    spec = asking_for(
        "llama-2-7b",
        parallelism={"strategy": "fsdp"},
        training__global_batch_size=192,
        training__micro_batch_size="auto",
    )
    found = on(spec, 8)
    assert found.runnable
    assert found.micro_batch_size in (1, 2, 4, 8)  # 24 samples a rank
    assert any(f"micro_batch_size {found.micro_batch_size}" in said for said in found.warnings)
    if found.micro_batch_size < 8:
        twice = spec.training.model_copy(update={"micro_batch_size": 2 * found.micro_batch_size})
        assert not on(spec.model_copy(update={"training": twice}), 8).fits


models = st.sampled_from(sorted(KNOWN))
one_to_eight = st.integers(1, 8)


@settings(max_examples=60)
@given(models, one_to_eight, st.sampled_from(list(Strategy)), st.floats(1, 300), st.floats(1, 300))
def test_more_memory_never_makes_a_job_unfit(
    model: str, ranks: int, strategy: Strategy, memory: float, more: float
) -> None:
    spec = asking_for(model, parallelism={"strategy": strategy})
    small, large = (
        plan(
            spec,
            nodes=1,
            ranks_per_node=ranks,
            hardware=Hardware(class_name="x", device="cuda", slots=8, memory_gib=gib),
        )
        for gib in (memory, memory + more)
    )
    assert large.fits or not small.fits


@pytest.mark.slow
@settings(max_examples=60)
@given(models, st.integers(0, 2), st.sampled_from(sorted(PRODUCTS)))
def test_more_gpus_never_make_a_job_of_auto_unfit(model: str, doubled: int, node: str) -> None:
    spec = asking_for(model, parallelism={}, training__micro_batch_size="auto")
    few, more = (on(spec, 1 << bits, node) for bits in (doubled, doubled + 1))
    assert more.fits or not few.fits


@settings(max_examples=60)
@given(models, st.integers(0, 2), st.sampled_from(["fsdp", "zero1", "zero2", "zero3"]))
def test_a_higher_shard_degree_never_raises_what_a_rank_keeps(
    model: str, doubled: int, strategy: str
) -> None:
    spec = asking_for(model, parallelism={"strategy": strategy})
    kept = []
    for ranks in (1 << doubled, 2 << doubled):
        terms = {term.name: term.gib for term in on(spec, ranks).memory}
        kept.append([terms[name] for name in ("weights", "gradients", "optimizer")])
    for before, after in zip(*kept, strict=True):
        assert after <= before


def test_the_page_shows_the_table_of_decisions() -> None:
    rows = [
        f"| {decision.title} | {decision.costs} | "
        f"{'something else' if decision.changes_training else 'the same'} |"
        for decision in DECISIONS
    ]
    assert "\n".join(rows) in PAGE.read_text(), "\n".join(rows)


def test_a_cpu_has_no_known_time_and_still_gets_a_plan() -> None:
    found = plan(make_spec(), nodes=1, ranks_per_node=1, hardware=HARDWARE)
    assert found.cost is not None
    assert found.cost.step_time is None
    assert found.step_s is None
    assert found.cost.flops_per_step > 0
