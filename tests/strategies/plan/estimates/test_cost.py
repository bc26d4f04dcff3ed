"""What a plan says about time, against published runs and its own parts."""

from dataclasses import replace
from typing import Any

import pytest

from strategies.plan.estimates.cost import Cost
from strategies.plan.gpus import A100_SXM4, known_node
from strategies.plan.planner import plan
from tests.strategies.support.training_runs import spec_of_model


def costs(model: str, *, ranks: int, node_class: str, nodes: int = 1, **changes: Any) -> Cost:
    spec = spec_of_model(
        model,
        **{"data__sequence_length": 8192, "parallelism": {"strategy": "fsdp"}, **changes},
    )
    hardware = known_node(node_class, gpus=8)
    found = plan(spec, nodes=nodes, ranks_per_node=ranks, hardware=hardware).cost
    assert found is not None
    return found


def test_the_range_holds_torchtitans_8b_on_8_h100() -> None:
    """torchtitan, benchmarks of Llama 3.1 8B, 8 H100, bfloat16, 2 samples of 8,192 tokens on each:
    5,762 tokens/s and GPU, 6,667 with torch.compile."""
    found = costs(
        "llama-3-8b",
        ranks=8,
        node_class="h100-80gb",
        precision="bfloat16",
        training__global_batch_size=16,
        activation_checkpointing="selective",
    )
    assert found.step_time is not None
    tokens = 16 * 8192 / 8
    for published in (5_762, 6_667):
        assert found.step_time.low_s < tokens / published < found.step_time.high_s
        assert tokens / published == pytest.approx(found.step_time.expected_s, rel=0.3)


def test_times_add_up_to_gpu_hours() -> None:
    found = costs("llama-2-7b", ranks=8, node_class="a100-80gb", precision="bfloat16")
    assert found.step_time is not None
    assert found.total_s == pytest.approx(50 * found.step_time.expected_s)
    assert found.gpu_hours == pytest.approx(8 * 50 * found.step_time.expected_s / 3600)
    assert found.tokens_per_s == pytest.approx(8 * 8192 / found.step_time.expected_s)
    assert found.flops_per_step == 8 * 8192 * found.flops_per_token


def test_recomputing_takes_a_third_longer_and_a_bubble_stretches() -> None:
    """Full recomputation runs the forward pass, a third of the arithmetic, once more; 4 stages and
    8 micro-batches wait 3 of 11 turns (GPipe, arXiv:1811.06965)."""
    alone = costs(
        "gpt2-xl",
        ranks=1,
        node_class="a100-80gb",
        parallelism={"strategy": "single"},
        compile=False,
    )
    again = costs(
        "gpt2-xl",
        ranks=1,
        node_class="a100-80gb",
        parallelism={"strategy": "single"},
        activation_checkpointing="full",
        compile=False,
    )
    piped = costs(
        "gpt2-xl",
        ranks=4,
        node_class="a100-80gb",
        parallelism={"strategy": "pipeline", "pipeline_schedule": "GPipe"},
        training__gradient_accumulation_steps=8,
        compile=False,
    )
    assert alone.step_time is not None
    assert again.step_time is not None
    assert piped.step_time is not None
    # The loss and the update are not done again.
    longer = again.step_time.compute_s / alone.step_time.compute_s
    assert 1.2 < longer < 4 / 3
    assert piped.bubble == pytest.approx(3 / 11)
    assert piped.step_time.compute_s == pytest.approx(alone.step_time.compute_s / 4 * 11 / 8)


@pytest.mark.parametrize(
    ("changes", "nodes", "node_class"),
    [
        ({"parallelism": {"strategy": "zero3", "offload_optimizer": "cpu"}}, 1, "a100-80gb"),
        ({"precision": "float64"}, 1, "a100-80gb"),
    ],
    ids=["host", "float64"],
)
def test_what_is_not_known_stays_unknown(
    changes: dict[str, Any], nodes: int, node_class: str
) -> None:
    found = costs("gpt2", ranks=8, nodes=nodes, node_class=node_class, **changes)
    assert found.step_time is None
    assert (found.tokens_per_s, found.total_s, found.gpu_hours) == (None, None, None)
    assert found.traffic


def test_several_nodes_have_a_time_and_say_which_network_it_assumes() -> None:
    """What eight GPUs of a node get from others arrives once and is passed on inside: FSDP on 16
    nodes of A100s is bound by computing, tensor parallelism across nodes by the network."""
    one, many = (
        costs("llama-2-7b", ranks=8, nodes=nodes, node_class="a100-80gb", precision="bfloat16",
              training__global_batch_size=8 * nodes)
        for nodes in (1, 16)
    )  # fmt: skip
    assert one.step_time is not None
    assert many.step_time is not None
    assert "GB/s from each GPU to other nodes" in many.step_time.basis
    assert "other nodes" not in one.step_time.basis
    assert many.step_time.expected_s == pytest.approx(one.step_time.expected_s, rel=0.1)
    across = costs(
        "llama-2-7b",
        ranks=8,
        nodes=4,
        node_class="a100-80gb",
        precision="bfloat16",
        parallelism={"strategy": "tensor"},
    )
    assert across.step_time is not None
    assert across.step_time.traffic_s > across.step_time.compute_s


def test_auto_knows_the_network() -> None:
    """Layers split between two nodes send less than matrices split between them."""
    spec = spec_of_model(
        "llama-2-70b",
        precision="bfloat16",
        activation_checkpointing="full",
        data__sequence_length=4096,
        training__global_batch_size=64,
        training__micro_batch_size="auto",
        parallelism={"strategy": "auto"},
    )
    found = plan(spec, nodes=4, ranks_per_node=8, hardware=known_node("a100-80gb", gpus=8))
    assert found.runnable, found.problems
    assert "the one with the shortest expected step" in found.warnings[0]


@pytest.mark.parametrize(("model", "bound"), [("gpt2", True), ("llama-2-7b", False)])
def test_one_sample_of_a_small_model_waits_for_the_host(model: str, bound: bool) -> None:
    """A kernel takes 6 microseconds to launch: 1,024 tokens of GPT-2 keep an A100 for less time
    than the host needs for its kernels, so that a tenth as many take as long."""
    alone = {"strategy": "single"}
    long, short = (
        costs(
            model,
            ranks=1,
            node_class="a100-80gb",
            precision="bfloat16",
            parallelism=alone,
            data__sequence_length=length,
            training__global_batch_size=1,
        )
        for length in (512, 256)
    )
    assert long.step_time is not None
    assert short.step_time is not None
    assert (long.step_time.compute_s == short.step_time.compute_s) is bound


def test_an_unknown_gpu_is_planned_by_its_measured_speeds() -> None:
    spec = spec_of_model("llama-2-7b", parallelism={"strategy": "fsdp"}, precision="bfloat16")
    unknown = known_node("a100-80gb", gpus=8).model_copy(update={"model": "A GPU of tomorrow"})
    told = plan(spec, nodes=1, ranks_per_node=8, hardware=unknown).cost
    assert told is not None
    assert (told.peak_tflops, told.step_time) == (None, None)
    speeds = replace(A100_SXM4, source="measured on this node", memory_gb_per_s=2039)
    measured = unknown.model_copy(update={"speeds": speeds})
    found = plan(spec, nodes=1, ranks_per_node=8, hardware=measured).cost
    sold = plan(spec, nodes=1, ranks_per_node=8, hardware=known_node("a100-80gb", gpus=8)).cost
    assert found is not None
    assert found.step_time is not None
    assert sold is not None
    assert sold.step_time is not None
    assert found.peak_tflops == sold.peak_tflops
    # A measured peak is nearer to what a model's products reach than a data sheet's.
    assert 0.8 < found.step_time.compute_s / sold.step_time.compute_s < 1
    assert found.step_time.basis.startswith("measured on this node: ")
