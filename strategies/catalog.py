"""What this version can train with: one line per strategy, model and precision. Torch-free."""

from dataclasses import dataclass
from typing import Literal

from strategies.layout import Layout
from strategies.spec import ModelName, Precision, Strategy

BYTES_PER_NUMBER = {
    Precision.FLOAT64: 8,
    Precision.FLOAT32: 4,
    Precision.BFLOAT16: 2,
    Precision.FLOAT16: 2,
}
SUPPORTED_PRECISIONS = (Precision.FLOAT32, Precision.FLOAT64)

SPMD = "strategies.spmd:SpmdEngine"
PIPELINE = "strategies.pipeline:PipelineEngine"
TORCH_AXES = ("pipeline", "replicate", "shard", "context", "tensor")


@dataclass(frozen=True)
class Technique:
    """How a strategy is run: the class that implements `engine.Engine`, and the axes it may use."""

    engine: str  # "module:Class"
    axes: tuple[str, ...]
    open_axis: str | None  # takes the ranks that the given degrees leave
    result_class: Literal["exact", "band", "exempt"]  # what its loss curve promises


TECHNIQUES = {
    Strategy.SINGLE: Technique(SPMD, (), None, "exact"),
    Strategy.DDP: Technique(
        SPMD, ("pipeline", "replicate", "context", "tensor"), "replicate", "exact"
    ),
    Strategy.FSDP: Technique(SPMD, ("pipeline", "shard", "context", "tensor"), "shard", "exact"),
    Strategy.HSDP: Technique(SPMD, TORCH_AXES, "replicate", "exact"),
    Strategy.TENSOR: Technique(SPMD, TORCH_AXES, "tensor", "exact"),
    Strategy.PIPELINE: Technique(SPMD, TORCH_AXES, "pipeline", "exact"),
    Strategy.NAIVE: Technique(SPMD, ("pipeline",), "pipeline", "exact"),
    Strategy.CONTEXT: Technique(SPMD, TORCH_AXES, "context", "exact"),
}

MODELS = {
    ModelName.GPT: "strategies.models.gpt:GPT",
    ModelName.LLAMA: "strategies.models.llama:Llama",
}


def engine_path(strategy: Strategy, layout: Layout) -> str:
    """`module:Class` of the engine that runs a strategy in a layout."""
    engine = TECHNIQUES[strategy].engine
    return PIPELINE if engine == SPMD and layout.pipeline > 1 else engine
