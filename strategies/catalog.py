"""What this version can train with: one line per strategy, model and precision. Torch-free."""

from dataclasses import dataclass
from typing import Literal

from strategies.spec import ModelName, Precision, Strategy

VOCABULARY = {"bytes": 256}
BYTES_PER_NUMBER = {
    Precision.FLOAT64: 8,
    Precision.FLOAT32: 4,
    Precision.BFLOAT16: 2,
    Precision.FLOAT16: 2,
}
SUPPORTED_PRECISIONS = (Precision.FLOAT32, Precision.FLOAT64)


@dataclass(frozen=True)
class Technique:
    """How a strategy is run: the class that implements `engine.Engine`, and the axes it may use."""

    engine: str  # "module:Class"
    axes: tuple[str, ...]
    result_class: Literal["exact", "band", "exempt"]  # what its loss curve promises


TECHNIQUES = {
    Strategy.SINGLE: Technique("strategies.single:SingleEngine", (), "exact"),
    Strategy.DDP: Technique("strategies.ddp:DDPEngine", ("replicate",), "exact"),
}

MODELS = {
    ModelName.GPT: "strategies.models.gpt:GPT",
    ModelName.LLAMA: "strategies.models.llama:Llama",
}
