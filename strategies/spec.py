"""What to train and how it is split over ranks: the part of a job's spec that training needs.

Fields that contradict each other are not refused here but by `planner.plan`, which knows the
hardware and names every problem at once; here each field is checked alone.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails, PydanticKnownError


class ModelName(StrEnum):
    GPT = "gpt"
    LLAMA = "llama"
    MLP = "mlp"
    CNN = "cnn"

    @property
    def reads_images(self) -> bool:
        """Whether its samples are labelled images; the others read text."""
        return self in (ModelName.MLP, ModelName.CNN)


class Strategy(StrEnum):
    """The kinds of parallelism; `catalog` says which of them this version can run."""

    AUTO = "auto"
    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    HSDP = "hsdp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    CONTEXT = "context"
    NAIVE = "naive"
    LOCAL_SGD = "local_sgd"


class Precision(StrEnum):
    """What is computed in; weights and optimizer stay in float32 unless the name says otherwise."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    PURE_BFLOAT16 = "pure_bfloat16"


class PipelineSchedule(StrEnum):
    """The order of a pipeline's forward and backward passes, by torch's names."""

    GPIPE = "GPipe"
    ONE_F_ONE_B = "1F1B"
    INTERLEAVED = "Interleaved1F1B"
    INTERLEAVED_ZERO_BUBBLE = "InterleavedZeroBubble"
    ZBV = "ZBVZeroBubble"


class ActivationCheckpointing(StrEnum):
    """What a layer keeps for its backward pass: all; matrix products; only its input."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Gather(StrEnum):
    """layer: a layer, beside embedding and head, which stay until the pass has ended. matrix: one
    matrix, wherever it is."""

    LAYER = "layer"
    MATRIX = "matrix"


class GradientCompression(StrEnum):
    """What gradients are sent as; float16 is finer than bfloat16 by 3 bits."""

    NONE = "none"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Offload(StrEnum):
    """Where a state lives between its uses: on its device, in the host's memory, in files on the
    node's disk."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_TRITON = "adamw_triton"
    SGD = "sgd"
    LARS = "lars"
    LAMB = "lamb"


class LearningRateScaling(StrEnum):
    """How the learning rate follows the global batch size."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class Sampling(StrEnum):
    """Which samples a data-parallel rank takes of a step: its share of one global order (the
    law); its share of its own part of the data; whatever its own seed draws."""

    GLOBAL = "global"
    PARTITIONED = "partitioned"
    INDEPENDENT = "independent"


class AdapterTarget(StrEnum):
    """The matrices of a layer."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "output"
    GATE = "gate"
    UP = "up"
    DOWN = "down"


class FrozenBase(StrEnum):
    """How the layers' frozen matrices are stored."""

    NONE = "none"
    NF4 = "nf4"
    INT8 = "int8"


class Schedule(StrEnum):
    """The learning rate after the warm-up."""

    COSINE = "cosine"
    CONSTANT = "constant"


AUTO = "auto"  # left to the planner

# The upper bounds keep every product of fields a sane integer; none is a promise that it fits.
Layers = Annotated[int, Field(strict=True, ge=1, le=1024)]
Width = Annotated[int, Field(strict=True, ge=2, le=131_072)]
Heads = Annotated[int, Field(strict=True, ge=1, le=4096)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=1_048_576)]
Steps = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
Degree = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Beta = Annotated[float, Field(ge=0, lt=1)]
HUB = "hub:"  # begins the name of a checkpoint that is not uploaded but fetched by the node
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
Checkpoint = Annotated[
    str, Field(max_length=256, pattern=f"^({NAME}|{HUB}{NAME}/{NAME}(@[A-Za-z0-9._/-]+)?)$")
]
Pixels = Annotated[int, Field(strict=True, ge=1, le=4096)]


class SpecPart(BaseModel):
    """Frozen, no unknown fields, no infinities; the line under a field is its description."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class RopeScaling(SpecPart):
    """How Llama 3.1 stretches rotary positions over longer texts, by config.json's names."""

    rope_type: Literal["llama3"]
    factor: Annotated[float, Field(ge=1, le=1e6)]
    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    original_max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=1_048_576)]


class ModelSpec(SpecPart):
    """The network, built from nothing, or with the weights of a checkpoint."""

    name: ModelName
    """Text: gpt (LayerNorm, GELU, every head its own keys), llama (RMSNorm, SwiGLU, grouped keys).
    Images: mlp (every layer a matrix), cnn (every layer a convolution that halves the image)."""
    layers: Layers
    width: Width
    """Features per token; divisible by heads, with an even quotient (rotary positions). mlp:
    features per image; cnn: channels."""
    heads: Annotated[Heads | None, Field(validate_default=True)] = None
    """Text only, and required there."""
    kv_heads: Heads | None = None
    """llama only: heads of keys and values, a divisor of heads. Default: as many as heads."""
    ffn_width: Width | None = None
    """Inner width of the feed-forward part. Default: gpt 4 x width; llama 8/3 x width, rounded
    up to a multiple of 32."""
    tied_embeddings: bool = False
    """Text only: whether the head uses the embedding's matrix."""
    attention_bias: bool = False
    """llama only: biases of query, key and value, as Qwen2 has them."""
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """What norms add to a variance."""
    rope_base: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    """Base of the rotary positions' frequencies (rope_theta)."""
    rope_scaling: RopeScaling | None = None
    checkpoint: Checkpoint | None = None
    """llama only: a Hugging Face model to start from, by the name or id it was uploaded under, or
    as `hub:owner/name@revision`. The other fields must be those of its config.json: `trainyard
    models show` prints them."""

    @field_validator("heads")
    @classmethod
    def text_needs_heads(cls, heads: int | None, info: ValidationInfo) -> int | None:
        name = info.data.get("name")
        if heads is None and name is not None and not name.reads_images:
            raise PydanticKnownError("missing")
        return heads


class DataSpec(SpecPart):
    """The text and how it is cut, or the images and what they show."""

    dataset: Annotated[
        str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    ]
    """`python-stdlib` (text) or `digits` (images), built in, or the name or id of an uploaded
    dataset."""
    tokenizer: Literal["bytes", "characters", "huggingface"] = "bytes"
    """Text only. bytes: 256 tokens. characters: one token per different character of the text.
    huggingface: that of model.checkpoint."""
    vocabulary_size: Annotated[int, Field(strict=True, ge=2, le=1_114_112)] | None = None
    """characters: how many different ones the text has, or more (to divide by a tensor degree,
    say); a text that has more ends the run at its start. huggingface: as the checkpoint has it."""
    sequence_length: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] | None = None
    """Text only, and required there: tokens per sample."""
    image_shape: Annotated[tuple[Pixels, ...], Field(min_length=2, max_length=3)] | None = None
    """Images only: height, width and, where there are several, channels. Known of digits."""
    classes: Annotated[int, Field(strict=True, ge=2, le=65_536)] | None = None
    """Images only: labels are 0, ..., classes - 1. Known of digits."""
    pixel_mean: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Images only: taken off every pixel, once bytes have been divided by 255."""
    pixel_deviation: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Images only: what every pixel is divided by after that."""
    held_out: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share of the text or of the images, at its end, that is never trained on but evaluated; 0
    for none. Images that came with a part for tests hold out that part instead."""
    packing: bool = False
    """Documents only: fill every sample with as many as fit; attention stays inside each."""
    sampling: Sampling = Sampling.GLOBAL


class TrainingSpec(SpecPart):
    """Optimizer, schedule and batch. One step is one update of the weights."""

    steps: Steps
    global_batch_size: BatchSize
    """Samples per step over all ranks: global = micro x accumulation x data-parallel degree."""
    micro_batch_size: BatchSize | Literal["auto"] | None = None
    """Samples per rank per forward pass. auto: the largest power of two that fits."""
    gradient_accumulation_steps: BatchSize | None = None
    """Forward passes per step."""
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    """The highest learning rate, reached at the end of the warm-up."""
    learning_rate_scaling: LearningRateScaling = LearningRateScaling.NONE
    """linear, sqrt: times global_batch_size / reference_global_batch_size, or its square root."""
    reference_global_batch_size: BatchSize | None = None
    """The batch size that learning_rate was found for; needed to scale it."""
    optimizer: OptimizerName = OptimizerName.ADAMW
    warmup_steps: Annotated[int, Field(strict=True, ge=0, le=100_000_000)] = 0
    schedule: Schedule = Schedule.COSINE
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Where cosine ends, as a share of learning_rate."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    beta1: Beta = 0.9
    """sgd, lars: the momentum."""
    beta2: Beta = 0.95
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 1
    """Decides the first weights and the order of the data; the layout does not touch either."""
    eval_every_steps: Steps | None = None
    """Evaluate on what is held out this often; it is always done once at the end."""


class ParallelismSpec(SpecPart):
    """The degrees multiply to the number of ranks."""

    strategy: Strategy = Strategy.AUTO
    """auto: the planner chooses, and says why. Any other names the axis that takes the ranks
    which the degrees leave; all degrees may be given beside it."""
    data_parallel_replicate_degree: Degree | None = None
    """Groups of ranks that hold the same weights and see other samples. Default of every degree:
    the remaining ranks on the strategy's own axis, 1 on the others."""
    data_parallel_shard_degree: Degree | None = None
    """Ranks that see other samples and hold a part of each weight."""
    tensor_parallel_degree: Degree | None = None
    """Ranks that split each matrix of a layer."""
    pipeline_parallel_degree: Degree | None = None
    """Ranks that split the layers."""
    context_parallel_degree: Degree | None = None
    """Ranks that split each sample along its tokens."""
    sequence_parallel: bool = False
    """tensor only: between a layer's matrices, split tokens instead of repeating them."""
    ulysses_degree: Degree = 1
    """context only: how many of its ranks exchange heads (Ulysses); the others form rings. 1: one
    ring; the context degree: Ulysses alone; between: both (USP)."""
    pipeline_schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    pipeline_stages_per_rank: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    """Default: what the schedule needs, 1 or 2."""
    gradient_compression: GradientCompression = GradientCompression.NONE
    """ddp and context only: what gradients are sent as."""
    gradient_delay: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    """Every update uses the gradient of so many steps before, as where ranks do not wait for each
    other; the first ones change nothing. Each step of delay keeps one more gradient."""
    average_every_steps: Steps | None = None
    """local_sgd only, and needed there: ranks average their weights after so many own steps."""
    offload_optimizer: Offload = Offload.NONE
    """zero1 to zero3: where the optimizer's state lives, and is updated from; nvme: zero3 only."""
    offload_parameters: Offload = Offload.NONE
    """zero3 only: where weights live when they are not in use."""


class TilingSpec(SpecPart):
    """What is too large to be held at once, piece by piece."""

    loss_parts: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] = 1
    """Runs of tokens that head and loss take one after the other, so that the logits of a
    micro-batch never exist whole; they are computed once more in the backward pass."""
    gather: Gather = Gather.LAYER
    """fsdp, hsdp: what ranks gather of the weights at a time."""


class CheckpointSpec(SpecPart):
    """When to save. The last step is always saved, and so is a run that is asked to stop."""

    every_steps: Steps | None = None
    keep_last: Annotated[int, Field(strict=True, ge=1, le=1000)] = 2
    keep_best: bool = False
    """Also keep the one with the lowest loss on what is held out; needs eval_every_steps."""


class GuardSpec(SpecPart):
    """When to stop a run before a bad update. Numbers that are not finite always stop it."""

    loss_spike_factor: Annotated[float, Field(gt=1)] | None = None
    """Stop where the loss is above this many times the median of the steps before. Default:
    never."""
    loss_spike_window: Annotated[int, Field(strict=True, ge=2, le=1000)] = 20
    """How many steps before; none is judged until there are as many."""


class VerifySpec(SpecPart):
    """Certify that the layout takes the curve of one rank."""

    steps: Annotated[int, Field(strict=True, ge=1, le=1000)]
    """How many of the first steps one rank trains alone, before the run, to compare with. It takes
    as long as that many steps on one rank."""


class AdapterSpec(SpecPart):
    """Train small matrices beside frozen ones."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(strict=True, ge=1, le=4096)] = 8
    """The inner width of an adapter (peft's r)."""
    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = 16.0
    """What an adapter gives is multiplied by alpha / rank (peft's lora_alpha)."""
    targets: Annotated[tuple[AdapterTarget, ...], Field(min_length=1, max_length=7)] = (
        AdapterTarget.QUERY,
        AdapterTarget.VALUE,
    )
    """Which matrices of every layer have one (peft's target_modules); gate is llama's alone."""
    base: FrozenBase = FrozenBase.NONE
    """How the layers' own matrices are stored: as they are; in 4 bits, scales in 8 (QLoRA); in 8
    bits with a scale for every row (LLM.int8). Embedding, norms and head stay as they are."""


class TrainSpec(SpecPart):
    """One training run, whatever it runs on."""

    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    adapter: AdapterSpec | None = None
    """Default: every weight is trained."""
    parallelism: ParallelismSpec = ParallelismSpec()
    precision: Precision = Precision.FLOAT32
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    tiling: TilingSpec = TilingSpec()
    compile: bool = False
    """Let torch.compile write each layer's kernels; the first step takes longer."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    guards: GuardSpec = GuardSpec()
    verify: VerifySpec | None = None
    """Default: no certificate."""

    @field_validator("data")
    @classmethod
    def text_needs_sequence_length(cls, data: DataSpec, info: ValidationInfo) -> DataSpec:
        model = info.data.get("model")
        if data.sequence_length is None and model is not None and not model.name.reads_images:
            missing = InitErrorDetails(type="missing", loc=("sequence_length",), input=data)
            raise ValidationError.from_exception_data(cls.__name__, [missing])
        return data
