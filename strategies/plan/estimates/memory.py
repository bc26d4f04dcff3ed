"""Memory of a run: bytes per rank, by term. Pure arithmetic, torch-free.

Terms marked exact follow from the code alone; the others are estimates, with their source.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import BYTES_PER_FEATURE, BYTES_PER_WEIGHT
from strategies.plan.estimates import swapping
from strategies.plan.estimates.activations import (
    activation_bytes,
    exchange_bytes,
    handed_over_bytes,
    logit_bytes,
    micro_batches_kept,
)
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import (
    ADAM_8BIT_BLOCK,
    count_trained,
    frozen_bytes,
    largest_matrix,
    matrices,
    parameters_of,
    vocabulary_size,
)
from strategies.plan.spec import (
    ActivationCheckpointing,
    FrozenBase,
    Gather,
    Offload,
    OptimizerName,
    Strategy,
    TrainingSpec,
    TrainSpec,
)
from strategies.plan.stages import layers_of, rank_of, schedule_of, stages_per_rank

GIB = 2**30
# Resident memory of one rank before the model: 338 MB under torchrun on CPU (measured).
PROCESS = "process"  # the name of its term
CHECKPOINT_COPY = "checkpoint copy"  # the name of its term
PROCESS_GIB = {"cpu": 0.35, "cuda": 0.6}
FLOAT32_BYTES = 4
ZERO_BUCKET = 25_000_000  # numbers that DeepSpeed reduces at a time, as zero.py sets it
SWAPPED_THROUGH = "buffers for files: rows of the optimizer, parts of matrices"
AVERAGES_PER_WEIGHT = {
    OptimizerName.ADAMW: 2,
    OptimizerName.ADAMW_8BIT: 2,
    OptimizerName.ADAMW_TRITON: 2,
    OptimizerName.LAMB: 2,
    OptimizerName.LARS: 1,
    OptimizerName.SGD: 1,
}


def averages_per_weight(training: TrainingSpec) -> int:
    """Return how many numbers the optimizer keeps for each trained weight.

    SGD without momentum keeps none.
    """
    if training.optimizer is OptimizerName.SGD and training.beta1 == 0:
        return 0
    return AVERAGES_PER_WEIGHT[training.optimizer]


class MemoryTerm(BaseModel):
    """One line of a plan's memory table, per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gib: float
    exact: bool
    source: str


class Share(NamedTuple):
    """Part of the model that one pipeline rank has, before the other axes split it."""

    layers: int
    trained: float  # numbers
    frozen: float  # bytes
    copied: float  # numbers of matrices of which it would keep half-precision copies
    has_head: bool
    in_flight: float  # micro-batches


class States(NamedTuple):
    """Numbers of each kind that a rank holds on its device."""

    weights: int
    gradients: int
    averages: int


def states_held(resolved: ResolvedSpec, held: int, shards: int) -> States:
    """Return the numbers that a rank holds of `held` trained weights that `shards` ranks share.

    DeepSpeed (0.19) keeps its own part of the weights once more, for the update, and a bucket of
    gradients to send. While a step accumulates, fully sharded ranks keep whole gradients, and
    DistributedDataParallel keeps gradients beside its buckets. Data offloaded to the host leaves a
    GPU, but not a CPU; data offloaded to files leaves both.
    """
    part, strategy = -(-held // shards), resolved.strategy
    averages = averages_per_weight(resolved.spec.training) * part
    parallelism = resolved.spec.parallelism
    on_gpu = resolved.hardware.device == "cuda"
    here = (Offload.NONE,) if on_gpu else (Offload.NONE, Offload.CPU)
    updates_here = parallelism.offload_optimizer in here
    stored_here = parallelism.offload_parameters in here
    own = part if updates_here else 0  # DeepSpeed's copy
    averages = averages if updates_here else 0
    bucket = min(ZERO_BUCKET, held)
    match strategy:
        case Strategy.ZERO1:
            return States(held + own, held, averages)
        case Strategy.ZERO2:
            return States(held + own, part + bucket, averages)
        case Strategy.ZERO3:
            return States((part if stored_here else 0) + own, part + bucket, averages)
        case _:
            gradients = part
            if resolved.gradient_accumulation_steps > 1:
                gradients = 2 * held if buckets_gradients(resolved) else held
            return States(part, gradients, averages)


def gradients_stay(resolved: ResolvedSpec) -> bool:
    """Return True if gradients are allocated before the backward pass, beside all activations.

    They are if a step accumulates, or if DeepSpeed or DistributedDataParallel keeps buffers for
    them.
    """
    return (
        resolved.gradient_accumulation_steps > 1
        or resolved.strategy in (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
        or buckets_gradients(resolved)
    )


def buckets_gradients(resolved: ResolvedSpec) -> bool:
    """Return True if DistributedDataParallel runs: whole models on ranks that share gradients."""
    layout = resolved.layout
    others = layout.shard * layout.tensor * layout.pipeline
    talks = layout.replicate * layout.context > 1 and resolved.strategy is not Strategy.LOCAL_SGD
    return others == 1 and talks


def frozen_weight_bytes(spec: TrainSpec) -> int:
    """Return the bytes of the whole model's frozen weights.

    Matrices of layers are stored as asked, the others as they are. QLoRA (arXiv:2305.14314),
    section 3: 4.127 bits for a number in NF4.
    """
    if spec.adapter is None:
        return 0
    size, shapes = BYTES_PER_WEIGHT[spec.precision], matrices(spec.model).values()
    layer = sum(frozen_bytes(spec.adapter.base, shape, whole=size) for shape in shapes)
    others = parameters_of(spec) - spec.model.layers * sum(math.prod(shape) for shape in shapes)
    return spec.model.layers * layer + others * size


def numbers_copied(spec: TrainSpec) -> int:
    """Return how many numbers of matrices are kept in half precision for the backward pass.

    A quantised matrix is dequantised again instead.
    """
    whole = parameters_of(spec)
    if spec.adapter is not None:
        whole += count_trained(spec)
        if spec.adapter.base is not FrozenBase.NONE:
            layer = sum(math.prod(shape) for shape in matrices(spec.model).values())
            whole -= spec.model.layers * layer
    return whole


def shares(resolved: ResolvedSpec) -> list[Share]:
    """Return the share of the model that each rank of a pipeline has.

    A model that cannot be cut by layers gets a single share, that of the fullest rank.
    """
    spec, ranks = resolved.spec, resolved.layout.pipeline
    trained, frozen, copied = count_trained(spec), frozen_weight_bytes(spec), numbers_copied(spec)
    num_stages = ranks * stages_per_rank(
        schedule_of(resolved.strategy, spec.parallelism), spec.parallelism
    )
    if ranks == 1 or num_stages > spec.model.layers or spec.model.name.reads_images:
        layers = -(-spec.model.layers // ranks)
        parts = (trained / ranks, frozen / ranks, copied / ranks)
        return [Share(layers, *parts, has_head=True, in_flight=micro_batches_kept(resolved, 0))]
    all_ends = parameters_of(spec) - sum_of_layers(spec)
    # Weights outside layers are trained, or frozen as they are.
    per_end = (1, 0) if spec.adapter is None else (0, BYTES_PER_WEIGHT[spec.precision])
    schedule = schedule_of(resolved.strategy, spec.parallelism)
    cut, found = layers_of(spec, num_stages), []
    own: list[list[int]] = [[] for _ in range(ranks)]
    for stage in range(num_stages):
        own[rank_of(stage, ranks=ranks, schedule=schedule)].append(stage)
    for place in range(ranks):
        layers, ends, has_head = held_by(spec, own[place], cut)
        of_layers = layers / spec.model.layers
        found.append(
            Share(
                layers=layers,
                trained=(trained - per_end[0] * all_ends) * of_layers + per_end[0] * ends,
                frozen=(frozen - per_end[1] * all_ends) * of_layers + per_end[1] * ends,
                copied=(copied - all_ends) * of_layers + ends,
                has_head=has_head,
                in_flight=micro_batches_kept(resolved, place),
            )
        )
    return found


def held_by(spec: TrainSpec, own: list[int], cut: list[range]) -> tuple[int, int, bool]:
    """Return the layers of a pipeline rank, its numbers outside layers, and whether it has the
    head.

    `own` are its stages, `cut` the layers of every stage.
    """
    has_embedding, has_head = 0 in own, len(cut) - 1 in own
    matrix = vocabulary_size(spec.data) * spec.model.width
    ends = matrix * (has_embedding + has_head)
    if has_embedding and has_head and spec.model.tied_embeddings:
        ends = matrix
    return sum(len(cut[stage]) for stage in own), ends + spec.model.width * has_head, has_head


def sum_of_layers(spec: TrainSpec) -> int:
    """Return the numbers of all layers of a text model, norms and biases included."""
    model = spec.model
    one, two = (
        parameters_of(
            spec.model_copy(update={"model": model.model_copy(update={"layers": layers})})
        )
        for layers in (1, 2)
    )
    return model.layers * (two - one)


def memory_by_stage(resolved: ResolvedSpec) -> list[list[MemoryTerm]]:
    """Return memory by term for each rank of a pipeline; other axes make no difference."""
    return [terms_of(resolved, share) for share in shares(resolved)]


def terms_of(resolved: ResolvedSpec, share: Share) -> list[MemoryTerm]:
    """Return memory by term for a rank with this share of the model."""
    spec, layout = resolved.spec, resolved.layout
    size, how = BYTES_PER_WEIGHT[spec.precision], spec.activation_checkpointing
    held = math.ceil(share.trained / layout.tensor)
    shards = layout.shard * layout.context if layout.shard > 1 else 1
    states = states_held(resolved, held, shards)
    frozen = share.frozen / layout.tensor
    exact = layout.tensor == 1 and shards == 1
    zero_1_2 = resolved.strategy in (Strategy.ZERO1, Strategy.ZERO2)

    def term(name: str, num_bytes: float, exact: bool, source: str) -> MemoryTerm:
        return MemoryTerm(name=name, gib=num_bytes / GIB, exact=exact, source=source)

    terms = []
    if spec.adapter is not None:
        base = spec.adapter.base
        terms.append(term("frozen", frozen / shards, exact, f"base {base}"))
        if base is not FrozenBase.NONE:
            largest = max(map(math.prod, matrices(spec.model).values()), default=0)
            numbers = "codes, and the dequantised matrix"
            terms.append(term("opened", 2 * largest * size, False, numbers))
    eight_bit = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    average = 1 + 4 / ADAM_8BIT_BLOCK if eight_bit else size
    averages = averages_per_weight(spec.training)
    terms += [
        term("weights", states.weights * size, exact, f"{states.weights:,} x {size} bytes"),
        term("gradients", states.gradients * size, exact, "one per weight, or its buckets"),
        term(
            "optimizer",
            states.averages * average,
            exact and not eight_bit,
            f"{spec.training.optimizer}: {averages} per weight",
        ),
    ]
    if (delay := spec.parallelism.gradient_delay) > 0:
        late = delay * states.gradients * size
        terms.append(term("late gradients", late, exact, f"{delay} waiting for their update"))
    if (shards > 1 and not zero_1_2) or resolved.strategy is Strategy.ZERO3:
        num_bytes, source = gathered(resolved, share, whole=held * size + frozen, half=frozen / 2)
        terms.append(term("gathered", num_bytes, False, source))
    if resolved.hardware.device == "cpu" and (swapped := swapping.buffer_bytes(spec, shards)) > 0:
        terms.append(term("swap buffers", swapped, False, SWAPPED_THROUGH))
    if BYTES_PER_FEATURE[spec.precision] < size:
        copied = share.copied / layout.tensor
        if how is not ActivationCheckpointing.NONE:
            copied /= max(1, share.layers)
        copies = copied * BYTES_PER_FEATURE[spec.precision]
        terms.append(term("copies", copies, False, "matrices in half precision, for backward"))
    if layout.context > 1:
        exchanged = exchange_bytes(resolved)
        terms.append(term("exchanged", exchanged, False, "keys, values and their gradients"))
    if layout.pipeline > 1:
        handed = handed_over_bytes(resolved)
        terms.append(
            term("handed over", handed, False, "features and gradients passed between stages")
        )
    activations = activation_bytes(resolved, share.layers, share.in_flight)
    logits = logit_bytes(resolved) if share.has_head else 0.0
    source = "numbers that autograd keeps, layer by layer"
    if not gradients_stay(resolved):
        room = states.gradients * size
        source += ", less the memory that gradients take over from them"
        logits, activations = (
            max(0.0, logits - max(0.0, room - activations)),
            max(0.0, activations - room),
        )
    return [
        *terms,
        term("activations", activations, False, source),
        term("logits", logits, False, "logits, log-probabilities and their gradient"),
        process_term(resolved),
    ]


def process_term(resolved: ResolvedSpec) -> MemoryTerm:
    """Return the memory of a rank before its model, as it was measured on a node of the class.

    A communicator for each axis with more than one rank, and one for all ranks.
    """
    hardware, axes = resolved.hardware, sum(degree > 1 for degree in resolved.layout.degrees)
    gib, source = PROCESS_GIB[hardware.device], "Python, torch and its libraries"
    measured = hardware.measured
    if measured is not None and measured.process_gib is not None:
        communicators = axes + 1 if axes else 0
        gib = measured.process_gib + communicators * (measured.communicator_gib or 0.0)
        source = f"{source}; {measured.source}"
    return MemoryTerm(name=PROCESS, gib=gib, exact=False, source=source)


def multiplied(terms: list[MemoryTerm], factor: float) -> list[MemoryTerm]:
    """Return the terms, with the estimated ones (but the process) `factor` times as large."""
    return [
        term
        if term.exact or term.name == PROCESS
        else term.model_copy(
            update={
                "gib": term.gib * factor,
                "source": f"{term.source}; x {factor:g}, learned from runs here",
            }
        )
        for term in terms
    ]


def host_terms(resolved: ResolvedSpec) -> list[MemoryTerm]:
    """Return the memory of a GPU node's host for its ranks, by term; empty for a CPU node.

    Every rank keeps pinned memory for copies of its state, from which checkpoints are written.
    DeepSpeed (0.19), if it offloads: the optimizer's averages, and the float32 weights and
    gradients for its update; offloaded weights once more. What it pins itself comes on top.
    """
    if resolved.hardware.device == "cpu":
        return []
    copied = resolved.ranks_per_node * max(
        copied_bytes(resolved, each) for each in shares(resolved)
    )
    terms = [estimate("checkpoint copy", copied, "pinned: weights and optimizer of each rank")]
    terms += offloaded(resolved, to=Offload.CPU)
    if (swapped := swapping.buffer_bytes(resolved.spec, resolved.layout.shard)) > 0:
        terms.append(estimate("swap buffers", resolved.ranks_per_node * swapped, SWAPPED_THROUGH))
    return terms


def copied_bytes(resolved: ResolvedSpec, share: Share) -> float:
    """Return the bytes of the state that a rank with this share of the model copies for a
    checkpoint: its part of the trained weights, and their averages."""
    spec, layout = resolved.spec, resolved.layout
    shards = layout.shard * (layout.context if layout.shard > 1 else 1)
    part = math.ceil(math.ceil(share.trained / layout.tensor) / shards)
    size = BYTES_PER_WEIGHT[spec.precision]
    is_8bit = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    average = 1 + 4 / ADAM_8BIT_BLOCK if is_8bit else size
    return part * (size + averages_per_weight(spec.training) * average)


def file_terms(resolved: ResolvedSpec) -> list[MemoryTerm]:
    """Return the disk space of a node for its ranks, by term; empty without offloading to nvme.

    The gradient waits there for the update, too. Parts under 1 MiB stay in memory.
    """
    return list(offloaded(resolved, to=Offload.NVME))


def offloaded(resolved: ResolvedSpec, *, to: Offload) -> Iterator[MemoryTerm]:
    """Yield the terms that all ranks of a node have offloaded to one device."""
    parallelism = resolved.spec.parallelism
    numbers = -(-count_trained(resolved.spec) // resolved.layout.shard) * resolved.ranks_per_node
    if parallelism.offload_optimizer is to:
        averages = averages_per_weight(resolved.spec.training)
        source = f"{averages} averages, a weight and a gradient for each of {numbers:,} numbers"
        yield estimate("optimizer", (averages + 2) * numbers * FLOAT32_BYTES, source)
    if parallelism.offload_parameters is to:
        source = f"{numbers:,} x {FLOAT32_BYTES} bytes"
        yield estimate("weights", numbers * FLOAT32_BYTES, source)


def estimate(name: str, num_bytes: float, source: str) -> MemoryTerm:
    return MemoryTerm(name=name, gib=num_bytes / GIB, exact=False, source=source)


def gathered(
    resolved: ResolvedSpec, share: Share, *, whole: float, half: float
) -> tuple[float, str]:
    """Return the bytes that fully sharded ranks gather temporarily, and their description.

    `whole` are the bytes of all the rank's weights; `half`, of frozen ones, has no gradient.
    """
    spec, layout = resolved.spec, resolved.layout
    layer = (whole - half) / max(1, share.layers)
    if layout.pipeline > 1:
        return whole + 2 * layer, "a stage's weights, and a layer's gradient"
    if spec.tiling.gather is Gather.MATRIX:
        size = BYTES_PER_WEIGHT[spec.precision]
        largest = largest_matrix(spec.model, vocabulary=vocabulary_size(spec.data))
        # A layer that is computed again is gathered whole for its backward pass.
        again = spec.activation_checkpointing is not ActivationCheckpointing.NONE
        return max(4 * largest * size / layout.tensor, 4 * layer * again), "matrix by matrix"
    return 4 * layer, "weights of this layer and the next, a gradient and its send buffer"
