"""Warnings about precisions that the hardware only emulates, or is slow in."""

from collections.abc import Iterator

from strategies.plan.catalog import HALF_PRECISION
from strategies.plan.gpus import speeds_of
from strategies.plan.hardware import Hardware
from strategies.plan.spec import Float32Matmul, Precision, TrainSpec


def unused_tf32(spec: TrainSpec, hardware: Hardware) -> Iterator[str]:
    """Warn if the spec asks for TF32 where nothing is computed in it."""
    if spec.float32_matmul is not Float32Matmul.TF32:
        return
    gpu = speeds_of(hardware)
    if spec.precision is not Precision.FLOAT32:
        yield f"float32_matmul tf32 changes nothing: products are computed in {spec.precision}"
    elif hardware.device == "cpu":
        yield "float32_matmul tf32 is for GPUs: on a CPU products stay exact"
    elif gpu is not None and gpu.tf32 is None:
        yield f"{hardware.model} has no units for TF32: products stay exact"


def slow_float32(spec: TrainSpec, hardware: Hardware) -> Iterator[str]:
    """Warn if products are computed in exact float32 on a GPU that has units for bfloat16."""
    gpu = speeds_of(hardware)
    if hardware.device == "cpu" or gpu is None or gpu.bfloat16 is None:
        return
    if spec.precision is Precision.FLOAT32 and spec.float32_matmul is Float32Matmul.EXACT:
        yield (
            f"float32 leaves most of this GPU unused: its products reach {gpu.float32:g} TFLOP/s, "
            f"those of bfloat16 {gpu.bfloat16:g}; take precision bfloat16 unless exact float32 is "
            "what you want"
        )


def emulated(precision: Precision, hardware: Hardware) -> Iterator[str]:
    """Warn if the hardware has no units for a precision."""
    if precision not in HALF_PRECISION:
        return
    gpu = speeds_of(hardware)
    if hardware.device == "cpu":
        yield (
            f"{precision} on a CPU saves activation memory but seldom time: without hardware "
            "support a step takes longer than in float32"
        )
    elif gpu is not None:
        kind, unit = (
            ("float16", gpu.float16)
            if precision is Precision.FLOAT16
            else ("bfloat16", gpu.bfloat16)
        )
        if unit is None:
            instead = f"; float16 reaches {gpu.float16:g}" if gpu.float16 else ""
            yield (
                f"{hardware.model} has no hardware support for {kind}, so {precision} "
                f"is emulated and is not faster than float32 ({gpu.float32:g} TFLOP/s){instead}"
            )
