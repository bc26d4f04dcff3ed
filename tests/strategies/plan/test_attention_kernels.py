"""The kernel of attention on a GPU, by torch's constraints; the GPU itself is asked by `prove`."""

from typing import Any

import pytest

from strategies.plan.attention_kernels import attention_kernel
from strategies.plan.gpus import known_node
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import Precision
from tests.strategies.support.training_runs import make_spec

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
PLAIN = {"gpu": A100, "masked": False, "grouped": False, "head_width": 64}


@pytest.mark.parametrize(
    ("precision", "changes", "kernel"),
    [
        ("bfloat16", {}, "flash"),
        ("float16", {"grouped": True}, "flash"),
        ("pure_bfloat16", {}, "flash"),
        ("bfloat16", {"head_width": 512}, "efficient"),
        ("bfloat16", {"masked": True}, "efficient"),
        ("bfloat16", {"masked": True, "grouped": True}, "math"),
        ("float32", {}, "efficient"),
        ("float32", {"masked": True}, "efficient"),
        ("float32", {"grouped": True}, "math"),
        ("float64", {}, "math"),
        ("float16", {"gpu": "Tesla T4"}, "efficient"),
        ("float16", {"gpu": "Tesla V100-SXM2-16GB", "grouped": True}, "math"),
        ("float16", {"gpu": "Quadro RTX 6000", "grouped": True}, "math"),
        ("float16", {"gpu": "NVIDIA RTX 6000 Ada Generation", "grouped": True}, "flash"),
        ("float16", {"gpu": None, "grouped": True}, "flash"),
        ("bfloat16", {"gpu": H100, "masked": True, "grouped": True}, "cudnn"),
        ("bfloat16", {"gpu": H100, "head_width": 192}, "flash"),
        ("float32", {"gpu": H100, "grouped": True}, "math"),
    ],
)
def test_a_kernel_is_taken_by_type_mask_and_heads(
    precision: str, changes: dict[str, Any], kernel: str
) -> None:
    assert attention_kernel(Precision(precision), **PLAIN | changes) == kernel


def test_the_plan_warns_of_scores_that_are_kept() -> None:
    def on_gpu(**changes: Any) -> Plan:
        spec = make_spec(model__name="llama", **changes)
        return plan(spec, nodes=1, ranks_per_node=1, hardware=known_node("a100-80gb", gpus=1))

    [slow] = on_gpu(model__kv_heads=2).warnings
    assert slow.startswith(
        "float32 leaves most of this GPU unused: its products reach 19.5 TFLOP/s"
    )
    assert on_gpu(model__kv_heads=2).attention == "efficient"
    said = on_gpu(model__kv_heads=2, precision="float64").warnings[-1]
    assert "without a fused kernel" in said
    assert said.endswith("take precision bfloat16")
    assert on_gpu(precision="float64").attention == "math"
    assert on_gpu(model__kv_heads=2, precision="bfloat16").warnings == []
    older = make_spec(model__name="llama", model__kv_heads=2, precision="float16")
    on_t4 = plan(older, nodes=1, ranks_per_node=1, hardware=known_node("t4-16gb", gpus=1))
    assert on_t4.attention == "efficient"
    assert not any("without a fused kernel" in told for told in on_t4.warnings)
    assert on_gpu().attention == "efficient"
    assert on_gpu().warnings == [slow], "a T4 has no bfloat16, an A100 has"
    assert on_gpu(float32_matmul="tf32").warnings == []
    assert not any("leaves most" in told for told in on_t4.warnings)
