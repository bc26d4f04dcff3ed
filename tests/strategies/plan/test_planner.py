"""The planner resolves what can run and refuses the rest, naming field and numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.catalog import TECHNIQUES
from strategies.plan.gpus import known_node
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan, plan
from strategies.plan.rules.problem import Problem
from strategies.plan.spec import Strategy
from tests.strategies.support.training_runs import HARDWARE, make_spec

DEGREES = {
    "data_parallel_replicate_degree": "replicate",
    "data_parallel_shard_degree": "shard",
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
}
small = st.integers(min_value=1, max_value=12)


def planned(
    *, ranks: int = 1, nodes: int = 1, hardware: Hardware = HARDWARE, **changes: Any
) -> Plan:
    return plan(make_spec(**changes), nodes=nodes, ranks_per_node=ranks, hardware=hardware)


def only_problem(found: Plan) -> Problem:
    (problem,) = found.problems
    assert not found.runnable
    return problem


def test_the_demo_is_planned() -> None:
    found = planned(
        ranks=2,
        model__width=160,
        data__sequence_length=128,
        parallelism={"strategy": "ddp", "data_parallel_replicate_degree": 2},
    )
    assert found.runnable
    assert (found.world_size, found.micro_batch_size, found.gradient_accumulation_steps) == (
        2,
        4,
        1,
    )
    assert found.tokens_per_step == 8 * 128
    assert 1.2e6 < found.parameters < 1.4e6
    assert found.result_class == "exact"
    assert Plan.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("slots", "device", "batch", "ranks", "reason"),
    [
        (1, "cuda", 8, 1, "1 rank per node: one for each of the 1 GPU of class here"),
        (8, "cuda", 8, 8, "8 ranks per node: one for each of the 8 GPUs of class here"),
        (8, "cuda", 12, 6, "6 ranks per node: with more of the 8 GPUs of class here the job "),
        (16, "cuda", 16, 16, "16 ranks per node: one for each of the 16 GPUs of class here"),
        (64, "cpu", 64, 8, "8 ranks per node: it takes at most 8 of the 64 CPU slots of class "),
    ],
)
def test_auto_ranks_are_the_most_that_can_run(
    slots: int, device: str, batch: int, ranks: int, reason: str
) -> None:
    here = HARDWARE.model_copy(update={"slots": slots, "device": device, "class_name": "here"})
    training = make_spec(training__global_batch_size=batch, parallelism={"strategy": "ddp"})
    found = plan(training, nodes=1, ranks_per_node="auto", hardware=here)
    assert found.runnable, found.problems
    assert (found.ranks_per_node, found.layout.replicate) == (ranks, ranks)
    assert found.micro_batch_size * found.gradient_accumulation_steps * ranks == batch
    assert found.warnings[0].startswith(f"auto chose {reason}")
    as_number = plan(training, nodes=1, ranks_per_node=ranks, hardware=here)
    assert found.model_copy(update={"warnings": as_number.warnings}) == as_number


def test_on_a_cpu_the_ranks_share_what_one_job_may_use() -> None:
    whole = planned(hardware=HARDWARE)
    limited = planned(hardware=HARDWARE.model_copy(update={"job_memory_gib": 1.0}))
    assert limited.capacity_gib == 1.0 / limited.ranks_per_node < whole.capacity_gib
    loose = HARDWARE.model_copy(update={"job_memory_gib": 10 * HARDWARE.memory_gib})
    assert planned(hardware=loose).capacity_gib == whole.capacity_gib
    tight = planned(hardware=HARDWARE.model_copy(update={"job_memory_gib": 0.3}))
    assert not tight.fits
    assert "0.30 GiB at most for one job) leaves" in tight.problems[0].message
    half = HARDWARE.model_copy(update={"job_memory_gib": 1.0}).part(1)
    assert half.job_memory_gib == 1.0  # of a job, however few slots it has


def test_auto_ranks_that_cannot_run_name_what_is_nearest() -> None:
    spec = make_spec(
        training__global_batch_size=8,
        parallelism={"strategy": "ddp", "tensor_parallel_degree": 3, "pipeline_parallel_degree": 5},
    )
    found = plan(spec, nodes=1, ranks_per_node="auto", hardware=HARDWARE)
    assert not found.runnable
    assert found.warnings[0].endswith("but no number of ranks can run")


def test_half_precision_promises_a_band_and_says_where_it_is_emulated() -> None:
    found = planned(precision="bfloat16")
    assert found.runnable
    assert found.result_class == "band"
    assert "bfloat16 on a CPU" in found.warnings[-1]
    old = known_node("v100-32gb", gpus=1)
    assert (
        "no hardware support for bfloat16"
        in planned(precision="bfloat16", hardware=old).warnings[-1]
    )
    assert planned(precision="float16", hardware=old).warnings == []
    older = known_node("p100-16gb", gpus=1)
    assert (
        "no hardware support for float16"
        in planned(precision="float16", hardware=older).warnings[-1]
    )


def test_every_strategy_is_built() -> None:
    assert set(TECHNIQUES) == set(Strategy) - {Strategy.AUTO}


def test_auto_chooses_and_says_why() -> None:
    one, two = (planned(ranks=ranks, parallelism={}) for ranks in (1, 2))
    assert (one.strategy, two.strategy) == (Strategy.SINGLE, Strategy.DDP)
    assert one.runnable
    assert two.runnable
    assert two.layout.replicate == 2
    assert "2 ranks" in two.warnings[0]


@given(st.sampled_from(sorted(DEGREES)), small, small)
def test_degrees_that_do_not_multiply_to_the_ranks_are_refused(
    field: str, degree: int, ranks: int
) -> None:
    hardware = HARDWARE.model_copy(update={"slots": 12})
    degrees = {"data_parallel_replicate_degree": 1, field: degree}
    found = planned(
        ranks=ranks,
        hardware=hardware,
        training__global_batch_size=27720,  # divisible by 1 to 12
        training__micro_batch_size=1,
        parallelism={"strategy": "ddp", **degrees},
    )
    assert getattr(found.layout, DEGREES[field]) == degree
    mismatches = [p for p in found.problems if p.code == "world_size_mismatch"]
    assert bool(mismatches) == (degree != ranks)
    if mismatches:
        assert mismatches[0].param == "parallelism.data_parallel_replicate_degree"
        assert f"multiply to {degree} " in mismatches[0].message
        assert f"{ranks} ranks" in mismatches[0].message
    unused = [p for p in found.problems if p.code == "degree_not_supported"]
    if DEGREES[field] in TECHNIQUES[Strategy.DDP].axes or degree == 1:
        assert not unused
    else:
        assert [p.param for p in unused] == [f"parallelism.{field}"]
        assert str(degree) in unused[0].message


def test_single_on_two_ranks_is_refused() -> None:
    problem = only_problem(planned(ranks=2))
    assert (problem.code, problem.param) == ("world_size_mismatch", "parallelism.strategy")
    assert "2 ranks" in problem.message


@given(st.integers(1, 64), st.integers(1, 16))
def test_heads_must_divide_the_width_evenly(half_width: int, heads: int) -> None:
    width = 2 * half_width
    found = planned(model__width=width, model__heads=heads)
    expected = width % heads != 0 or width // heads % 2 != 0
    assert bool(found.problems) == expected
    if expected:
        problem = only_problem(found)
        assert problem.param == "model.heads"
        assert str(width) in problem.message
        assert str(heads) in problem.message


@given(small, small)
def test_kv_heads_must_divide_the_heads(heads: int, kv_heads: int) -> None:
    width = 2 * heads
    found = planned(
        model={
            "name": "llama",
            "layers": 1,
            "width": width,
            "heads": heads,
            "kv_heads": kv_heads,
        }
    )
    assert bool(found.problems) == (heads % kv_heads != 0)
    if found.problems:
        problem = only_problem(found)
        assert problem.param == "model.kv_heads"
        assert f"{heads} heads" in problem.message
        assert f"{kv_heads} kv_heads" in problem.message


def test_gpt_has_no_grouped_keys() -> None:
    problem = only_problem(planned(model__kv_heads=2))
    assert problem.param == "model.kv_heads"
    assert "llama" in problem.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("checkpoint", "tiny"), ("attention_bias", True), ("query_key_norms", True)],
)
def test_gpt_has_no_checkpoints_no_biases_and_no_norms_of_queries(field: str, value: Any) -> None:
    problem = only_problem(planned(**{f"model__{field}": value}))
    assert problem.param == f"model.{field}"
    assert "llama" in problem.message


def test_no_family_has_both_biases_and_norms_of_queries() -> None:
    llama = {"name": "llama", "layers": 1, "width": 16, "heads": 2}
    for fields in ({"attention_bias": True}, {"query_key_norms": True}):
        assert planned(model={**llama, **fields}).problems == []
    both = planned(model={**llama, "attention_bias": True, "query_key_norms": True})
    assert only_problem(both).param == "model.query_key_norms"


maybe = st.none() | small


@given(small, small, maybe, maybe)
def test_global_is_micro_times_accumulation_times_data_parallel(
    total: int, ranks: int, micro: int | None, accumulation: int | None
) -> None:
    found = planned(
        ranks=ranks,
        hardware=HARDWARE.model_copy(update={"slots": 12}),
        training__global_batch_size=total,
        training__micro_batch_size=micro,
        training__gradient_accumulation_steps=accumulation,
        parallelism__strategy="ddp",
    )
    if found.runnable:
        product = found.micro_batch_size * found.gradient_accumulation_steps * ranks
        assert product == total
        assert micro in (None, found.micro_batch_size)
        assert accumulation in (None, found.gradient_accumulation_steps)
    else:
        problem = only_problem(found)
        assert problem.param == "training.global_batch_size"
        assert str(total) in problem.message
        for number in (ranks, micro, accumulation):
            assert number is None or str(number) in problem.message
        known = ranks * (micro or 1) * (accumulation or 1)
        assert total % known or (micro and accumulation and known != total)


def test_a_model_that_cannot_fit_is_refused_with_its_table() -> None:
    big = {"name": "gpt", "layers": 48, "width": 1600, "heads": 25}
    found = planned(model=big, ranks=2, parallelism__strategy="ddp")
    problem = only_problem(found)
    assert (problem.code, problem.param) == ("does_not_fit", "model.width")
    assert not found.fits
    # 1.47e9 parameters of 16 bytes are 22 GiB for each of the two ranks that share 24 GiB.
    assert "optimizer 10.99" in problem.message
    assert "leaves 10.80 GiB" in problem.message
    assert found.needed_gib > found.capacity_gib


def test_activations_that_cannot_fit_point_at_the_micro_batch() -> None:
    problem = only_problem(planned(training__global_batch_size=4096, data__sequence_length=4096))
    assert (problem.code, problem.param) == ("does_not_fit", "training.micro_batch_size")
    assert "changes that would make it fit: smaller micro-batches, accumulated" in problem.message


def test_a_gpu_is_not_shared_and_a_host_is() -> None:
    gpu = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    spec = {"ranks": 4, "parallelism__strategy": "ddp"}
    assert planned(hardware=gpu, **spec).capacity_gib == pytest.approx(72)
    assert planned(**spec).capacity_gib == pytest.approx(0.9 * 24 / 4)


def test_several_ranks_on_mig_instances_are_refused_and_one_is_not() -> None:
    model = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    mig = Hardware(class_name="mig", device="cuda", slots=2, memory_gib=19.5, model=model)
    problem = only_problem(planned(hardware=mig, ranks=2, parallelism__strategy="ddp"))
    assert (problem.code, problem.param) == ("mig_has_one_rank", "resources.ranks_per_node")
    assert not planned(hardware=mig, ranks=1, parallelism__strategy="single").problems


def test_more_ranks_than_a_node_has_slots_are_refused() -> None:
    gpu = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    problem = only_problem(planned(hardware=gpu, ranks=8, parallelism__strategy="ddp"))
    assert (problem.code, problem.param) == ("too_many_ranks", "resources.ranks_per_node")
    assert "8 ranks" in problem.message
    assert "has only 4" in problem.message


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    problem = only_problem(planned(training__warmup_steps=51))
    assert problem.param == "training.warmup_steps"
    assert "51" in problem.message
    assert "50" in problem.message


def test_evaluation_without_held_out_text_is_refused() -> None:
    problem = only_problem(planned(training__eval_every_steps=5, data__held_out=0))
    assert problem.param == "training.eval_every_steps"


def test_several_problems_are_named_at_once() -> None:
    found = planned(ranks=2, model__heads=5, training__warmup_steps=51)
    assert {p.param for p in found.problems} == {
        "parallelism.strategy",
        "model.heads",
        "training.warmup_steps",
    }


@given(
    layers=st.integers(1, 1024),
    width=st.integers(2, 131_072),
    heads=st.integers(1, 4096),
    batch=st.integers(1, 1_048_576),
    length=st.integers(1, 1_048_576),
    nodes=st.integers(0, 9),
    ranks=st.integers(0, 65),
    strategy=st.sampled_from(Strategy),
)
def test_every_spec_gets_a_plan_or_reasons(
    layers: int,
    width: int,
    heads: int,
    batch: int,
    length: int,
    nodes: int,
    ranks: int,
    strategy: Strategy,
) -> None:
    found = planned(
        ranks=ranks,
        nodes=nodes,
        model={"name": "llama", "layers": layers, "width": width, "heads": heads},
        data__sequence_length=length,
        training__global_batch_size=batch,
        parallelism__strategy=strategy,
    )
    assert found.runnable == (not found.problems)
    assert Plan.model_validate_json(found.model_dump_json()) == found
    if found.runnable:
        assert found.layout.world_size == nodes * ranks
        assert found.needed_gib <= found.capacity_gib
