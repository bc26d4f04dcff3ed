"""Catalog of what this version can train: one line per strategy, model and precision.

Torch-free.
"""

from dataclasses import dataclass
from typing import Literal

from strategies.plan.layout import Layout
from strategies.plan.spec import (
    ActivationCheckpointing,
    Float32Matmul,
    Gather,
    GradientCompression,
    ModelName,
    Offload,
    OptimizerName,
    Precision,
    Reduction,
    Sampling,
    Strategy,
    TrainSpec,
)

BYTES_PER_WEIGHT = {
    Precision.FLOAT64: 8,
    Precision.FLOAT32: 4,
    Precision.BFLOAT16: 4,
    Precision.FLOAT16: 4,
    Precision.PURE_BFLOAT16: 2,
}
BYTES_PER_FEATURE = {
    **BYTES_PER_WEIGHT,
    Precision.BFLOAT16: 2,
    Precision.FLOAT16: 2,
}
COMPUTED_IN_HALF = (Precision.BFLOAT16, Precision.FLOAT16)  # beside weights in float32

SPMD = "strategies.train.engines.spmd:SpmdEngine"
PIPELINE = "strategies.train.engines.pipeline:PipelineEngine"
ZERO = "strategies.train.engines.zero:ZeroEngine"
LOCAL_SGD = "strategies.train.engines.local_sgd:LocalSgdEngine"
TORCH_AXES = ("pipeline", "replicate", "shard", "context", "tensor")


ResultClass = Literal["exact", "band", "exempt"]  # promise about a loss curve
RESULT_CLASSES: tuple[ResultClass, ...] = ("exact", "band", "exempt")  # best first
ONE_ORDER = (Sampling.AUTO, Sampling.GLOBAL, Sampling.STREAMED)  # for all ranks
HALF_PRECISION = (Precision.BFLOAT16, Precision.FLOAT16, Precision.PURE_BFLOAT16)


@dataclass(frozen=True)
class Technique:
    """Implementation of a strategy: its class, an `engine.Engine`, and the axes it supports."""

    engine: str  # "module:Class"
    axes: tuple[str, ...]
    open_axis: str | None  # axis of the ranks that the given degrees leave over
    result_class: ResultClass


TECHNIQUES = {
    Strategy.SINGLE: Technique(SPMD, (), None, "exact"),
    Strategy.DDP: Technique(
        SPMD, ("pipeline", "replicate", "context", "tensor"), "replicate", "exact"
    ),
    Strategy.FSDP: Technique(SPMD, ("pipeline", "shard", "context", "tensor"), "shard", "exact"),
    Strategy.HSDP: Technique(SPMD, TORCH_AXES, "replicate", "exact"),
    Strategy.ZERO1: Technique(ZERO, ("shard",), "shard", "exact"),
    Strategy.ZERO2: Technique(ZERO, ("shard",), "shard", "exact"),
    Strategy.ZERO3: Technique(ZERO, ("shard",), "shard", "exact"),
    Strategy.TENSOR: Technique(SPMD, TORCH_AXES, "tensor", "exact"),
    Strategy.PIPELINE: Technique(SPMD, TORCH_AXES, "pipeline", "exact"),
    Strategy.NAIVE: Technique(SPMD, ("pipeline",), "pipeline", "exact"),
    Strategy.CONTEXT: Technique(SPMD, TORCH_AXES, "context", "exact"),
    Strategy.LOCAL_SGD: Technique(LOCAL_SGD, ("replicate",), "replicate", "exempt"),
}

MODELS = {
    ModelName.GPT: "strategies.train.models.gpt:GPT",
    ModelName.LLAMA: "strategies.train.models.llama:Llama",
    ModelName.MLP: "strategies.train.models.mlp:MLP",
    ModelName.CNN: "strategies.train.models.cnn:CNN",
}


def promised(strategy: Strategy, spec: TrainSpec) -> ResultClass:
    """Return the promise of a run's loss curve: the weakest of its parts."""
    technique = TECHNIQUES.get(strategy)
    by_strategy: ResultClass = "exact" if technique is None else technique.result_class
    rounded = spec.precision in HALF_PRECISION or multiplies_in_tf32(spec)
    by_precision: ResultClass = "band" if rounded else "exact"
    by_sampling: ResultClass = "exact" if spec.data.sampling in ONE_ORDER else "exempt"
    rounds = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    by_optimizer: ResultClass = "exempt" if rounds else "exact"
    gradients = spec.parallelism.gradient_compression, spec.parallelism.gradient_delay
    by_gradients: ResultClass = "exact" if gradients == (GradientCompression.NONE, 0) else "exempt"
    parts = by_strategy, by_precision, by_sampling, by_optimizer, by_gradients
    return max(parts, key=RESULT_CLASSES.index)


def frozen_dtype(spec: TrainSpec) -> str | None:
    """Return the type of a run's frozen matrices; None if it is the type of all weights.

    A checkpoint's type that the spec leaves open is assumed to have 16 bits.
    """
    if spec.adapter is None or spec.precision not in COMPUTED_IN_HALF:
        return None
    if spec.adapter.frozen_dtype is None and spec.model.checkpoint is not None:
        return str(spec.precision)
    return spec.adapter.frozen_dtype


def bytes_per_frozen(spec: TrainSpec) -> int:
    """Return the bytes of one number of a run's frozen matrices, unless they are quantised."""
    kind = frozen_dtype(spec)
    return BYTES_PER_WEIGHT[spec.precision] if kind in (None, "float32") else 2


def gathers_in_half(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if ranks that torch shards fully gather 16-bit copies of float32 weights."""
    return layout.shard > 1 and computes_in_half(spec)


def reduces_each(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if torch's fully sharded ranks add every micro-batch's gradients to their parts.

    torch's pipeline stages reduce once.
    """
    asked = spec.parallelism.reduce_gradients
    if layout.shard == 1 or layout.pipeline > 1 or asked is Reduction.ONCE:
        return False
    return asked is Reduction.EACH_MICRO_BATCH or gathers_in_half(spec, layout)


def computes_in_half(spec: TrainSpec) -> bool:
    """Return True if a text model computes in 16 bits, with weights that are updated in float32."""
    return not spec.model.name.reads_images and spec.precision in COMPUTED_IN_HALF


def keeps_on_host(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if ranks that torch shards fully keep their parts in the host's memory: weights,
    gradients and optimizer state."""
    return layout.shard > 1 and spec.parallelism.offload_parameters is Offload.CPU


def shares_copies(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if the micro-batches of a step share half-precision copies of a stage's matrices.

    Where a layer is computed again its copies are made again, one layer's at a time.
    """
    keeps_all = spec.activation_checkpointing is ActivationCheckpointing.NONE
    return computes_in_half(spec) and keeps_all and layout.shard == 1 and layout.pipeline > 1


def multiplies_together(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if tensor-parallel ranks multiply features with all matrices that read them in
    one node of autograd's graph, which sends while it multiplies.

    An adapter reads them too, and a matrix that is gathered by itself must be called by itself.
    """
    one_call = spec.adapter is None and spec.tiling.gather is not Gather.MATRIX
    is_text = not spec.model.name.reads_images
    return layout.tensor > 1 and is_text and one_call


def gathers_again(spec: TrainSpec, layout: Layout) -> bool:
    """Return True if ranks that share a sample's tokens gather the features of all for the
    backward pass again, instead of keeping them. A layer that is computed again gathers anyway."""
    keeps_all = spec.activation_checkpointing is ActivationCheckpointing.NONE
    splits_tokens = spec.parallelism.sequence_parallel
    return splits_tokens and keeps_all and multiplies_together(spec, layout)


def multiplies_in_tf32(spec: TrainSpec) -> bool:
    """Return True if float32 products may be rounded to TF32."""
    is_float32 = spec.precision is Precision.FLOAT32
    return is_float32 and spec.float32_matmul is Float32Matmul.TF32


def engine_path(strategy: Strategy, layout: Layout) -> str:
    """Return `module:Class` of the engine that runs a strategy in a layout."""
    engine = TECHNIQUES[strategy].engine
    return PIPELINE if engine == SPMD and layout.pipeline > 1 else engine
