"""Copies of shared keys: the plan beside what torch keeps, and what they save."""

from typing import Any

import pytest

from strategies.plan.attention_kernels import AttentionKernel, kernel_of
from strategies.plan.estimates.activations import kept_by_layer
from strategies.plan.estimates.scores import copied_keys, mask, scores
from strategies.plan.gpus import known_node
from strategies.plan.planner import Plan, plan, resolve
from strategies.plan.spec import ActivationCheckpointing
from strategies.train.models import attention
from tests.strategies.plan.estimates.test_scores import (
    A100,
    FUSED,
    LENGTH,
    SAMPLES,
    kept_by_torch,
    on,
    spec_with,
)
from tests.strategies.support.training_runs import make_spec

NONE, SELECTIVE, FULL = ActivationCheckpointing


@pytest.mark.parametrize("how", [NONE, SELECTIVE, FULL])
@pytest.mark.parametrize(
    ("precision", "packing"), [("float32", False), ("float32", True), ("pure_bfloat16", True)]
)
def test_each_layer_keeps_what_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, precision: str, packing: bool, how: ActivationCheckpointing
) -> None:
    monkeypatch.setattr(attention, "repeats_keys_here", lambda *_: True)
    changes = {"precision": precision, "data__packing": packing, "activation_checkpointing": how}
    four, two = (kept_by_torch(spec_with(n, **changes), FUSED) for n in (4, 2))
    spec = spec_with(1, **changes)
    asked = on(spec, A100)
    assert kernel_of(asked) is AttentionKernel.EFFICIENT
    planned = kept_by_layer(spec, how).total * SAMPLES * LENGTH
    for kept in (scores, mask, copied_keys):
        planned += kept(asked, 2, 1).kept - kept(asked, 1, 1).kept
    assert (four - two) / 2 == pytest.approx(planned, rel=0.02)


def planned(gpu: str, **changes: Any) -> Plan:
    spec = make_spec(
        model={"name": "llama", "layers": 8, "width": 2048, "heads": 16, "kv_heads": 8},
        data__sequence_length=2048,
        training__global_batch_size=4,
        **changes,
    )
    return plan(spec, nodes=1, ranks_per_node=1, hardware=known_node(gpu, gpus=1))


@pytest.mark.parametrize(
    ("gpu", "changes", "kernel", "is_copied"),
    [
        ("a100-80gb", {"precision": "bfloat16", "data__packing": True}, "efficient", True),
        ("h100-80gb", {"precision": "bfloat16", "data__packing": True}, "cudnn", False),
        ("a100-80gb", {"precision": "bfloat16"}, "flash", False),
        ("h100-80gb", {}, "efficient", True),
        ("h100-80gb", {"precision": "float64"}, "math", False),
    ],
)
def test_keys_are_copied_where_only_separate_heads_have_a_fused_kernel(
    gpu: str, changes: dict[str, Any], kernel: str, is_copied: bool
) -> None:
    found = planned(gpu, **changes)
    assert found.attention == kernel
    terms = {term.name: term.gib for term in found.memory}
    assert ("scores" in terms) == (kernel == "math")
    # 8 layers keep 8 heads of keys and of values more, of 128 features, for 4 samples of 2,048.
    size = 2 if changes else 4
    assert terms.get("keys", 0.0) == pytest.approx(is_copied * size / 2**3, rel=0.15)


def test_tensor_ranks_copy_the_keys_of_their_own_heads() -> None:
    def kept(**parallelism: Any) -> float:
        spec = spec_with(4, parallelism=parallelism)
        asked = resolve(spec, nodes=1, ranks_per_node=2, hardware=known_node("a100-80gb", gpus=2))
        return copied_keys(asked, 4, 1).kept / asked.micro_batch_size

    whole = kept(strategy="ddp")
    assert whole > 0
    assert kept(strategy="tensor") == whole / 2
    assert kept(strategy="context", ulysses_degree=2) == whole / 2
    assert kept(strategy="context") == 0, "rings have kernels of their own"
