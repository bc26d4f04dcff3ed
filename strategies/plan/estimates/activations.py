"""Memory of activations: tensors that a rank keeps until its backward pass has used them.

Derived from the tensors that autograd saves, and checked against the allocator's own count. Pure,
torch-free.
"""

from typing import NamedTuple

from strategies.plan import image_shapes
from strategies.plan.catalog import BYTES_PER_FEATURE, BYTES_PER_WEIGHT, gathers_again
from strategies.plan.loss_runs import tokens_at_once
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import (
    ffn_width,
    heads,
    kv_heads,
    kv_width,
    query_width,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.plan.spec import (
    ActivationCheckpointing,
    AdapterTarget,
    FrozenBase,
    Gather,
    ModelName,
    PipelineSchedule,
    Strategy,
    TrainSpec,
)
from strategies.plan.stages import SINGLE_STAGE, ZERO_BUBBLE, schedule_of, stages_per_rank

FLOAT32 = 4


class KeptBytes(NamedTuple):
    """Bytes that one layer keeps per token, or per image, by how tensor-parallel ranks share
    them."""

    residual: float
    """Features between matrices: whole on every rank; split by sequence parallelism."""
    read: float
    """Input of a pair of matrices: whole on every rank, unless it is gathered again."""
    inner: float
    """Features inside a pair of matrices: always split over the ranks."""

    @property
    def total(self) -> float:
        return sum(self)


def kept_by_layer(spec: TrainSpec, how: ActivationCheckpointing, *, lean: bool = True) -> KeptBytes:
    """Return the bytes kept by one layer; attention scores are not stored.

    Norms keep their input; so does a `lean` activation between two products, and not its result.

    All features of text have the type that the model computes in; those of images that of weights.
    """
    size = BYTES_PER_FEATURE[spec.precision]
    if spec.model.name.reads_images:
        numbers = image_shapes.kept_numbers(spec.model, spec.data, how) / spec.model.layers
        return KeptBytes(numbers * BYTES_PER_WEIGHT[spec.precision], 0, 0)
    model = spec.model
    width, inner = model.width, ffn_width(model)
    queries, keys_values = query_width(model), 2 * kv_width(model)
    gated = model.name is ModelName.LLAMA
    if how is ActivationCheckpointing.FULL:  # the layer's input
        return KeptBytes(width * size, 0, 0)
    if how is ActivationCheckpointing.SELECTIVE:
        # Also the results of its products: output; query, attention; key, value; gate, up. The last
        # one's, unless more is added to it, is not read again.
        first = 2 * inner if gated else inner
        products = (2 * queries + keys_values + first) * size
        return KeptBytes((3 if adds_to_last_product(spec) else 2) * width * size, 0, products)
    residual = 2 * width * size
    read = 2 * width * size  # both norms' outputs
    # Query, attention, key, value; before and, unless it is lean, in and after the activation.
    numbers = 2 * queries + keys_values + (2 if gated else 1) * (1 if lean else 2) * inner
    if model.query_key_norms:
        numbers += queries + keys_values / 2  # queries and keys before their norms, too
    return KeptBytes(residual, read, numbers * size)


def layer_bytes(resolved: ResolvedSpec, how: ActivationCheckpointing) -> float:
    """Return the bytes that one layer keeps of one micro-batch on one rank."""
    kept = kept_by_layer(resolved.spec, how, lean=is_lean(resolved))
    tensor = resolved.layout.tensor
    between = tensor if resolved.spec.parallelism.sequence_parallel else 1
    read = tensor if gathers_again(resolved.spec, resolved.layout) else 1
    return tokens(resolved) * (kept.residual / between + kept.read / read + kept.inner / tensor)


def is_lean(resolved: ResolvedSpec) -> bool:
    """Return True if the result of an activation is computed again, instead of kept.

    That needs a last matrix of the feed-forward part that is plain and not gathered by itself, and
    a layer that is not computed again as a whole.
    """
    spec = resolved.spec
    split = spec.tiling.gather is Gather.MATRIX
    whole = spec.activation_checkpointing is not ActivationCheckpointing.NONE
    zero3 = resolved.strategy is Strategy.ZERO3
    return not (split or adds_to_last_product(spec) or whole or zero3)


def adds_to_last_product(spec: TrainSpec) -> bool:
    """Return True if the last product of a layer has an adapter, or its matrix another form."""
    adapter = spec.adapter
    return adapter is not None and (
        AdapterTarget.DOWN in adapter.targets or adapter.base is not FrozenBase.NONE
    )


def bytes_per_feature(spec: TrainSpec) -> int:
    """Return the bytes of a number between two layers."""
    of_weights = spec.model.name.reads_images
    return (BYTES_PER_WEIGHT if of_weights else BYTES_PER_FEATURE)[spec.precision]


def tokens(resolved: ResolvedSpec) -> int:
    """Return the number of tokens of one micro-batch that a rank works on."""
    return (
        resolved.micro_batch_size * tokens_per_sample(resolved.spec.data) // resolved.layout.context
    )


def activation_bytes(resolved: ResolvedSpec, layers: float, in_flight: float) -> float:
    """Return the bytes that `layers` layers keep of `in_flight` micro-batches."""
    return layers * in_flight * layer_bytes(resolved, resolved.spec.activation_checkpointing)


def waiting_bytes(resolved: ResolvedSpec, layers: float, place: int) -> float:
    """Return the bytes by which gradients that wait for the second half of their backward pass
    exceed what is kept without them.

    Of each micro-batch that waits, a stage keeps the gradients of what its matrices and norms give.
    Read off torch's orders: rank r of p has r of them beside all else with InterleavedZeroBubble;
    at the end of ZBVZeroBubble 2 r, beside p + r micro-batches in a stage, of at most 2 p.
    """
    spec, ranks = resolved.spec, resolved.layout.pipeline
    schedule = schedule_of(resolved.strategy, spec.parallelism)
    goes_back_whole = spec.activation_checkpointing is not ActivationCheckpointing.NONE
    is_text = not spec.model.name.reads_images
    if ranks == 1 or schedule not in ZERO_BUBBLE or goes_back_whole or not is_text:
        return 0.0
    of_stage = layers / stages_per_rank(schedule, spec.parallelism)
    waiting = of_stage * gradient_bytes_of_layer(resolved)
    if schedule is PipelineSchedule.INTERLEAVED_ZERO_BUBBLE:
        return place * waiting
    kept = of_stage * layer_bytes(resolved, spec.activation_checkpointing)
    return max(0.0, 2 * place * waiting - (ranks - place) * kept)


def gradient_bytes_of_layer(resolved: ResolvedSpec) -> float:
    """Return the bytes of the gradients of what a text layer's matrices and norms give."""
    model, tensor = resolved.spec.model, resolved.layout.tensor
    between = tensor if resolved.spec.parallelism.sequence_parallel else 1
    inner = query_width(model) + 2 * kv_width(model)
    inner += (2 if model.name is ModelName.LLAMA else 1) * ffn_width(model)
    norms_and_sums = 2 * model.width / between + 2 * model.width
    numbers = norms_and_sums + inner / tensor
    return tokens(resolved) * numbers * bytes_per_feature(resolved.spec)


def end_bytes(resolved: ResolvedSpec, in_flight: float) -> float:
    """Return the bytes that the last norm and the head keep of micro-batches which wait for their
    backward pass: the norm's input, and the head's, which is whole on every tensor rank.

    Only GPipe has several of them at the end of the model; the one at work is in transit.
    """
    spec = resolved.spec
    schedule = schedule_of(resolved.strategy, spec.parallelism)
    if spec.model.name.reads_images or schedule is not PipelineSchedule.GPIPE:
        return 0.0
    split = resolved.layout.tensor if spec.parallelism.sequence_parallel else 1
    features = tokens(resolved) * spec.model.width * bytes_per_feature(spec)
    return (in_flight - 1) * features * (1 / split + 1)


def recomputed_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes that a layer which is computed again has beside those that it kept."""
    kept = layer_bytes(resolved, resolved.spec.activation_checkpointing)
    return max(0.0, layer_bytes(resolved, ActivationCheckpointing.NONE) - kept)


def transit_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes in transit.

    They are features, their gradient, and those of numbers inside a feed-forward part: of the
    activation's result and, where it is computed again, of what it reads, with a part of it.
    """
    spec = resolved.spec
    features = tokens(resolved) * 2 * spec.model.width * bytes_per_feature(spec)
    return features + passing_in_feed_forward(resolved)


def passing_in_feed_forward(resolved: ResolvedSpec) -> float:
    """Return the bytes in transit inside a layer's feed-forward part.

    The gradient of what an adapted last matrix reads is added up, from the matrix and the adapter.
    """
    model, adapter = resolved.spec.model, resolved.spec.adapter
    if model.name.reads_images:
        return 0.0
    inside = (2 if model.name is ModelName.LLAMA else 1) * (2 if is_lean(resolved) else 1)
    if adapter is not None and AdapterTarget.DOWN in adapter.targets:
        inside += 1
    numbers = inside * ffn_width(model) / resolved.layout.tensor
    return tokens(resolved) * numbers * bytes_per_feature(resolved.spec)


def feed_forward_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes of the feed-forward part of a text model's layer, with those in transit.

    They do not exist yet, or no longer, while the layer's attention is at work.
    """
    model = resolved.spec.model
    kept = (2 if model.name is ModelName.LLAMA else 1) * (1 if is_lean(resolved) else 2)
    numbers = kept * ffn_width(model) / resolved.layout.tensor
    kept_bytes = tokens(resolved) * numbers * bytes_per_feature(resolved.spec)
    return kept_bytes + passing_in_feed_forward(resolved)


def logit_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes of logits, their gradient and that of the head, in the middle of the loss.

    The logits of a run of tokens exist at a time: as a product gives them, and in float32 at least,
    where they turn into their gradient. So does the head's gradient, which several runs add up; one
    run gives it as it is. Logits of images are whole: there are the log-probabilities and the
    gradient beside them.
    """
    spec, tensor = resolved.spec, resolved.layout.tensor
    size = BYTES_PER_FEATURE[spec.precision]
    if spec.model.name.reads_images:
        choices = image_shapes.num_classes(spec.data)
        each = 3 * BYTES_PER_WEIGHT[spec.precision] if size >= FLOAT32 else size + 3 * FLOAT32
        return tokens(resolved) * choices * each / tensor
    words = -(-vocabulary_size(spec.data) // tensor)
    at_once = tokens_at_once(
        resolved.hardware.device,
        tokens=tokens(resolved),
        words=words,
        parts=spec.tiling.loss_parts,
    )
    wide = size if size >= FLOAT32 else size + FLOAT32
    matrix = 0 if spec.adapter is not None else words * spec.model.width
    is_one_run = at_once >= tokens(resolved)
    return at_once * words * wide + matrix * (size if is_one_run else wide)


def exchange_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes that context parallelism holds to send and to receive.

    In a ring: keys and values of this rank and of a neighbour, their gradients in float32, and the
    merged output. To trade heads: query, key, value and output before and after.
    """
    if resolved.layout.context == 1:
        return 0
    spec, trade = resolved.spec, resolved.spec.parallelism.ulysses_degree
    features = tokens(resolved) * query_width(spec.model) / resolved.layout.tensor
    grouped = kv_heads(spec.model) / heads(spec.model)
    numbers = 0.0
    if trade < resolved.layout.context:
        numbers += (8 * grouped + 2) * features
    if trade > 1:
        numbers += 2 * (1 + 2 * grouped) * features
    return numbers * max(FLOAT32, BYTES_PER_FEATURE[spec.precision])


def handed_over_bytes(
    resolved: ResolvedSpec, in_flight: float, *, has_head: bool, sends: int
) -> float:
    """Return the bytes that a pipeline's ranks hand each other, beside what their layers keep.

    A rank receives features of one micro-batch and gradients of one; what a stage has computed it
    keeps until the backward pass. With gloo, what a rank of several stages sends, so many messages
    of each micro-batch, stays until the step ends.
    """
    if resolved.layout.pipeline == 1:
        return 0
    parallelism = resolved.spec.parallelism
    schedule = schedule_of(resolved.strategy, parallelism)
    kept = (stages_per_rank(schedule, parallelism) - has_head) * in_flight
    if schedule not in SINGLE_STAGE and resolved.hardware.device == "cpu":
        kept = sends * resolved.gradient_accumulation_steps
    return (min(2, sends) + kept) * bytes_between_stages(resolved)


def bytes_between_stages(resolved: ResolvedSpec) -> int:
    """Return the bytes of one micro-batch that a rank sends to the next stage, or gets back."""
    spec = resolved.spec
    features = tokens(resolved) * spec.model.width * bytes_per_feature(spec)
    return features // resolved.layout.tensor if spec.parallelism.sequence_parallel else features


def micro_batches_kept(resolved: ResolvedSpec, place: int) -> float:
    """Return how many micro-batches' activations one rank of a pipeline keeps at once.

    Interleaving: Narayanan et al., arXiv:2104.04473, section 2.2, as torch runs it.
    """
    ranks, count = resolved.layout.pipeline, resolved.gradient_accumulation_steps
    if ranks == 1 or resolved.strategy is Strategy.NAIVE:
        return 1
    schedule = schedule_of(resolved.strategy, resolved.spec.parallelism)
    stages = stages_per_rank(schedule, resolved.spec.parallelism)
    match schedule:
        case PipelineSchedule.GPIPE:
            return count
        case PipelineSchedule.ONE_F_ONE_B:
            return min(ranks - place, count)
        case PipelineSchedule.INTERLEAVED:
            round_size = count // max(1, count // ranks)
            ahead = (stages - 1) * round_size + 2 * (ranks - 1 - place) + 1
            return min(stages * count, ahead) / stages
        case _:
            return min(ranks, count)
