"""Units of a model that fully sharded ranks gather: weights that are whole for a moment.

A layer is one, the embedding is one, and the last norm with the head is one; ends that share a
matrix are one together. Pure, torch-free.
"""

import math
from typing import NamedTuple

from strategies.plan import image_shapes
from strategies.plan.catalog import (
    BYTES_PER_FEATURE,
    BYTES_PER_WEIGHT,
    TECHNIQUES,
    ZERO,
    bytes_per_frozen,
    computes_in_half,
    gathers_in_half,
    keeps_on_host,
    reduces_each,
)
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import (
    count_trained,
    frozen_bytes,
    matrices,
    vocabulary_size,
)
from strategies.plan.spec import ActivationCheckpointing, Gather, ModelName, TrainSpec

FLOAT32_BYTES = 4
COPIES_OF_GLOO = 1  # of what it is to reduce and scatter; NCCL has none


class Unit(NamedTuple):
    """Weights that are gathered together, of the whole model."""

    trained: float
    """Numbers that have a gradient."""
    frozen: float
    """Bytes of the others, as they are gathered."""


class Sizes(NamedTuple):
    """Bytes of a number of a trained weight while its unit passes."""

    gathered: int
    gradient: int
    sent: int


class Units(NamedTuple):
    """Units of a model. A model with tied ends has no first one."""

    first: Unit
    layer: Unit
    last: Unit


def in_half(resolved: ResolvedSpec) -> bool:
    """Return True if ranks gather 16-bit copies of float32 weights: not with DeepSpeed."""
    return shards_by_torch(resolved) and gathers_in_half(resolved.spec, resolved.layout)


def on_host(resolved: ResolvedSpec) -> bool:
    """Return True if torch keeps the parts of fully sharded ranks on the host of their GPUs."""
    on_gpu = resolved.hardware.device == "cuda"
    return on_gpu and shards_by_torch(resolved) and keeps_on_host(resolved.spec, resolved.layout)


def shards_by_torch(resolved: ResolvedSpec) -> bool:
    """Return True if torch shards what is sharded, not DeepSpeed."""
    return resolved.strategy in TECHNIQUES and not shards_by_deepspeed(resolved)


def shards_by_deepspeed(resolved: ResolvedSpec) -> bool:
    """Return True if DeepSpeed shards what is sharded."""
    technique = TECHNIQUES.get(resolved.strategy)
    return technique is not None and technique.engine == ZERO


def half_beside(resolved: ResolvedSpec) -> bool:
    """Return True if DeepSpeed keeps the 16-bit weights that a model computes with beside the
    float32 ones that it updates."""
    return shards_by_deepspeed(resolved) and computes_in_half(resolved.spec)


def sizes(resolved: ResolvedSpec) -> Sizes:
    """Return the bytes of a number as it is gathered, as its gradient, and as that is sent."""
    precision = resolved.spec.precision
    if in_half(resolved) or half_beside(resolved):
        return Sizes(BYTES_PER_FEATURE[precision], BYTES_PER_FEATURE[precision], FLOAT32_BYTES)
    return Sizes(*3 * (BYTES_PER_WEIGHT[precision],))


def adds_to_parts(resolved: ResolvedSpec) -> bool:
    """Return True if ranks add every micro-batch's gradients to their parts: not with DeepSpeed."""
    return shards_by_torch(resolved) and reduces_each(resolved.spec, resolved.layout)


def units(resolved: ResolvedSpec) -> Units:
    """Return the units of the whole model."""
    spec = resolved.spec
    first, last = numbers_of_ends(spec)
    if spec.adapter is None:
        layers = count_trained(spec) - first - last
        return Units(Unit(first, 0), Unit(layers / spec.model.layers, 0), Unit(last, 0))
    size = bytes_per_frozen(spec)
    if in_half(resolved):
        size = min(size, BYTES_PER_FEATURE[spec.precision])
    shapes = matrices(spec.model).values()
    inside = sum(frozen_bytes(spec.adapter.base, shape, whole=size) for shape in shapes)
    layer = Unit(count_trained(spec) / spec.model.layers, inside)
    return Units(Unit(0, first * size), layer, Unit(0, last * size))


def gathers_first_again(resolved: ResolvedSpec) -> bool:
    """Return True if the backward pass gathers the first unit: an embedding's needs no weights."""
    return resolved.spec.model.name.reads_images


def numbers_of_ends(spec: TrainSpec) -> tuple[int, int]:
    """Return the numbers of the first unit and of the last, which has the last norm."""
    model = spec.model
    if model.name.reads_images:
        first = image_shapes.first_weights(model, spec.data)
        return first, image_shapes.head_weights(model, spec.data) + 2 * model.width
    matrix = vocabulary_size(spec.data) * model.width
    norm = (2 if model.name is ModelName.GPT else 1) * model.width
    return (0 if model.tied_embeddings else matrix), matrix + norm


class Passing(NamedTuple):
    """Bytes of a unit on one rank while it is whole."""

    weights: float
    gradient: float
    sent: float


def passing(unit: Unit, resolved: ResolvedSpec) -> Passing:
    """Return the bytes of a unit, of which every tensor-parallel rank has a part."""
    size, tensor = sizes(resolved), resolved.layout.tensor
    return Passing(
        (unit.trained * size.gathered + unit.frozen) / tensor,
        unit.trained * size.gradient / tensor,
        unit.trained * size.sent / tensor,
    )


class Spare(NamedTuple):
    """Bytes of the peak of the passes that are not in use at a moment of the backward pass.

    Of gradients, only whole sums of micro-batches exist before the last layer's.
    """

    head: float
    """Logits are gone, and nothing is computed again yet."""
    last_layer: float
    layer: float
    """One in the middle: gradients take the place of activations."""
    first: float
    """Activations are gone, and every other gradient exists."""


def gathered(resolved: ResolvedSpec, *, stage: float, spare: Spare) -> tuple[float, str]:
    """Return the bytes that fully sharded ranks hold beside their parts, and a description.

    `stage` are the bytes of all gathered weights of a pipeline's rank. Without a pipeline the
    result is the highest of these moments, as torch 2.13 runs them: the loss, and the gradients of
    the head, of the last layer, of another one and of the first unit. The next layer's weights are
    gathered before a gradient is complete. Then the unit's own are freed, and its gradient is
    copied to be sent; that copy lives until the next unit's gradient is complete. Tied ends are
    whole all the time. Parts that are on the host come to the GPU before they are gathered, and the
    sums of gradients lie there before they leave it.
    """
    spec = resolved.spec
    first, layer, last = (passing(unit, resolved) for unit in units(resolved))
    if resolved.layout.pipeline > 1:
        return stage + layer.gradient + layer.sent, "a stage's weights, and a layer's gradient"
    piece, source = layer, "weights of this layer and the next, a gradient and its send buffer"
    if spec.tiling.gather is Gather.MATRIX:
        numbers = max(map(math.prod, matrices(spec.model).values()), default=0)
        source = "matrix by matrix"
        # A layer that is computed again is gathered whole for its backward pass.
        if spec.activation_checkpointing is ActivationCheckpointing.NONE:
            piece = passing(Unit(numbers, 0), resolved)
    part = 1 / (resolved.layout.shard * resolved.layout.context)
    adds = adds_to_parts(resolved) and resolved.gradient_accumulation_steps > 1
    # To be added to the part of earlier micro-batches, or to leave for the host.
    received = part if adds or on_host(resolved) else 0.0
    brought = 0.0
    if on_host(resolved):
        brought = part * (piece.sent + (piece.weights if in_half(resolved) else 0.0))
    copies = COPIES_OF_GLOO if resolved.hardware.device == "cpu" else 0
    of_layer = 2 * piece.weights + brought + piece.gradient
    reduced = piece.sent * (copies + received)  # after which the gradient is gone
    of_reduced = piece.weights + piece.sent + max(piece.gradient, reduced)
    ends = of_head = before = 0.0
    if spec.model.tied_embeddings:
        of_loss = last.weights + piece.weights
        ends = last.weights + last.gradient
        first, of_first = last, ends + last.gradient
    else:
        # What the last gathering received lives until the next one.
        of_loss = 2 * last.weights
        before = last.sent * (1 + part)
        of_head = piece.weights + last.gradient + before + last.sent * copies
        again = first.weights if gathers_first_again(resolved) else 0.0
        of_first = again + first.gradient
    sent_first = first.gradient + first.sent * (1 + copies + received)
    moments = (
        of_loss,
        of_head - spare.head,
        ends + of_layer + before - spare.last_layer,
        ends + max(of_layer + piece.sent, of_reduced) - spare.layer,
        max(of_first + piece.sent, sent_first) - spare.first,
    )
    return max(moments), source
