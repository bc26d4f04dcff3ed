"""The planner's arithmetic against the real modules, and against published numbers."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.estimates.activations import kept_by_layer, logit_bytes
from strategies.plan.estimates.memory import GIB
from strategies.plan.estimates.zero import BUCKET
from strategies.plan.gpus import known_node
from strategies.plan.hardware import Constants, Hardware
from strategies.plan.planner import Plan, plan, resolve
from strategies.plan.shapes import count_parameters
from strategies.plan.spec import ActivationCheckpointing, ModelName, ModelSpec, TrainSpec
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from tests.strategies.support.training_runs import HARDWARE, make_spec, spec_of_model

CPU = torch.device("cpu")


def planned(spec: TrainSpec) -> Plan:
    return plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(["gpt", "llama"]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    model = {
        "name": name,
        "layers": draw(st.integers(1, 3)),
        "width": heads * 2 * draw(st.integers(1, 4)),
        "heads": heads,
        "ffn_width": draw(st.none() | st.integers(2, 40)),
        "tied_embeddings": draw(st.booleans()),
    }
    if name == "llama":
        model["kv_heads"] = kv_heads
        model["attention_bias"] = draw(st.booleans())
        model["query_key_norms"] = draw(st.booleans())
    return model


@given(models())
def test_the_parameter_count_is_that_of_the_module(model: dict[str, Any]) -> None:
    spec = make_spec(model=model)
    built = build_model(spec, device=CPU)
    counted = sum(parameter.numel() for parameter in built.parameters())
    assert count_parameters(spec.model, vocabulary=256) == counted


def test_the_count_agrees_with_published_ones() -> None:
    def count(vocabulary: int, **model: Any) -> int:
        return count_parameters(ModelSpec.model_validate(model), vocabulary=vocabulary)

    # Llama 3 8B: 8,030,261,248 (its model card's weights).
    llama = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn_width": 14336}
    assert count(128_256, name="llama", **llama) == 8_030_261_248
    # GPT-2 small without learned positions, biases of Linear layers and tying.
    blocks = 12 * (12 * 768**2 + 4 * 768) + 2 * 768
    assert count(50_257, name="gpt", layers=12, width=768, heads=12) == blocks + 2 * 50_257 * 768


@pytest.mark.parametrize(
    ("layers", "width", "billions"),
    [(24, 2304, 1.7), (36, 4096, 7.5), (80, 12288, 145.6), (128, 25600, 1008.0)],
)
def test_megatrons_models_have_their_published_size(
    layers: int, width: int, billions: float
) -> None:
    """Narayanan et al. (arXiv:2104.04473), table 1: vocabulary 51,200, 2,048 tokens, with learned
    positions, biases and tied embeddings; ours has no positions and no biases."""
    model = ModelSpec(
        name=ModelName.GPT, layers=layers, width=width, heads=16, tied_embeddings=True
    )
    theirs = 2048 * width + layers * 13 * width - 4 * layers * width - 2 * width
    counted = count_parameters(model, vocabulary=51_200) + theirs
    assert round(counted / 1e9, 1) == billions


def test_zeros_model_of_7_5_billion_takes_120_gb_on_each_rank() -> None:
    """ZeRO (arXiv:1910.02054), figure 1: 16 bytes a parameter without sharing out; a 64th, 1.88 GB,
    shared out fully by ranks that keep nothing twice."""
    gpu = Hardware(class_name="h200x8", device="cuda", slots=8, memory_gib=140)
    model = {"name": "gpt", "layers": 36, "width": 4096, "heads": 32}
    held = []
    for strategy in ("ddp", "fsdp"):
        spec = make_spec(
            model=model, parallelism={"strategy": strategy}, training__global_batch_size=64
        )
        found = plan(spec, nodes=8, ranks_per_node=8, hardware=gpu)
        states = sum(t.gib for t in found.memory if t.name in ("weights", "gradients", "optimizer"))
        held.append(states * GIB / found.parameters * 7.5)
    assert held[0] == pytest.approx(120, abs=0.1)
    assert held[1] == pytest.approx(1.88, abs=0.01)


def test_of_the_logits_of_llama_3_a_quarter_exists_at_a_time() -> None:
    """8,192 tokens x 128,256 words in float32 would be 3.91 GiB; the gradient of the head, 128,256
    x 4,096 numbers, is 1.96."""
    spec = spec_of_model("llama-3-8b", data__sequence_length=8192, training__global_batch_size=1)
    gpu = Hardware(class_name="h200", device="cuda", slots=1, memory_gib=140)
    asked = resolve(spec, nodes=1, ranks_per_node=1, hardware=gpu)
    assert logit_bytes(asked) / GIB == pytest.approx(3.91 / 4 + 1.96, abs=0.02)


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_activation_estimate_is_near_what_autograd_saves(name: str, precision: str) -> None:
    spec = make_spec(
        model={"name": name, "layers": 4, "width": 128, "heads": 4},
        data__sequence_length=64,
        training__global_batch_size=4,
        precision=precision,
    )
    model = build_model(spec, device=CPU)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens_BT = torch.zeros((4, 64), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = token_loss_sum(model(tokens_BT), tokens_BT)
    assert loss.requires_grad
    kept = kept_by_layer(spec, ActivationCheckpointing.NONE).total
    assert sum(saved.values()) == pytest.approx(4 * kept * tokens_BT.numel(), rel=0.15)


def test_model_states_are_sixteen_bytes_per_parameter() -> None:
    # ZeRO (arXiv:1910.02054), section 3.1, counts the same for fp32 training with Adam.
    spec = make_spec()
    terms = {t.name: t for t in planned(spec).memory}
    states = [terms[name] for name in ("weights", "gradients", "optimizer")]
    parameters = count_parameters(spec.model, vocabulary=256)
    assert sum(term.gib for term in states) * GIB == pytest.approx(16 * parameters)
    assert all(term.exact for term in states)
    assert not terms["activations"].exact


@pytest.mark.parametrize(
    ("strategy", "precision", "whole", "shared"),
    [
        ("zero1", "float32", 8, 16),
        ("zero2", "float32", 4, 16),
        ("zero3", "float32", 0, 20),
        ("zero1", "bfloat16", 6, 16),
        ("zero2", "bfloat16", 2, 16),
        ("zero3", "bfloat16", 0, 18),
    ],
)
def test_zero_holds_what_its_stages_say(
    strategy: str, precision: str, whole: int, shared: int
) -> None:
    """Bytes per parameter: ZeRO (arXiv:1910.02054), figure 1, with gradients in float32, the copy
    of its own part that DeepSpeed keeps for the update, and stage 1's own part of gradients."""
    spec = make_spec(parallelism__strategy=strategy, precision=precision)
    found = plan(spec, nodes=1, ranks_per_node=4, hardware=HARDWARE)
    terms = {term.name: term.gib * GIB for term in found.memory}
    states = sum(terms[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx((whole + shared / 4) * found.parameters, rel=1e-4)


def test_offload_empties_a_gpu_and_no_host() -> None:
    gpu = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    asked = {"strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    spec = make_spec(parallelism=asked)
    on_gpu, on_host = (
        {term.name: term.gib for term in planned.memory}
        for planned in (
            plan(spec, nodes=1, ranks_per_node=4, hardware=hardware) for hardware in (gpu, HARDWARE)
        )
    )
    assert on_gpu["optimizer"] == on_gpu["weights"] == 0
    assert on_host["optimizer"] == on_host["weights"] > 0


def test_what_is_offloaded_is_told_of_the_host() -> None:
    """ZeRO-Offload (arXiv:2101.06840), section 4: states and update on the host; here in float32
    throughout, 16 bytes a parameter and 4 more where the weights are there, too."""
    gpu = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    both = {"strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    found = plan(make_spec(parallelism=both), nodes=1, ranks_per_node=4, hardware=gpu)
    by_name = {term.name: term.gib * GIB for term in found.host_memory}
    assert by_name["optimizer"] == pytest.approx(16 * found.parameters, rel=1e-3)
    assert by_name["weights"] == pytest.approx(4 * found.parameters, rel=1e-3)
    on_cpu = plan(make_spec(parallelism=both), nodes=1, ranks_per_node=4, hardware=HARDWARE)
    assert on_cpu.host_memory == []


@pytest.mark.parametrize(("precision", "size"), [("bfloat16", 4), ("pure_bfloat16", 2)])
def test_parts_that_torch_keeps_on_the_host_are_told_of_it_and_leave_the_gpu(
    precision: str, size: int
) -> None:
    """FSDP's CPUOffloadPolicy: weights, gradients and both averages, one of each for a number."""
    gpu = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    asked = {"strategy": "fsdp", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    spec = spec_of_model("llama-2-7b", parallelism=asked, precision=precision)
    found = plan(spec, nodes=1, ranks_per_node=4, hardware=gpu)
    on_gpu = {term.name: term.gib for term in found.memory}
    assert on_gpu["weights"] == on_gpu["gradients"] == on_gpu["optimizer"] == 0
    by_name = {term.name: term.gib * GIB / found.parameters for term in found.host_memory}
    assert by_name["optimizer"] == pytest.approx(2 * size, rel=1e-3)
    assert size <= by_name["weights"] == by_name["gradients"] <= 2 * size  # locked memory
    here = spec_of_model("llama-2-7b", parallelism={"strategy": "fsdp"}, precision=precision)
    parts = plan(here, nodes=1, ranks_per_node=4, hardware=gpu)
    less = parts.needed_gib - found.needed_gib
    assert less * GIB > 0.8 * 4 * size * found.parameters / 4
    on_cpu = plan(spec, nodes=1, ranks_per_node=4, hardware=HARDWARE)
    assert on_cpu.host_memory == []


def test_7_billion_fit_on_24_gb_with_everything_offloaded() -> None:
    """ZeRO-Infinity (arXiv:2104.07857): weights, gradients and optimizer wait on the host, so that
    a GPU holds the matrices that are gathered, the bucket that is reduced, copies of the largest
    matrix's gradient, and activations."""
    spec = spec_of_model(
        "llama-2-7b",
        precision="bfloat16",
        activation_checkpointing="full",
        data__sequence_length=2048,
        training__global_batch_size=1,
        parallelism={
            "strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"
        },
    )  # fmt: skip
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=known_node("rtx3090-24gb", gpus=1))
    assert found.runnable, found.problems
    by_name = {term.name: term.gib for term in found.memory}
    assert by_name["sent"] == pytest.approx(4 * (BUCKET + 2 * 32_000 * 4096) / GIB)
    assert by_name["weights"] == by_name["gradients"] == by_name["optimizer"] == 0


class TestMemoryOfTheHost:
    """A job has the share of its slots, less a tenth."""

    spec = spec_of_model(
        "llama-2-7b",
        precision="bfloat16",
        activation_checkpointing="full",
        parallelism={"strategy": "zero3", "offload_optimizer": "cpu"},
    )

    def on(self, host_gib: float | None, *, slots: int = 4) -> Plan:
        node = known_node("a100-80gb", gpus=slots)
        node = node.model_copy(update={"host_memory_gib": host_gib})
        return plan(self.spec, nodes=1, ranks_per_node=4, hardware=node)

    def test_decides_with_its_number(self) -> None:
        large = self.on(1024)
        assert large.fits
        assert large.host_capacity_gib == pytest.approx(0.9 * 1024)
        needed = sum(term.gib for term in large.host_memory)
        small = self.on(128)
        assert not small.fits
        (problem,) = small.problems
        assert problem.code == "does_not_fit"
        assert f"needs {needed:.2f} GiB of each host's memory (" in problem.message
        assert "4 of the 4 slots of class a100-80gb (128.00 GiB) leave 115.20" in problem.message

    def test_is_shared_by_slots(self) -> None:
        assert self.on(512).fits
        assert not self.on(512, slots=8).fits

    def test_ends_where_the_node_limits_one_job(self) -> None:
        node = known_node("a100-80gb", gpus=4)
        node = node.model_copy(update={"host_memory_gib": 1024, "job_memory_gib": 64})
        limited = plan(self.spec, nodes=1, ranks_per_node=4, hardware=node)
        assert (limited.fits, limited.host_capacity_gib) == (False, 64)
        (problem,) = limited.problems
        assert "(1024.00 GiB, 64.00 GiB at most for one job) leave 64.00 GiB" in problem.message

    def test_unknown_is_not_judged(self) -> None:
        found = self.on(None)
        assert found.fits
        assert found.host_capacity_gib is None

    def test_counts_what_is_locked(self) -> None:
        """torch locks a buffer of the next power of two: 4 bytes for a quarter of 6.7 billion
        numbers become 8 GiB."""
        by_name = {term.name: term.gib for term in self.on(None).host_memory}
        assert by_name["gradients"] == pytest.approx(4 * 8)
        assert by_name["optimizer"] == pytest.approx(16 * 6.74e9 / GIB, rel=0.01)
        assert by_name["processes"] == pytest.approx(4 * 2)

    def test_advice_may_move_memory_to_the_gpu(self) -> None:
        fitting = {one.title for one in self.on(128).advice if one.fits}
        assert "weights, gradients and optimizer sharded (FSDP)" in fitting


def test_sgd_without_momentum_keeps_nothing_so_13_billion_fit_on_one_80_gb_gpu() -> None:
    def on_a100(momentum: float) -> Plan:
        spec = spec_of_model(
            "llama-2-13b",
            precision="pure_bfloat16",
            activation_checkpointing="full",
            training__optimizer="sgd",
            training__beta1=momentum,
            training__micro_batch_size=1,
        )
        return plan(spec, nodes=1, ranks_per_node=1, hardware=known_node("a100-80gb", gpus=1))

    with_momentum, without = on_a100(0.9), on_a100(0.0)
    gib = {term.name: term.gib for term in without.memory}
    assert gib["optimizer"] == 0
    assert without.fits
    assert not with_momentum.fits
    kept = with_momentum.needed_gib - without.needed_gib
    assert kept == pytest.approx(with_momentum.parameters * 2 / GIB)


def test_a_measured_process_and_its_communicators_take_the_place_of_the_constant() -> None:
    measured = Constants(process_gib=1.5, communicator_gib=0.25, source="measured on node n1")
    node = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80, measured=measured)
    found = {}
    for ranks, degrees in ((1, {}), (2, {}), (4, {"data_parallel_shard_degree": 2})):
        spec = make_spec(parallelism={"strategy": "hsdp" if degrees else "auto", **degrees})
        planned = plan(spec, nodes=1, ranks_per_node=ranks, hardware=node)
        (term,) = [one for one in planned.memory if one.name == "process"]
        assert term.source.endswith("; measured on node n1")
        found[ranks] = term.gib
    # One rank has no communicator; others have one for all ranks, and one for each axis.
    assert found == {1: 1.5, 2: 2.0, 4: 2.25}


@pytest.mark.parametrize(
    ("node_class", "alone", "communicator_mib"),
    [("a100-80gb", 0.516, 220.8), ("h100-80gb", 0.5625, 220.8), ("a100-pcie-80gb", 0.516, 36.8)],
)
def test_a_gpu_has_a_context_workspaces_and_buffers_by_communicator(
    node_class: str, alone: float, communicator_mib: float
) -> None:
    def process_gib(ranks: int, **parallelism: Any) -> float:
        spec = make_spec(parallelism=parallelism)
        node = known_node(node_class, gpus=4)
        found = plan(spec, nodes=1, ranks_per_node=ranks, hardware=node)
        return next(term.gib for term in found.memory if term.name == "process")

    one, two, four = (
        process_gib(1, strategy="single"),
        process_gib(2, strategy="ddp"),
        process_gib(4, strategy="ddp", tensor_parallel_degree=2),
    )
    assert one == pytest.approx(alone, abs=1e-3)
    assert 1024 * (two - one) == pytest.approx(2 * communicator_mib)
    assert 1024 * (four - one) == pytest.approx(3 * communicator_mib)
