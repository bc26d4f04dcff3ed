"""What a run costs: bytes per rank, by term. Pure arithmetic, torch-free.

Terms marked exact follow from the code alone; the others are estimates, with their source.
"""

import math
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies import image_shapes
from strategies.catalog import BYTES_PER_FEATURE, BYTES_PER_WEIGHT
from strategies.rules.problem import Asked
from strategies.shapes import (
    ADAM_8BIT_BLOCK,
    count_trained,
    ffn_width,
    frozen_bytes,
    heads,
    kv_heads,
    largest_matrix,
    matrices,
    parameters_of,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.spec import (
    ActivationCheckpointing,
    FrozenBase,
    Gather,
    ModelName,
    ModelSpec,
    Offload,
    OptimizerName,
    PipelineSchedule,
    Precision,
    Strategy,
    TrainSpec,
)
from strategies.stages import schedule_of, stages_per_rank

GIB = 2**30
# Resident memory of one rank before the model: 338 MB under torchrun on CPU (measured).
PROCESS_GIB = {"cpu": 0.35, "cuda": 0.6}
ZERO_BUCKET = 25_000_000  # numbers that DeepSpeed reduces at a time, as zero.py sets it
AVERAGES_PER_WEIGHT = {
    OptimizerName.ADAMW: 2,
    OptimizerName.ADAMW_8BIT: 2,
    OptimizerName.ADAMW_TRITON: 2,
    OptimizerName.LAMB: 2,
    OptimizerName.LARS: 1,
    OptimizerName.SGD: 1,
}


class MemoryTerm(BaseModel):
    """One line of a plan's memory table, per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gib: float
    exact: bool
    source: str


def kept_bytes(model: ModelSpec, precision: Precision, how: ActivationCheckpointing) -> int:
    """Bytes that one layer keeps per token for its backward pass, attention scores not stored.

    Derived from what autograd saves. What lies between layers is as wide as the weights; what a
    matrix product reads or gives, as narrow as it is computed in.
    """
    wide, narrow = BYTES_PER_WEIGHT[precision], BYTES_PER_FEATURE[precision]
    width, inner = model.width, ffn_width(model)
    keys_values = 2 * (width // heads(model) * kv_heads(model))
    gated = model.name is ModelName.LLAMA
    if how is ActivationCheckpointing.FULL:  # the layer's input
        return width * wide
    if how is ActivationCheckpointing.SELECTIVE:
        # Also what its products give: query, attention, output, down; key, value; gate, up.
        first = 2 * inner if gated else inner
        return width * wide + (4 * width + keys_values + first) * narrow
    # Both residual inputs; both norms, query, attention; before and after the activation.
    numbers = 4 * width + keys_values + (4 if gated else 2) * inner
    if narrow < wide:  # every matrix that reads a norm has its own copy
        numbers += (3 if gated else 2) * width
    return 2 * width * wide + numbers * narrow


def kept_by_layer(spec: TrainSpec, how: ActivationCheckpointing) -> float:
    """Bytes that one layer keeps per token, or per image, for its backward pass."""
    if not spec.model.name.reads_images:
        return kept_bytes(spec.model, spec.precision, how)
    numbers = image_shapes.kept_numbers(spec.model, spec.data, how) / spec.model.layers
    return numbers * BYTES_PER_WEIGHT[spec.precision]


def micro_batches_kept(asked: Asked) -> float:
    """How many micro-batches' activations the fullest rank keeps at once.

    Interleaving: Narayanan et al., arXiv:2104.04473, section 2.2, as torch runs it.
    """
    ranks, count = asked.layout.pipeline, asked.gradient_accumulation_steps
    if ranks == 1 or asked.strategy is Strategy.NAIVE:
        return 1
    schedule = schedule_of(asked.strategy, asked.spec.parallelism)
    if schedule is PipelineSchedule.GPIPE:
        return count
    if schedule is PipelineSchedule.INTERLEAVED:
        stages = stages_per_rank(schedule, asked.spec.parallelism)
        round_size = count // max(1, count // ranks)
        return min(stages * count, (stages - 1) * round_size + 2 * ranks - 1) / stages
    return min(ranks, count)


class States(NamedTuple):
    """How many numbers of each kind a rank holds where it computes."""

    weights: int
    gradients: int
    averages: int


def states_held(asked: Asked, held: int, shards: int) -> States:
    """What a rank holds of `held` trained weights that `shards` ranks share.

    ZeRO's first two stages keep their own part of the weights once more, for the update (DeepSpeed
    0.19). What is offloaded to the host leaves a GPU, but not a CPU.
    """
    part = -(-held // shards)
    averages = AVERAGES_PER_WEIGHT[asked.spec.training.optimizer] * part
    parallelism = asked.spec.parallelism
    on_gpu = asked.hardware.device == "cuda"
    updates_here = not on_gpu or parallelism.offload_optimizer is Offload.NONE
    stored_here = not on_gpu or parallelism.offload_parameters is Offload.NONE
    if asked.strategy in (Strategy.ZERO1, Strategy.ZERO2):
        gradients = held if asked.strategy is Strategy.ZERO1 else part + min(ZERO_BUCKET, held)
        if not updates_here:
            return States(held, gradients, 0)
        return States(held + part, gradients, averages)
    return States(part if stored_here else 0, part, averages if updates_here else 0)


def frozen_weight_bytes(spec: TrainSpec) -> int:
    """What the whole model's frozen weights take: matrices of layers as asked, others as they are.

    QLoRA (arXiv:2305.14314), section 3: 4.127 bits for a number in NF4.
    """
    if spec.adapter is None:
        return 0
    size, shapes = BYTES_PER_WEIGHT[spec.precision], matrices(spec.model).values()
    layer = sum(frozen_bytes(spec.adapter.base, shape, whole=size) for shape in shapes)
    others = parameters_of(spec) - spec.model.layers * sum(math.prod(shape) for shape in shapes)
    return spec.model.layers * layer + others * size


def numbers_copied(asked: Asked) -> float:
    """Numbers of matrices that a rank keeps in half precision for its backward pass; a quantised
    matrix is made again instead."""
    spec, layout = asked.spec, asked.layout
    whole = parameters_of(spec)
    if spec.adapter is not None:
        whole += count_trained(spec)
        if spec.adapter.base is not FrozenBase.NONE:
            layer = sum(math.prod(shape) for shape in matrices(spec.model).values())
            whole -= spec.model.layers * layer
    return -(-whole // (layout.tensor * layout.pipeline))


def memory_terms(asked: Asked) -> list[MemoryTerm]:
    """Memory per rank, by term, of the rank that needs the most."""
    spec, layout = asked.spec, asked.layout
    size = BYTES_PER_WEIGHT[spec.precision]
    is_text = not spec.model.name.reads_images
    choices = vocabulary_size(spec.data) if is_text else image_shapes.num_classes(spec.data)
    trained = count_trained(spec)
    held = -(-trained // (layout.tensor * layout.pipeline))
    shards = layout.shard * layout.context if layout.shard > 1 else 1
    states = states_held(asked, held, shards)
    layers = -(-spec.model.layers // layout.pipeline)
    in_flight = micro_batches_kept(asked)
    tokens = asked.micro_batch_size * tokens_per_sample(spec.data) // layout.context
    how = spec.activation_checkpointing
    kept = tokens * kept_by_layer(spec, how) / layout.tensor
    whole_layer = tokens * kept_by_layer(spec, ActivationCheckpointing.NONE)
    # A layer that is computed again has all of its own for a moment.
    activations = layers * in_flight * kept + max(0.0, whole_layer / layout.tensor - kept)
    process = PROCESS_GIB[asked.hardware.device] * GIB
    at_once = tokens / min(spec.tiling.loss_parts, tokens)
    logits = 3 * at_once * choices * size / layout.tensor  # and log-probabilities, gradient

    def term(name: str, num_bytes: float, exact: bool, source: str) -> MemoryTerm:
        return MemoryTerm(name=name, gib=num_bytes / GIB, exact=exact, source=source)

    exact = held == trained and shards == 1
    eight_bit = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    average = 1 + 4 / ADAM_8BIT_BLOCK if eight_bit else size
    averages = (
        f"{spec.training.optimizer}: {AVERAGES_PER_WEIGHT[spec.training.optimizer]} per weight"
    )
    terms = [
        term("weights", states.weights * size, exact, f"{states.weights:,} x {size} bytes"),
        term("gradients", states.gradients * size, exact, "one per weight, or its buckets"),
        term("optimizer", states.averages * average, exact and average == size, averages),
        term("activations", activations, False, "numbers that autograd keeps, layer by layer"),
        term("logits", logits, False, "logits, log-probabilities and their gradient"),
        term("process", process, False, "Python, torch and its libraries"),
    ]
    if (delay := spec.parallelism.gradient_delay) > 0:
        late = delay * states.gradients * size
        terms.insert(3, term("late gradients", late, exact, f"{delay} that wait for their update"))
    frozen = frozen_weight_bytes(spec) / (layout.tensor * layout.pipeline)
    if spec.adapter is not None:
        terms.insert(0, term("frozen", frozen / shards, exact, f"base {spec.adapter.base}"))
        if spec.adapter.base is not FrozenBase.NONE:
            largest = max(map(math.prod, matrices(spec.model).values()), default=0)
            numbers = "codes, and the matrix that is computed with"
            terms.insert(1, term("opened", 2 * largest * size, False, numbers))
    if BYTES_PER_FEATURE[spec.precision] < size:
        in_all = numbers_copied(asked)
        copied = in_all if how is ActivationCheckpointing.NONE else in_all / layers
        copies = copied * BYTES_PER_FEATURE[spec.precision]
        terms.insert(3, term("copies", copies, False, "matrices in half precision, for backward"))
    if shards > 1 and asked.strategy not in (Strategy.ZERO1, Strategy.ZERO2):
        gathered = (frozen + 2 * held * size) / layers
        what = "a layer's weights and its gradient"
        if spec.tiling.gather is Gather.MATRIX:
            matrix = 2 * largest_matrix(spec.model, vocabulary=choices) * size / layout.tensor
            # A layer that is computed again is gathered whole for its backward pass.
            again = how is not ActivationCheckpointing.NONE
            gathered, what = max(matrix, gathered * again), "a matrix and its gradient"
        terms.insert(3, term("gathered", gathered, False, what))
    return terms
