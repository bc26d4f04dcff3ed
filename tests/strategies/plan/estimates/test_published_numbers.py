"""What others have published of memory and arithmetic, by their conventions, beside what the
planner says of the same models; where the two count otherwise, the difference is asserted too.

What needs no second convention is beside its subject: utilisation and arithmetic in test_flops,
parameters in test_memory and test_known_models, adapters and NF4 in test_adapters, bubbles in
test_timeline, traffic in test_traffic.
"""

from typing import Any, NamedTuple

import pytest

from strategies.plan.estimates.activations import kept_by_layer, layer_bytes
from strategies.plan.estimates.flops import flops_per_token
from strategies.plan.estimates.host import host_terms, locked
from strategies.plan.estimates.memory import GIB, memory_by_stage
from strategies.plan.estimates.step_time import RECOMPUTED
from strategies.plan.hardware import Hardware
from strategies.plan.planner import resolve
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.spec import ActivationCheckpointing, ModelName, ModelSpec
from tests.strategies.support.training_runs import make_spec, spec_of_model

GPU = Hardware(class_name="h200x8", device="cuda", slots=8, memory_gib=140)
GPT3 = {"name": "gpt", "layers": 96, "width": 12_288, "heads": 96}
VOCABULARY = 51_200  # of Megatron's published runs; their samples have 2,048 tokens
STATES = ("weights", "gradients", "optimizer")


def asked_of(*, ranks: int, model: dict[str, Any] | None = None, **changes: Any) -> ResolvedSpec:
    """On nodes of 8 GPUs."""
    shape = model or {"name": "gpt", "layers": 36, "width": 4096, "heads": 32}
    spec = make_spec(model=shape, training__global_batch_size=64, **changes)
    return resolve(spec, nodes=max(1, ranks // 8), ranks_per_node=min(8, ranks), hardware=GPU)


def parameters(asked: ResolvedSpec) -> int:
    model = asked.spec.model
    return 12 * model.layers * model.width**2


def state_bytes(asked: ResolvedSpec) -> float:
    """Of weights, gradients and optimizer, on one rank."""
    return sum(term.gib * GIB for term in memory_by_stage(asked)[0] if term.name in STATES)


class Published(NamedTuple):
    """A row of ZeRO's tables: bytes a parameter that every rank holds, and that all share."""

    whole: int
    shared: int


PAPER = {"zero1": Published(4, 12), "zero2": Published(2, 14), "zero3": Published(0, 16)}


@pytest.mark.parametrize(
    ("billions", "strategy", "gb"),
    [
        (7.5, "zero1", 31.4),
        (7.5, "zero2", 16.6),
        (7.5, "zero3", 1.88),
        (128, "zero1", 536),
        (128, "zero2", 284),
        (128, "zero3", 32),
    ],
)
def test_zeros_stages_on_64_ranks(billions: float, strategy: str, gb: float) -> None:
    """ZeRO (arXiv:1910.02054), figure 1 (7.5B) and table 1 (128B): 2 bytes for a weight, 2 for a
    gradient, 12 for the optimizer, which has the weights in float32. Ours adds up gradients in
    float32, which adds 2 bytes to each, and cuts a rank's part out of stage 1's whole ones."""
    whole, shared = PAPER[strategy]
    assert billions * (whole + shared / 64) == pytest.approx(gb, abs=0.005 * gb)
    asked = asked_of(ranks=64, precision="bfloat16", parallelism={"strategy": strategy})
    found = state_bytes(asked) / parameters(asked)
    more = {"zero1": 2 + 4 / 64, "zero2": 2 / 64, "zero3": 2 / 64}[strategy]
    assert found == pytest.approx(whole + shared / 64 + more, rel=1e-3)


def test_zeros_activations_of_gpt2() -> None:
    """ZeRO, section 3.2: 60 GB for GPT-2 1.5B with 32 samples of 1,024 tokens, at 12 numbers of 2
    bytes for each layer, token and feature. Ours are as many: the inputs of both norms, their
    outputs, query, key, value, attention, and what the activation reads."""
    spec = spec_of_model(
        "gpt2-xl",
        precision="pure_bfloat16",
        data__sequence_length=1024,
        training__global_batch_size=32,
    )
    features = 48 * 32 * 1024 * 1600
    assert 12 * 2 * features / 1e9 == pytest.approx(60.4, abs=0.05)
    kept = kept_by_layer(spec, ActivationCheckpointing.NONE).total * 48 * 32 * 1024
    assert kept == 12 * 2 * features


@pytest.mark.parametrize(
    ("parallelism", "theirs", "ours"),
    [
        ({"strategy": "single"}, 34, 24),
        ({"strategy": "tensor"}, 10 + 24 / 8, 8 + 16 / 8),
        ({"strategy": "tensor", "sequence_parallel": True}, 34 / 8, 24 / 8),
    ],
    ids=["one rank", "tensor", "tensor and sequence"],
)
def test_korthikantis_activations_without_scores(
    parallelism: dict[str, Any], theirs: float, ours: float
) -> None:
    """Korthikanti et al. (arXiv:2205.05198), table 2, for 8 tensor ranks: bytes for each layer,
    token and feature beside the 5 a s/h of attention scores, which ours never stores. It has no
    dropout, whose two masks are 2 of their 34, and does not keep what the activation returns, 8 of
    theirs. What both halves of a layer read is kept scattered by both, and gathered again."""
    ranks = 1 if parallelism["strategy"] == "single" else 8
    asked = asked_of(
        ranks=ranks,
        model=GPT3,
        parallelism=parallelism,
        precision="pure_bfloat16",
        data__sequence_length=2048,
    )
    tokens = asked.micro_batch_size * 2048
    found = layer_bytes(asked, ActivationCheckpointing.NONE) / tokens / 12_288
    assert found == pytest.approx(ours)
    masks = 2 / 8 if parallelism.get("sequence_parallel") else 2
    assert found == pytest.approx(theirs - masks - 8 / ranks)
    again = layer_bytes(asked, ActivationCheckpointing.FULL) / tokens / 12_288
    assert again == (2 / 8 if parallelism.get("sequence_parallel") else 2)  # as theirs, where whole


@pytest.mark.parametrize(
    ("heads", "width", "share"), [(96, 12_288, 80), (128, 20_480, 64)], ids=["175B", "530B"]
)
def test_attention_scores_would_outweigh_the_rest(heads: int, width: int, share: int) -> None:
    """Korthikanti et al., section 5: 5 a s/h of GPT-3 and MT-NLG with 2,048 tokens, beside 34. Ours
    is as large with half as many heads, because scores are computed in pieces and forgotten."""
    assert 5 * heads * 2048 / width == share
    kept = [
        kept_by_layer(
            make_spec(model={"name": "gpt", "layers": 1, "width": width, "heads": number}),
            ActivationCheckpointing.NONE,
        )
        for number in (heads, heads // 2)
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("layers", "width", "percent"), [(96, 12_288, 2.7), (105, 20_480, 1.6)], ids=["175B", "530B"]
)
def test_selective_recomputation_costs_3_percent_at_most(
    layers: int, width: int, percent: float
) -> None:
    """Korthikanti et al., section 5: attention run once more, s/6h of 1 + s/6h + V/12hL. Ours runs
    all again but products of matrices, which the planner's 3 % have room for."""
    attention = 2048 / (6 * width)
    share = attention / (1 + attention + VOCABULARY / (12 * width * layers))
    assert 100 * share == pytest.approx(percent, abs=0.05)
    model = ModelSpec(name=ModelName.GPT, layers=layers, width=width, heads=32)
    whole = flops_per_token(model, vocabulary=VOCABULARY, sequence_length=2048)
    without = flops_per_token(model, vocabulary=VOCABULARY, sequence_length=0)
    assert (whole - without) / whole == pytest.approx(share)
    assert share < RECOMPUTED[ActivationCheckpointing.SELECTIVE]


def test_full_recomputation_takes_30_percent_longer_than_selective() -> None:
    """Korthikanti et al., section 6: 49.05 s a step of the 530B model against 37.83 s."""
    full, selective = (
        1 + RECOMPUTED[how]
        for how in (ActivationCheckpointing.FULL, ActivationCheckpointing.SELECTIVE)
    )
    assert full / selective == pytest.approx(49.05 / 37.83, abs=0.01)


@pytest.mark.parametrize(
    ("layers", "width", "tokens", "gpus", "teraflops", "days"),
    [(96, 12_288, 300e9, 1024, 140, 34), (128, 25_600, 450e9, 3072, 163, 84)],
    ids=["175B", "1T"],
)
def test_megatrons_days_of_training(
    layers: int, width: int, tokens: float, gpus: int, teraflops: float, days: int
) -> None:
    """Narayanan et al. (arXiv:2104.04473), section 5.1: 8 T P/(n X), with full recomputation. They
    leave attention out, 3 % here."""
    model = ModelSpec(name=ModelName.GPT, layers=layers, width=width, heads=64)
    per_token = flops_per_token(model, vocabulary=VOCABULARY, sequence_length=2048)
    work = tokens * per_token * (1 + RECOMPUTED[ActivationCheckpointing.FULL])
    found = work / (gpus * teraflops * 1e12) / 86_400
    assert found == pytest.approx(days, rel=0.04)


class TestDeepSpeedsEstimators:
    """DeepSpeed 0.19 estimates what ZeRO needs without activations, in mixed precision: 2 + 2 + 4
    bytes for a weight and its gradients, 12 for the optimizer; and half as much again on the host.
    The planner adds what is sent, activations, logits and the process."""

    @pytest.mark.parametrize(("offload", "gpu_gib"), [(True, 5.31), (False, 11.28)])
    def test_of_stage_2(self, offload: bool, gpu_gib: float) -> None:
        """T5-3B on 8 GPUs: docs/source/memory.rst, but for 15.93 GiB there, which are 4 P + 16 P/N
        of older code. Their host holds the whole model in float32 for each rank as it starts; ours
        makes it layer by layer, and has nothing of the 2 bytes that they count for each gradient
        beside 4. An offloaded gradient leaves the GPU through the bucket and a buffer for the
        largest weight; the host has locked rows of the new weights, to send."""
        host, gpu = stage_2(2_851_000_000, num_gpus_per_node=8, cpu_offload=offload)
        assert (host / GIB, gpu / GIB) == pytest.approx((127.45, gpu_gib), abs=0.01)
        parallelism = {"strategy": "zero2", "offload_optimizer": "cpu" if offload else "none"}
        asked = asked_of(ranks=8, precision="bfloat16", parallelism=parallelism)
        largest = 4 * 4096 * 4096 if offload else 0
        ours = (state_bytes(asked) - 4 * largest) / parameters(asked)
        assert gpu / 2_851_000_000 == pytest.approx(2 + (0 if offload else 18 / 8))
        assert ours == pytest.approx(2 + (0 if offload else 16 / 8), rel=1e-3)
        on_host = {term.name: term.gib * GIB for term in host_terms(asked)}
        if not offload:
            assert set(on_host) == {"checkpoint copy", "processes"}
            return
        assert on_host["optimizer"] == pytest.approx(16 * parameters(asked), rel=1e-3)
        row = 2 * parameters(asked) // 8
        assert row < locked(row) == pytest.approx(on_host["gradients"] / 8, rel=1e-3)

    def test_of_stage_3(self) -> None:
        """T5-3B, largest layer 32M, on 8 GPUs: docs/source/memory.rst. They count 18 P/N and one
        gathered layer; ours as much, the bucket that is reduced, and what is gathered of two."""
        host, gpu, largest = stage_3(2_851_000_000, 32_000_000, num_gpus_per_node=8)
        assert (host / GIB, gpu / GIB) == pytest.approx((1.43, 6.09), abs=0.005)
        assert gpu - largest == 18 * 2_851_000_000 // 8
        asked = asked_of(ranks=8, precision="bfloat16", parallelism={"strategy": "zero3"})
        assert state_bytes(asked) / parameters(asked) == pytest.approx(18 / 8, rel=1e-3)

    @pytest.mark.parametrize(
        ("device", "parameters_too", "mib", "ours_a_parameter"),
        [("none", False, 3291, 18 / 4), ("cpu", True, 125, 0), ("cpu", False, 477, 2 / 4)],
        ids=["nothing", "both", "optimizer"],
    )
    def test_of_t5_large_on_4_gpus(
        self, device: str, parameters_too: bool, mib: int, ours_a_parameter: float
    ) -> None:
        """737.67M parameters, largest layer 32.90M: docs/source/memory.rst. What ours keeps on a
        GPU beside gathered layers and the bucket is its part of the weights that stay there."""
        _, gpu, _ = stage_3(
            737_670_000,
            32_900_000,
            num_gpus_per_node=4,
            cpu_offload=device == "cpu",
            cpu_offload_params=parameters_too,
        )
        assert gpu / 2**20 == pytest.approx(mib, abs=1)
        parallelism = {
            "strategy": "zero3",
            "offload_optimizer": device,
            "offload_parameters": "cpu" if parameters_too else "none",
        }
        asked = asked_of(ranks=4, precision="bfloat16", parallelism=parallelism)
        ours = state_bytes(asked) / parameters(asked)
        assert ours == pytest.approx(ours_a_parameter, rel=1e-3, abs=1e-6)


def stage_2(parameters: int, **how: Any) -> tuple[int, int]:
    """Bytes of the host, and of a GPU, by DeepSpeed."""
    from strategies.train.engines import zero  # it tells DeepSpeed which accelerator there is

    stage = zero.deepspeed.runtime.zero.stage_1_and_2
    found: tuple[int, int] = stage.estimate_zero2_model_states_mem_needs(parameters, **how)
    return found


def stage_3(parameters: int, largest_layer: int, **how: Any) -> tuple[int, int, int]:
    """Bytes of the host, of a GPU, and of the layer that is gathered, by DeepSpeed."""
    from strategies.train.engines import zero

    stage = zero.deepspeed.runtime.zero.stage3
    offload = {"cpu_offload": False, "cpu_offload_params": False, **how}
    found: tuple[int, int, int] = stage.estimate_zero3_model_states_mem_needs(
        parameters, largest_layer, **offload
    )
    return found


def test_rules_of_thumb_for_7_billion_are_near() -> None:
    """LLaMA-Factory's README, hardware requirement of 7B: 120 GB in mixed precision, 60 in pure
    bfloat16, 16 with LoRA, 6 with QLoRA in 4 bits. They are rounded up for all that a run holds;
    the planner's terms are of the order, and in that order."""
    needed = []
    for changes in (
        {"precision": "bfloat16"},
        {"precision": "pure_bfloat16"},
        {"precision": "pure_bfloat16", "adapter": {"base": "none"}},
        {"precision": "pure_bfloat16", "adapter": {"base": "nf4"}},
    ):
        spec = spec_of_model(
            "llama-2-7b",
            data__sequence_length=1024,
            training__global_batch_size=1,
            activation_checkpointing="full",
            **changes,
        )
        asked = resolve(spec, nodes=1, ranks_per_node=1, hardware=GPU)
        needed.append(sum(term.gib for term in memory_by_stage(asked)[0]) * GIB / 1e9)
    assert needed == sorted(needed, reverse=True)
    for found, published in zip(needed, (120, 60, 16, 6), strict=True):
        assert found == pytest.approx(published, rel=0.25)
