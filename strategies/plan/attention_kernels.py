"""Kernel that torch's fused attention takes on a GPU. Torch-free.

Source: constraints of torch's sdp_utils.cpp, tried in the order flash, efficient, math. cuDNN's
kernel comes after math, but first on GPUs that prefer it (capabilities 9.0 and 10.0); seen on an
H100 with torch 2.11 and cuDNN 9.19 by `trainyard prove`.
"""

from collections.abc import Iterator
from enum import StrEnum

from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import head_width, heads, kv_heads
from strategies.plan.spec import Precision

FLASH_HEADS_UP_TO, CUDNN_HEADS_UP_TO = 256, 128  # features per head
# Names of GPUs with a capability below 8.0, which have no flash, begin with these.
BEFORE_FLASH = ("Tesla", "Quadro", "TITAN", "GeForce GTX", "GeForce RTX 20")
PREFER_CUDNN = ("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200", "NVIDIA B200", "NVIDIA GB200")
HALF = (Precision.BFLOAT16, Precision.FLOAT16, Precision.PURE_BFLOAT16)


class AttentionKernel(StrEnum):
    """cudnn, flash and efficient keep no scores, math keeps all of them in every layer."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


def attention_kernel(
    precision: Precision, *, gpu: str | None, masked: bool, grouped: bool, head_width: int
) -> AttentionKernel:
    """Return the kernel of a GPU; of one without a known name as of those from 2020 on.

    `gpu`: its name in the driver. `masked`: with a mask instead of plain causal attention.
    `grouped`: several query heads share a head of keys.
    """
    half = precision in HALF
    if half and head_width <= CUDNN_HEADS_UP_TO and (gpu or "").startswith(PREFER_CUDNN):
        return AttentionKernel.CUDNN
    has_flash = not (gpu or "").removeprefix("NVIDIA ").startswith(BEFORE_FLASH)
    if half and has_flash and not masked and head_width <= FLASH_HEADS_UP_TO:
        return AttentionKernel.FLASH
    if precision is Precision.FLOAT64:
        return AttentionKernel.MATH
    if not grouped:
        return AttentionKernel.EFFICIENT
    return AttentionKernel.MATH


def repeats_keys(precision: Precision, *, gpu: str | None, masked: bool, head_width: int) -> bool:
    """Return True if models copy keys and values that query heads share, one for each of them.

    They do where torch has a fused kernel for separate heads, but none for shared ones.
    """

    def kernel(*, grouped: bool) -> AttentionKernel:
        return attention_kernel(
            precision, gpu=gpu, masked=masked, grouped=grouped, head_width=head_width
        )

    return kernel(grouped=True) is AttentionKernel.MATH is not kernel(grouped=False)


def copies_keys(resolved: ResolvedSpec) -> bool:
    """Return True if the layers of a run on GPUs copy keys and values, by `repeats_keys`."""
    spec, model = resolved.spec, resolved.spec.model
    if resolved.hardware.device == "cpu" or not attends_whole(resolved):
        return False
    return kv_heads(model) != heads(model) and repeats_keys(
        spec.precision,
        gpu=resolved.hardware.model,
        masked=spec.data.packing,
        head_width=head_width(model),
    )


def attends_whole(resolved: ResolvedSpec) -> bool:
    """Return True if the queries of a text model meet all their keys in one call.

    In a ring they don't: its blocks have kernels of their own, which keep neither scores nor masks.
    """
    is_text = not resolved.spec.model.name.reads_images
    return is_text and resolved.spec.parallelism.ulysses_degree == resolved.layout.context


def kernel_of(resolved: ResolvedSpec) -> AttentionKernel | None:
    """Return the kernel of a run's layers; None on a CPU, in a ring and for images."""
    spec, model = resolved.spec, resolved.spec.model
    if resolved.hardware.device == "cpu" or not attends_whole(resolved):
        return None
    return attention_kernel(
        spec.precision,
        gpu=resolved.hardware.model,
        masked=spec.data.packing,
        grouped=kv_heads(model) != heads(model) and not copies_keys(resolved),
        head_width=head_width(model),
    )


def scores_are_kept(resolved: ResolvedSpec) -> Iterator[str]:
    """Warn if attention on a GPU takes the kernel that keeps every score."""
    if kernel_of(resolved) is AttentionKernel.MATH:
        yield (
            f"attention in {resolved.spec.precision} runs without a fused kernel on a GPU: it is "
            "slow, and its scores, heads x tokens x tokens per sample, are kept in memory; take "
            "precision bfloat16"
        )
