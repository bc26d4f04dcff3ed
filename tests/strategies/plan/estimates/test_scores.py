"""Scores and masks of attention: the plan beside what torch keeps, and which of its terms bind."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from strategies.plan import attention_kernels
from strategies.plan.attention_kernels import AttentionKernel, kernel_of
from strategies.plan.estimates.activations import kept_by_layer
from strategies.plan.estimates.memory import GIB, in_passes, shares
from strategies.plan.estimates.scores import FLOAT32, mask, scores
from strategies.plan.gpus import known_node
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan, plan, resolve
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.spec import ActivationCheckpointing, TrainSpec
from strategies.train.init import build_model
from strategies.train.models.attention import attend
from strategies.train.models.loss import token_loss_sum
from strategies.train.parallel.recompute import forget_activations
from strategies.train.precision import compute_in, feature_dtype_of
from strategies.train.watching.scales import Highest, Malloc
from tests.strategies.support.training_runs import HARDWARE, make_spec
from tests.strategies.train.parallel.test_recompute import Storages

CPU = torch.device("cpu")
SAMPLES, LENGTH = 2, 256
NONE, SELECTIVE, FULL = ActivationCheckpointing
MATH, FUSED = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION  # on a CPU flash takes masks
A100 = known_node("a100-80gb", gpus=1)
GROUPED = {"name": "llama", "width": 64, "heads": 4, "kv_heads": 2}


@pytest.fixture(autouse=True, scope="module")
def _only_new_garbage() -> None:
    """To look for garbage among all objects of other tests takes seconds.

    They stay frozen, as those of the collection do: to thaw them would thaw all.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def keys_stay_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weigh the math kernel in every precision: otherwise keys are copied for a fused kernel."""
    monkeypatch.setattr(attention_kernels, "repeats_keys", lambda *_, **__: False)


def spec_with(layers: int, **changes: Any) -> TrainSpec:
    return make_spec(
        model={**GROUPED, "layers": layers},
        data__sequence_length=LENGTH,
        training__global_batch_size=SAMPLES,
        **changes,
    )


def on(spec: TrainSpec, hardware: Hardware) -> ResolvedSpec:
    return resolve(spec, nodes=1, ranks_per_node=1, hardware=hardware)


def documents() -> Tensor:
    return (torch.arange(LENGTH) // 50).expand(SAMPLES, LENGTH).contiguous()


def kept_by_torch(spec: TrainSpec, kernel: SDPBackend) -> int:
    """Bytes that a forward pass has taken and not given back."""
    model = build_model(spec, device=CPU)
    forget_activations(model, spec.activation_checkpointing)
    compute_in(spec.precision, model, CPU)
    tokens_BT = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    with sdpa_kernel(kernel), Storages() as seen:
        logits_BTV = model(tokens_BT, documents() if spec.data.packing else None)
    assert logits_BTV.requires_grad
    return seen.held_bytes


@pytest.mark.parametrize("how", [NONE, SELECTIVE, FULL])
@pytest.mark.parametrize(
    ("precision", "packing", "kernel"),
    [
        ("float32", False, MATH),
        ("float32", True, MATH),
        pytest.param("float64", False, MATH, marks=pytest.mark.slow),
        ("pure_bfloat16", True, MATH),
        pytest.param("pure_bfloat16", True, FUSED, marks=pytest.mark.slow),
        ("float32", True, FUSED),
    ],
)
def test_each_layer_keeps_what_the_plan_says(
    precision: str, packing: bool, kernel: SDPBackend, how: ActivationCheckpointing
) -> None:
    changes = {"precision": precision, "data__packing": packing, "activation_checkpointing": how}
    four, two = (kept_by_torch(spec_with(n, **changes), kernel) for n in (4, 2))
    spec = spec_with(1, **changes)
    asked = on(spec, A100 if kernel is MATH else HARDWARE)
    assert (kernel_of(asked) is AttentionKernel.MATH) == (kernel is MATH)
    planned = kept_by_layer(spec, how).total * SAMPLES * LENGTH
    for kept in (scores, mask):
        planned += kept(asked, 2, 1).kept - kept(asked, 1, 1).kept
    assert (four - two) / 2 == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize(
    ("precision", "packing"),
    [("float32", False), ("float32", True), ("float64", False), ("pure_bfloat16", True)],
)
def test_a_layer_at_work_has_twice_its_scores_beside_those_that_it_keeps(
    precision: str, packing: bool
) -> None:
    spec = spec_with(1, precision=precision, data__packing=packing)
    query, key, value = (
        torch.randn(
            SAMPLES, heads, LENGTH, 16, dtype=feature_dtype_of(spec.precision), requires_grad=True
        )
        for heads in (4, 2, 2)
    )
    found = 0
    with sdpa_kernel(MATH):
        for _ in range(2):  # the first time libraries allocate memory of their own
            gc.collect()
            malloc = Malloc()
            before = malloc.in_use()
            mixed = attend(query, key, value, documents() if packing else None)
            kept, highest = malloc.in_use() - before, Highest(malloc)
            with highest:
                mixed.sum().backward()
            found = highest.num_bytes - before - kept
    assert found == pytest.approx(scores(on(spec, A100), 1, 1).passing, rel=0.02)


@pytest.mark.parametrize("how", [NONE, SELECTIVE, FULL])
@pytest.mark.parametrize(
    ("packing", "kernel"),
    [(False, MATH), pytest.param(True, MATH, marks=pytest.mark.slow), (True, FUSED)],
)
def test_the_passes_of_a_model_peak_where_the_plan_says(
    packing: bool, kernel: SDPBackend, how: ActivationCheckpointing
) -> None:
    spec = spec_with(4, data__packing=packing, activation_checkpointing=how)
    model = build_model(spec, device=CPU)
    forget_activations(model, how)
    tokens_BT = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    found = 0
    with sdpa_kernel(kernel):
        for _ in range(2):
            gc.collect()  # nothing of other tests is freed meanwhile
            malloc = Malloc()
            before, highest = malloc.in_use(), Highest(malloc)
            with highest:
                logits_BTV = model(tokens_BT, documents() if packing else None)
                token_loss_sum(logits_BTV, tokens_BT).backward()
            del logits_BTV
            model.zero_grad()
            found = highest.num_bytes - before
    asked = on(spec, A100 if kernel is MATH else HARDWARE)
    [share] = shares(asked)
    gradients = FLOAT32 * sum(weight.numel() for weight in model.parameters())
    planned = gradients + in_passes(asked, share).less(gradients).total
    # A tenth, and that small a model's gradients, which a recomputed layer is beside.
    assert found == pytest.approx(planned, rel=0.12)


def planned(**changes: Any) -> Plan:
    """Float32 and grouped heads, which no fused kernel of an A100 takes."""
    spec = make_spec(
        **{
            "model": {**GROUPED, "layers": 2, "width": 256},
            "training__global_batch_size": 1,
            "data__sequence_length": 1024,
            **changes,
        }
    )
    return plan(spec, nodes=1, ranks_per_node=1, hardware=A100)


def terms(found: Plan) -> dict[str, float]:
    return {term.name: term.gib for term in found.memory}


LONG = {"data__sequence_length": 16_384}
WIDE = {"model": {**GROUPED, "layers": 2, "width": 4096, "heads": 4}}
WORDS = {"data__tokenizer": "characters", "data__vocabulary_size": 128_000}
MANY = {"training__global_batch_size": 64, "data__sequence_length": 128}


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        (LONG, "scores"),
        (WIDE, "optimizer"),
        (WORDS | MANY, "logits"),
        (MANY, "activations"),
    ],
)
def test_scores_are_the_largest_part_of_long_samples_alone(
    changes: dict[str, Any], largest: str
) -> None:
    found = terms(planned(**changes))
    del found["process"]
    assert max(found, key=lambda name: found[name]) == largest, found


def test_scores_grow_with_the_square_of_the_tokens_and_decide_what_fits() -> None:
    fused = {"precision": "bfloat16", **LONG}
    short, long = (planned(data__sequence_length=tokens) for tokens in (8192, 16_384))
    assert terms(long)["scores"] == pytest.approx(4 * terms(short)["scores"], rel=0.02)
    # 2 layers and the gradients before and after softmax in one of them, of 4 heads, 4 bytes each.
    assert terms(long)["scores"] * GIB == pytest.approx(4 * 4 * 4 * 16_384**2, rel=0.05)
    assert (long.attention, planned(**fused).attention) == ("math", "flash")
    assert "scores" not in terms(planned(**fused))
    whole = planned(data__sequence_length=65_536)
    assert not whole.fits
    assert planned(precision="bfloat16", data__sequence_length=65_536).fits
    for phase in ("forward", "backward"):
        [needed] = long.needed_by_phase_gib
        assert needed[phase] > terms(long)["scores"]


def test_tensor_ranks_share_heads_and_ulysses_ranks_trade_them() -> None:
    def kept(**parallelism: Any) -> float:
        spec = spec_with(4, parallelism=parallelism)
        asked = resolve(spec, nodes=1, ranks_per_node=2, hardware=known_node("a100-80gb", gpus=2))
        return scores(asked, 4, 1).kept / asked.micro_batch_size

    whole = kept(strategy="ddp")
    assert kept(strategy="tensor") == whole / 2
    assert kept(strategy="context", ulysses_degree=2) == whole / 2
    assert kept(strategy="context") == 0, "rings have kernels of their own"


def test_a_mask_is_a_term_where_the_kernel_keeps_its_bias() -> None:
    """An H100 takes masks of grouped heads in cuDNN: 2 layers keep a number of 2 bytes per pair."""
    spec = make_spec(
        model={**GROUPED, "layers": 2},
        data__sequence_length=8192,
        data__packing=True,
        training__global_batch_size=1,
        precision="bfloat16",
    )
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=known_node("h100-80gb", gpus=1))
    assert found.attention == "cudnn"
    assert terms(found)["mask"] * GIB == pytest.approx(2 * 2 * 8192**2, rel=0.5)
    assert terms(found)["mask"] * GIB >= 2 * 2 * 8192**2 - GIB
    plain = spec.model_copy(update={"data": spec.data.model_copy(update={"packing": False})})
    found = plan(plain, nodes=1, ranks_per_node=1, hardware=known_node("h100-80gb", gpus=1))
    assert "mask" not in terms(found)
