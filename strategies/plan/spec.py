"""Training part of a job's spec: the model, its training, and the split over ranks.

Each field is checked alone here. Fields that contradict each other are refused by `planner.plan`,
which knows the hardware and names every problem at once.
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
        """True if its samples are labelled images; the other models read text."""
        return self in (ModelName.MLP, ModelName.CNN)


class Strategy(StrEnum):
    """Kinds of parallelism; `catalog` lists those that this version can run."""

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


ZERO_STAGES = {Strategy.ZERO1: 1, Strategy.ZERO2: 2, Strategy.ZERO3: 3}


class Precision(StrEnum):
    """Type of the computation; weights and optimizer stay in float32 unless the name says
    otherwise."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    PURE_BFLOAT16 = "pure_bfloat16"


class Float32Matmul(StrEnum):
    """Arithmetic of float32 products on GPUs; tf32 rounds their inputs to 10 bits, as float16
    does."""

    EXACT = "exact"
    TF32 = "tf32"


class PipelineSchedule(StrEnum):
    """Order of a pipeline's forward and backward passes, by torch's names."""

    GPIPE = "GPipe"
    ONE_F_ONE_B = "1F1B"
    INTERLEAVED = "Interleaved1F1B"
    INTERLEAVED_ZERO_BUBBLE = "InterleavedZeroBubble"
    ZBV = "ZBVZeroBubble"


class ActivationCheckpointing(StrEnum):
    """Activations that a layer keeps for its backward pass: all; matrix products; only its
    input."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Gather(StrEnum):
    """Unit of weights that is gathered at a time.

    layer: a layer, beside embedding and head, which stay until the pass has ended. matrix: one
    matrix, wherever it is.
    """

    LAYER = "layer"
    MATRIX = "matrix"


class GradientCompression(StrEnum):
    """Type in which gradients are sent; float16 is finer than bfloat16 by 3 bits."""

    NONE = "none"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Reduction(StrEnum):
    """Moments at which gradients of micro-batches are summed over ranks."""

    AUTO = "auto"
    EACH_MICRO_BATCH = "each_micro_batch"
    ONCE = "once"


class Offload(StrEnum):
    """Place of a state between its uses: its device, the host's memory, files on the node's
    disk."""

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
    """Dependence of the learning rate on the global batch size."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class Sampling(StrEnum):
    """Samples that a data-parallel rank takes of a step: its share of one global order (the
    law), which is one permutation or goes through the data chapter by chapter; its share of its own
    part of the data; or samples drawn with its own seed."""

    AUTO = "auto"
    GLOBAL = "global"
    STREAMED = "streamed"
    PARTITIONED = "partitioned"
    INDEPENDENT = "independent"


class AdapterTarget(StrEnum):
    """Matrix of a layer."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "output"
    GATE = "gate"
    UP = "up"
    DOWN = "down"


class FrozenBase(StrEnum):
    """Storage of the layers' frozen matrices."""

    NONE = "none"
    NF4 = "nf4"
    INT8 = "int8"


class Schedule(StrEnum):
    """Learning rate after the warm-up."""

    COSINE = "cosine"
    CONSTANT = "constant"


AUTO = "auto"  # left to the planner

# The upper bounds keep every product of fields a sane integer; they do not promise that it fits.
Layers = Annotated[int, Field(strict=True, ge=1, le=1024)]
Width = Annotated[int, Field(strict=True, ge=2, le=131_072)]
Heads = Annotated[int, Field(strict=True, ge=1, le=4096)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=1_048_576)]
Steps = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
Degree = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Beta = Annotated[float, Field(ge=0, lt=1)]
HUB = "hub:"  # prefix of a checkpoint that is not uploaded but downloaded by the node
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
OWNED = f"({NAME}/)?{NAME}"  # OWNER/NAME is what another person shares
Checkpoint = Annotated[
    str,
    Field(max_length=256, pattern=f"^({OWNED}(@[0-9]+)?|{HUB}{NAME}/{NAME}(@[A-Za-z0-9._/-]+)?)$"),
]
FrozenDtype = Literal["float32", "float16", "bfloat16"]
Pixels = Annotated[int, Field(strict=True, ge=1, le=4096)]


class SpecPart(BaseModel):
    """Frozen part of a spec, without unknown fields or infinities.

    The string under a field is its description.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class RopeScaling(SpecPart):
    """Llama 3.1's stretching of rotary positions over longer texts, by config.json's names."""

    rope_type: Literal["llama3"]
    factor: Annotated[float, Field(ge=1, le=1e6)]
    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    original_max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=1_048_576)]


class ModelSpec(SpecPart):
    """Network, with random initial weights or those of a checkpoint."""

    name: ModelName
    """Text: gpt (LayerNorm, GELU, every head its own keys), llama (RMSNorm, SwiGLU, grouped keys).
    Images: mlp (every layer a matrix), cnn (every layer a convolution that halves the image)."""
    layers: Layers
    """Number of layers: blocks of attention and feed-forward, matrices, convolutions."""
    width: Width
    """Features per token. mlp: features per image; cnn: channels."""
    heads: Annotated[Heads | None, Field(validate_default=True)] = None
    """Text only, and required there."""
    kv_heads: Heads | None = None
    """llama only: heads of keys and values, a divisor of heads. Default: as many as heads."""
    head_width: Width | None = None
    """Text only: features of each head, an even number (rotary positions); head_dim in
    config.json. Default: width / heads, which must be whole."""
    ffn_width: Width | None = None
    """Inner width of the feed-forward part. Default: gpt 4 x width; llama 8/3 x width, rounded
    up to a multiple of 32."""
    tied_embeddings: bool = False
    """Text only: true if the head uses the embedding's matrix."""
    attention_bias: bool = False
    """llama only: biases of query, key and value, as Qwen2 has them."""
    query_key_norms: Annotated[
        bool,
        Field(exclude_if=lambda has_them: not has_them),  # unknown to older workers
    ] = False
    """llama only: an RMSNorm over each head of queries and of keys, before they are rotated, as
    Qwen3 has them."""
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Number that norms add to a variance."""
    rope_base: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    """Base of the rotary positions' frequencies (rope_theta)."""
    rope_scaling: RopeScaling | None = None
    checkpoint: Checkpoint | None = None
    """llama only: a Hugging Face model to start from, by the name or id of its upload, as
    OWNER/NAME of one that is shared with you, or as `hub:owner/name@revision`. The other fields
    must equal those of its config.json: `trainyard models show` prints them."""

    @field_validator("heads")
    @classmethod
    def text_needs_heads(cls, heads: int | None, info: ValidationInfo) -> int | None:
        name = info.data.get("name")
        if heads is None and name is not None and not name.reads_images:
            raise PydanticKnownError("missing")
        return heads


DatasetName = Annotated[str, Field(min_length=1, max_length=128, pattern=f"^{OWNED}$")]


class MixturePart(SpecPart):
    """Dataset that is mixed with another one."""

    dataset: DatasetName
    """Name or id of an uploaded dataset of text, or OWNER/NAME of one that is shared with you."""
    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of the training samples that come from it."""


class DataSpec(SpecPart):
    """Text and its cut into samples, or images and their labels."""

    dataset: DatasetName
    """`python-stdlib` (text) or `digits` (images), both built in, or the name or id of an
    uploaded dataset, or OWNER/NAME of one that is shared with you."""
    mixture: Annotated[
        tuple[MixturePart, ...],
        Field(max_length=32, exclude_if=lambda parts: not parts),  # unknown to older workers
    ] = ()
    """Text only: datasets that are mixed in, each with its share of the samples; `dataset` has the
    rest. A dataset that is too small for its share is repeated."""
    tokenizer: Literal["bytes", "characters", "huggingface"] = "bytes"
    """Text only. bytes: 256 tokens. characters: one token per different character of the text.
    huggingface: the tokenizer of model.checkpoint, or the one of tokenizer_name."""
    tokenizer_name: Annotated[
        str | None,
        Field(
            max_length=128,
            pattern=f"^{OWNED}$",
            exclude_if=lambda name: name is None,  # older workers do not know the field
        ),
    ] = None
    """huggingface only: an uploaded tokenizer, by name, id or OWNER/NAME, for a model that starts
    from no checkpoint."""
    vocabulary_size: Annotated[int, Field(strict=True, ge=2, le=1_114_112)] | None = None
    """characters: number of different characters in the text, or more (to divide by a tensor
    degree, say); a text with more ends the run at its start. huggingface: as in the checkpoint;
    with tokenizer_name it follows from the tokenizer, and may be more."""
    sequence_length: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] | None = None
    """Text only, and required there: tokens per sample."""
    image_shape: Annotated[tuple[Pixels, ...], Field(min_length=2, max_length=3)] | None = None
    """Images only: height, width and, if there are several, channels. Known for digits."""
    classes: Annotated[int, Field(strict=True, ge=2, le=65_536)] | None = None
    """Images only: labels are 0, ..., classes - 1. Known for digits."""
    pixel_mean: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Images only: subtracted from every pixel, after bytes have been divided by 255."""
    pixel_deviation: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Images only: divisor of every pixel after that."""
    held_out: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share of the text or of the images, at its end, that is evaluated and never trained on; 0
    for none. Images that have a test part hold out that part instead."""
    packing: bool = False
    """Documents only: fill every sample with as many documents as fit; attention stays inside
    each."""
    sampling: Annotated[
        Sampling, Field(exclude_if=lambda order: order is Sampling.AUTO)  # unknown to older workers
    ] = Sampling.AUTO
    """Order of samples. global: one permutation of all samples, for all ranks; streamed: one order
    for all ranks too, chapter by chapter, so that the first step waits for one chapter only; auto:
    streamed for more than 4 GiB of plain JSON lines, else global; partitioned: each rank has a part
    of the data; independent: each rank draws for itself."""


class TrainingSpec(SpecPart):
    """Optimizer, schedule and batch. One step is one update of the weights."""

    steps: Steps
    """Number of optimizer steps of the whole training."""
    global_batch_size: BatchSize
    """Samples per step over all ranks: global = micro x accumulation x data-parallel degree."""
    micro_batch_size: BatchSize | Literal["auto"] | None = None
    """Samples per rank per forward pass. auto: the largest power of two that fits."""
    gradient_accumulation_steps: BatchSize | None = None
    """Forward passes per step."""
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    """Highest learning rate, reached at the end of the warm-up."""
    learning_rate_scaling: LearningRateScaling = LearningRateScaling.NONE
    """linear, sqrt: multiplied by global_batch_size / reference_global_batch_size, or its square
    root."""
    reference_global_batch_size: BatchSize | None = None
    """Batch size that learning_rate was tuned for; needed to scale it."""
    optimizer: OptimizerName = OptimizerName.ADAMW
    """Update rule of the weights. adamw_8bit keeps its state in 8 bits; adamw_triton: a kernel."""
    warmup_steps: Annotated[int, Field(strict=True, ge=0, le=100_000_000)] = 0
    """Number of first steps in which the learning rate rises from zero."""
    schedule: Schedule = Schedule.COSINE
    """Learning rate after the warm-up: falling as a cosine, or constant."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Last rate of cosine, as a share of learning_rate."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Share of each matrix, times the learning rate, that a step takes away."""
    beta1: Beta = 0.9
    """Momentum of sgd and lars."""
    beta2: Beta = 0.95
    """Memory of the average of squared gradients (adamw, lamb)."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients with a larger norm are scaled down to it."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 1
    """Seed of the initial weights and of the order of the data; neither depends on the layout."""
    eval_every_steps: Steps | None = None
    """Interval of evaluations on the held-out data; one is always made at the end."""


class ParallelismSpec(SpecPart):
    """Strategy and degrees, which multiply to the number of ranks."""

    strategy: Strategy = Strategy.AUTO
    """auto: the planner chooses, and gives its reason.

    Any other names the axis of the ranks that the degrees leave over; all degrees may be given
    beside it.
    """
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
    """context only: number of its ranks that exchange heads (Ulysses); the others form rings. 1:
    one ring; the context degree: Ulysses alone; between: both (USP)."""
    pipeline_schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    """Order of forward and backward passes in a pipeline; later ones in the list wait less."""
    pipeline_stages_per_rank: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    """Default: the number that the schedule needs, 1 or 2."""
    gradient_compression: GradientCompression = GradientCompression.NONE
    """ddp and context only: type in which gradients are sent."""
    reduce_gradients: Reduction = Reduction.AUTO
    """fsdp and hsdp: moment at which a step that accumulates sums gradients over ranks.
    each_micro_batch: ranks keep the sums of their parts. once: they keep whole gradients, and send
    less. auto: once in float32, float64, pure_bfloat16 and pipelines, else each_micro_batch."""
    gradient_delay: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    """Age, in steps, of the gradient that an update uses, as if ranks did not wait for each
    other; the first updates change nothing. Each step of delay keeps one more gradient."""
    average_every_steps: Steps | None = None
    """local_sgd only, and needed there: number of a rank's own steps between two averages of
    weights."""
    offload_optimizer: Offload = Offload.NONE
    """zero1 to zero3: place of the optimizer's state, which is updated from there; nvme: zero3
    only. fsdp, hsdp: cpu together with offload_parameters."""
    offload_parameters: Offload = Offload.NONE
    """zero3: place of weights that are not in use. fsdp, hsdp: of gradients and optimizer state
    too; cpu only."""


class TilingSpec(SpecPart):
    """Processing of large tensors piece by piece."""

    loss_parts: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] = 1
    """Least number of parts in which head and loss process the tokens one after the other; by
    default as few as keep the logits of a part below 1 GiB on a GPU, 64 MiB on a CPU."""
    gather: Gather = Gather.LAYER
    """fsdp, hsdp: weights that ranks gather at a time."""


class CheckpointSpec(SpecPart):
    """Times of saving. The last step is always saved, and so is a run that is asked to stop."""

    every_steps: Steps | None = None
    """Interval of checkpoints in steps. Default: only at the end and before a stop."""
    keep_last: Annotated[int, Field(strict=True, ge=1, le=1000)] = 2
    """Number of newest checkpoints that are kept."""
    keep_best: bool = False
    """True to also keep the one with the lowest loss on the held-out data; needs
    eval_every_steps."""


class GuardSpec(SpecPart):
    """Conditions that stop a run before a bad update.

    Numbers that are not finite always stop it.
    """

    loss_spike_factor: Annotated[float, Field(gt=1)] | None = None
    """Stop if the loss is above this many times the median of the previous steps.

    Default: never.
    """
    loss_spike_window: Annotated[int, Field(strict=True, ge=2, le=1000)] = 20
    """Number of previous steps; no step is judged until there are as many."""


class VerifySpec(SpecPart):
    """Certificate that the layout has the loss curve of one rank."""

    steps: Annotated[int, Field(strict=True, ge=1, le=1000)]
    """Number of first steps that one rank trains alone, before the run, as the reference.

    It takes as long as that many steps on one rank.
    """


class AdapterSpec(SpecPart):
    """Small trained matrices beside frozen ones."""

    kind: Literal["lora"] = "lora"
    """Kind of adapter: low-rank matrices beside frozen ones."""
    rank: Annotated[int, Field(strict=True, ge=1, le=4096)] = 8
    """Inner width of an adapter (peft's r)."""
    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = 16.0
    """Adapters' outputs are multiplied by alpha / rank (peft's lora_alpha)."""
    targets: Annotated[tuple[AdapterTarget, ...], Field(min_length=1, max_length=7)] = (
        AdapterTarget.QUERY,
        AdapterTarget.VALUE,
    )
    """Matrices of every layer that get an adapter (peft's target_modules); gate is llama's only."""
    base: FrozenBase = FrozenBase.NONE
    """Storage of the layers' own matrices: as they are; in 4 bits, scales in 8 (QLoRA); in 8
    bits with a scale for every row (LLM.int8). Embedding, norms and head stay as they are."""
    frozen_dtype: FrozenDtype | None = None
    """Type of frozen matrices under precision bfloat16 and float16; others keep their own. Default:
    the checkpoint's type, which changes no number; float32 for random weights."""


class TrainSpec(SpecPart):
    """One training run, on any hardware."""

    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    adapter: AdapterSpec | None = None
    """Default: every weight is trained."""
    parallelism: ParallelismSpec = ParallelismSpec()
    precision: Precision = Precision.FLOAT32
    """Number format of the computation. bfloat16 and float16 keep weights in float32;
    pure_bfloat16 does not."""
    float32_matmul: Float32Matmul = Float32Matmul.EXACT
    """float32 on GPUs only. tf32: matrix products and convolutions up to eight times faster, whose
    loss curve is a band."""
    deterministic: bool = False
    """True to take only kernels that give the same bits each time, which are slower on GPUs."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    """Results that the backward pass computes again to save memory: none, those of attention
    (selective), or all of a layer (full)."""
    tiling: TilingSpec = TilingSpec()
    compile: Annotated[bool, Field(strict=True)] | Literal["auto"] = "auto"
    """True to let torch.compile generate each layer's kernels; the first step takes longer. auto:
    on GPUs, where it can, in runs of ten minutes and more."""
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
