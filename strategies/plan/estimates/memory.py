"""Memory of a run: bytes per rank, by term. Pure arithmetic, torch-free.

Terms marked exact follow from the code alone; the others are estimates, with their source.
"""

import math
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import (
    BYTES_PER_FEATURE,
    BYTES_PER_WEIGHT,
    bytes_per_frozen,
    frozen_dtype,
    shares_copies,
)
from strategies.plan.estimates import swapping
from strategies.plan.estimates.activations import (
    activation_bytes,
    end_bytes,
    exchange_bytes,
    feed_forward_bytes,
    handed_over_bytes,
    logit_bytes,
    micro_batches_kept,
    recomputed_bytes,
    transit_bytes,
    waiting_bytes,
)
from strategies.plan.estimates.optimizer_step import (
    averages_per_weight,
    numbers_copied_in_step,
)
from strategies.plan.estimates.runtime import process_gib
from strategies.plan.estimates.scores import InAttention, copied_keys, mask, scores
from strategies.plan.estimates.units import (
    Spare,
    adds_to_parts,
    gathered,
    half_beside,
    in_half,
    on_host,
    shards_by_deepspeed,
    sizes,
    units,
)
from strategies.plan.estimates.zero import (
    Sending,
    gradients_kept,
    matrix_of,
    sending,
    sends_head_at_once,
    updates_here,
    weights_computed_with,
)
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import (
    ADAM_8BIT_BLOCK,
    NF4_BLOCK,
    count_trained,
    frozen_bytes,
    matrices,
    parameters_of,
    vocabulary_size,
)
from strategies.plan.spec import (
    ActivationCheckpointing,
    FrozenBase,
    OptimizerName,
    PipelineSchedule,
    Strategy,
    TrainSpec,
)
from strategies.plan.stages import (
    ZERO_BUBBLE,
    layers_of,
    rank_of,
    schedule_of,
    stages_per_rank,
)

GIB = 2**30
PROCESS = "process"  # the name of its term
IN_EVERY_PHASE = ("frozen", "weights", "gradients", "optimizer", "late gradients", PROCESS)
FLOAT32_BYTES = 4
SWAPPED_THROUGH = "buffers for files: rows of the optimizer, parts of matrices"


MemoryPhase = Literal["setup", "forward", "backward", "optimizer"]
"""Building the model, and the phases of a step."""


class MemoryTerm(BaseModel):
    """One line of a plan's memory table, per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gib: float
    exact: bool
    source: str


class StageShare(NamedTuple):
    """Part of the model that one pipeline rank has, before the other axes split it."""

    layers: int
    trained: float  # numbers
    frozen: float  # bytes
    copied: float  # numbers of matrices of which it would keep half-precision copies
    has_embedding: bool
    has_head: bool
    in_flight: float  # micro-batches
    place: int  # along the pipeline
    sends: int  # messages of each micro-batch, to other ranks of the pipeline


class InPasses(NamedTuple):
    """Bytes that a rank holds at the peak of the forward and backward passes."""

    activations: float
    again: float
    """Bytes of the layer that is computed again."""
    transit: float
    logits: float
    """Bytes of logits that exceed the layer which is computed again after them."""
    scores: InAttention
    mask: InAttention
    keys: InAttention

    @property
    def total(self) -> float:
        in_attention = self.scores.total + self.mask.total + self.keys.total
        return self.activations + self.again + self.transit + self.logits + in_attention

    def less(self, room: float, *, at_end: bool = False) -> "InPasses":
        """Return the bytes beside gradients, which take over `room` bytes of what has been kept.

        What passes in attention does so in the last layer, whose gradient is still to come, and in
        the first, when all others have theirs. So does a layer that is computed again. Gradients
        that take most memory `at_end`, when all have come, take that over, too.
        """
        left = []
        in_attention = (self.scores.kept, self.mask.kept, self.keys.kept)
        passing = (self.again, self.transit) if at_end else ()
        for kept in (self.activations, self.logits, *in_attention, *passing):
            left.append(max(0.0, kept - room))
            room = max(0.0, room - kept)
        activations, logits, of_scores, of_mask, of_keys, *rest = left
        again, transit = rest or (self.again, self.transit)
        return self._replace(
            activations=activations,
            logits=logits,
            scores=self.scores._replace(kept=of_scores),
            mask=self.mask._replace(kept=of_mask),
            keys=self.keys._replace(kept=of_keys),
            again=again,
            transit=transit,
        )


class States(NamedTuple):
    """Numbers of each kind that a rank holds on its device."""

    weights: int
    gradients: int
    averages: int


def states_held(resolved: ResolvedSpec, held: int, shards: int) -> States:
    """Return the numbers that a rank holds of `held` trained weights that `shards` ranks share.

    While a step accumulates, fully sharded ranks keep whole gradients, unless they reduce those of
    every micro-batch, and DistributedDataParallel keeps gradients beside its buckets. Data
    offloaded to the host leaves a GPU, but not a CPU; data offloaded to files leaves both.

    DeepSpeed (0.19) has its own part of the weights for the update, beside those that the model
    computes with; if these have 16 bits, they are no numbers of this type.
    """
    part = -(-held // shards)
    averages = averages_per_weight(resolved.spec.training) * part
    averages = averages if updates_here(resolved) else 0
    if shards_by_deepspeed(resolved):
        weights = part if updates_here(resolved) else 0
        if not half_beside(resolved):
            weights += weights_computed_with(resolved, held, part)
        return States(weights, gradients_kept(resolved, held, part), averages)
    own = 0 if on_host(resolved) else part
    gradients = own
    if resolved.gradient_accumulation_steps > 1 and not adds_to_parts(resolved):
        gradients = 2 * held if buckets_gradients(resolved) else held
    return States(own, gradients, averages)


def gradients_stay(resolved: ResolvedSpec) -> bool:
    """Return True if gradients are allocated before the backward pass, beside all activations.

    They are if a step accumulates, or if DistributedDataParallel or DeepSpeed's stage 3 keeps
    buffers for them.
    """
    return (
        resolved.gradient_accumulation_steps > 1
        or resolved.strategy is Strategy.ZERO3
        or buckets_gradients(resolved)
    )


def room_of_gradients(
    resolved: ResolvedSpec, gradients: float, sent: Sending, logits: float, micro_batch: float
) -> float:
    """Return the bytes of `gradients`, and of what sends them, that do not exist yet when the
    passes hold the most.

    GPipe begins the backward pass with all micro-batches in memory: the gradients of a step appear
    while the first one, of `micro_batch` bytes, is freed. The first gradient of all is the head's,
    when the logits are gone. For it DeepSpeed's first stages allocate the bucket, which stage 3
    always has; and a head that is larger than a bucket is sent at once.
    """
    to_come = 0.0 if gradients_stay(resolved) else gradients
    if shards_by_deepspeed(resolved):
        first = 0.0 if resolved.strategy is Strategy.ZERO3 else sent.bucket
        if sends_head_at_once(resolved):
            return to_come + min(first + sent.copies, logits)
        return to_come + sent.copies + min(first, logits)
    if to_come > 0:
        return to_come
    schedule = schedule_of(resolved.strategy, resolved.spec.parallelism)
    is_gpipe = resolved.layout.pipeline > 1 and schedule is PipelineSchedule.GPIPE
    if is_gpipe and resolved.strategy is not Strategy.NAIVE:
        return min(gradients, micro_batch)
    return 0.0


def buckets_gradients(resolved: ResolvedSpec) -> bool:
    """Return True if DistributedDataParallel runs: whole models on ranks that share gradients."""
    layout = resolved.layout
    others = layout.shard * layout.tensor * layout.pipeline
    talks = layout.replicate * layout.context > 1 and resolved.strategy is not Strategy.LOCAL_SGD
    return others == 1 and talks


def frozen_weight_bytes(spec: TrainSpec, *, most: int = 8) -> int:
    """Return the bytes of the whole model's frozen weights, with `most` for a number.

    Matrices of layers are stored as asked, embedding and head in the checkpoint's type, norms and
    biases in the type of trained weights. QLoRA (arXiv:2305.14314),
    section 3: 4.127 bits for a number in NF4.
    """
    if spec.adapter is None:
        return 0
    if spec.model.name.reads_images:
        return parameters_of(spec) * BYTES_PER_WEIGHT[spec.precision]
    size, shapes = min(most, bytes_per_frozen(spec)), matrices(spec.model).values()
    layer = sum(frozen_bytes(spec.adapter.base, shape, whole=size) for shape in shapes)
    ends = (1 if spec.model.tied_embeddings else 2) * vocabulary_size(spec.data) * spec.model.width
    inside = spec.model.layers * sum(math.prod(shape) for shape in shapes)
    vectors = (parameters_of(spec) - inside - ends) * min(most, BYTES_PER_WEIGHT[spec.precision])
    return spec.model.layers * layer + ends * size + vectors


def numbers_copied(spec: TrainSpec) -> tuple[int, int]:
    """Return how many numbers of layers and of the head are kept in half precision for the backward
    pass.

    A quantised matrix is dequantised again instead, and a frozen one in the type of the computation
    is not copied. The embedding is rounded, but its backward pass does not need it.
    """
    if spec.model.name.reads_images:
        return parameters_of(spec), 0
    layers, head = sum_of_layers(spec), vocabulary_size(spec.data) * spec.model.width
    if spec.adapter is None:
        return layers, head
    if frozen_dtype(spec) == spec.precision:
        return count_trained(spec), 0
    if spec.adapter.base is not FrozenBase.NONE:
        layer = sum(math.prod(shape) for shape in matrices(spec.model).values())
        layers -= spec.model.layers * layer
    return layers + count_trained(spec), head


def shares(resolved: ResolvedSpec) -> list[StageShare]:
    """Return the share of the model that each rank of a pipeline has.

    A model that cannot be cut by layers gets a single share, that of the fullest rank.
    """
    spec, ranks = resolved.spec, resolved.layout.pipeline
    trained, frozen = count_trained(spec), frozen_weight_bytes(spec)
    copied, of_head = numbers_copied(spec)
    num_stages = ranks * stages_per_rank(
        schedule_of(resolved.strategy, spec.parallelism), spec.parallelism
    )
    if ranks == 1 or num_stages > spec.model.layers or spec.model.name.reads_images:
        layers = -(-spec.model.layers // ranks)
        parts = (trained / ranks, frozen / ranks, (copied + of_head) / ranks)
        kept = micro_batches_kept(resolved, 0)
        return [
            StageShare(
                layers,
                *parts,
                has_embedding=True,
                has_head=True,
                in_flight=kept,
                place=0,
                sends=2 * (num_stages // ranks - 1),
            )
        ]
    all_ends = parameters_of(spec) - sum_of_layers(spec)
    # Weights outside layers are trained, or frozen as they are.
    per_end = (1, 0) if spec.adapter is None else (0, bytes_per_frozen(spec))
    schedule = schedule_of(resolved.strategy, spec.parallelism)
    cut, found = layers_of(spec, num_stages), []
    own: list[list[int]] = [[] for _ in range(ranks)]
    for stage in range(num_stages):
        own[rank_of(stage, ranks=ranks, schedule=schedule)].append(stage)
    for place in range(ranks):
        layers, ends = held_by(spec, own[place], cut)
        of_layers = layers / spec.model.layers
        has_head = num_stages - 1 in own[place]
        found.append(
            StageShare(
                layers=layers,
                trained=(trained - per_end[0] * all_ends) * of_layers + per_end[0] * ends,
                frozen=(frozen - per_end[1] * all_ends) * of_layers + per_end[1] * ends,
                copied=copied * of_layers + of_head * has_head,
                has_embedding=0 in own[place],
                has_head=has_head,
                in_flight=micro_batches_kept(resolved, place),
                place=place,
                sends=len(neighbours_of(own[place], num_stages)),
            )
        )
    return found


def neighbours_of(own: list[int], num_stages: int) -> list[int]:
    """Return the stages of other ranks before and after each of a rank's own."""
    beside = [stage + step for stage in own for step in (-1, 1)]
    return [each for each in beside if 0 <= each < num_stages and each not in own]


def held_by(spec: TrainSpec, own: list[int], cut: list[range]) -> tuple[int, int]:
    """Return the layers of a pipeline rank and its numbers outside layers.

    `own` are its stages, `cut` the layers of every stage.
    """
    has_embedding, has_head = 0 in own, len(cut) - 1 in own
    matrix = vocabulary_size(spec.data) * spec.model.width
    ends = matrix * (has_embedding + has_head)
    if has_embedding and has_head and spec.model.tied_embeddings:
        ends = matrix
    return sum(len(cut[stage]) for stage in own), ends + spec.model.width * has_head


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


def terms_of(resolved: ResolvedSpec, share: StageShare) -> list[MemoryTerm]:
    """Return memory by term for a rank with this share of the model."""
    spec, layout = resolved.spec, resolved.layout
    size, how = BYTES_PER_WEIGHT[spec.precision], spec.activation_checkpointing
    held = math.ceil(share.trained / layout.tensor)
    shards = layout.shard * layout.context if layout.shard > 1 else 1
    states, part = states_held(resolved, held, shards), -(-held // shards)
    frozen = share.frozen / layout.tensor
    exact = layout.tensor == 1 and shards == 1

    def term(name: str, num_bytes: float, exact: bool, source: str) -> MemoryTerm:
        return MemoryTerm(name=name, gib=num_bytes / GIB, exact=exact, source=source)

    terms = []
    if spec.adapter is not None:
        base = spec.adapter.base
        on_gpu = 0.0 if on_host(resolved) else frozen / shards
        terms.append(term("frozen", on_gpu, exact, f"base {base}"))
        if base is not FrozenBase.NONE:
            largest = max(map(math.prod, matrices(spec.model).values()), default=0)
            of_number: float = BYTES_PER_FEATURE[spec.precision]
            if base is FrozenBase.NF4:
                of_number += 4 / NF4_BLOCK  # the scales, in float32
            terms.append(term("opened", largest * of_number, False, "the dequantised matrix"))
    eight_bit = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    average = 1 + 4 / ADAM_8BIT_BLOCK if eight_bit else size
    averages = averages_per_weight(spec.training)
    weights: float = states.weights * size
    source = f"{states.weights:,} x {size} bytes"
    if both := half_beside(resolved):
        beside = weights_computed_with(resolved, held, part)
        weights += beside * BYTES_PER_FEATURE[spec.precision]
        source += f", and {beside:,} of 16 bits that the model computes with"
    terms += [
        term("weights", weights, exact, source),
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
    passes, sent = in_passes(resolved, share), sending(resolved, held, part)
    if sent.bucket > 0:
        source = "DeepSpeed's bucket of gradients, and copies of it, or of a larger matrix"
        terms.append(term("sent", sum(sent), False, source))
    if resolved.strategy is Strategy.ZERO3:
        passing, layer = sizes(resolved), held / max(1, share.layers)
        if not spec.model.name.reads_images:
            layer = units(resolved).layer.trained
        of_layers = layer * (2 * passing.gathered + passing.gradient)
        of_matrix = matrix_of(resolved) * (passing.gathered + passing.gradient)
        source = "weights of this layer and the next, and gradients"
        terms.append(term("gathered", max(of_layers, of_matrix), False, source))
    elif shards > 1 and not shards_by_deepspeed(resolved):
        whole = held * sizes(resolved).gathered + frozen
        unused = spare(resolved, passes, states.gradients * size)
        num_bytes, source = gathered(resolved, stage=whole, spare=unused)
        terms.append(term("gathered", num_bytes, False, source))
    if resolved.hardware.device == "cpu" and (swapped := swapping.buffer_bytes(spec, shards)) > 0:
        terms.append(term("swap buffers", swapped, False, SWAPPED_THROUGH))
    copies = 0.0
    if BYTES_PER_FEATURE[spec.precision] < size and not (in_half(resolved) or both):
        copied = share.copied / layout.tensor
        if how is ActivationCheckpointing.NONE:
            copied *= copies_at_once(resolved, share.in_flight)
        else:
            copied /= max(1, share.layers)
        copies = copied * BYTES_PER_FEATURE[spec.precision]
        terms.append(term("copies", copies, False, "matrices in half precision, for backward"))
    if layout.context > 1:
        exchanged = exchange_bytes(resolved)
        terms.append(term("exchanged", exchanged, False, "keys, values and their gradients"))
    if layout.pipeline > 1:
        handed = handed_over_bytes(
            resolved, share.in_flight, has_head=share.has_head, sends=share.sends
        )
        terms.append(
            term("handed over", handed, False, "features and gradients passed between stages")
        )
    source = "numbers that autograd keeps, layer by layer"
    of_passes = passes.activations + (0 if shares_copies(spec, layout) else copies)
    each = of_passes / max(1, share.in_flight)
    room = room_of_gradients(resolved, states.gradients * size, sent, passes.logits, each)
    if room > 0:
        passes = passes.less(room, at_end=shards_by_deepspeed(resolved))
        source += ", less the memory that gradients take over from them"
    if not shards_by_deepspeed(resolved) and (shards == 1 or layout.pipeline > 1):
        last = embedding_gradient_bytes(resolved) if share.has_embedding else 0.0
        last -= passes.total + copies
        if last > 0:
            numbers = "gradient of the embedding, to be added, less what is freed before"
            terms.append(term("embedding", last, False, numbers))
    logits_source = "logits at a time, and gradients of these and of the head"
    if passes.again > 0:
        logits_source += ", less a layer that is computed again after them"
    terms += [
        term("activations", passes.activations + passes.again + passes.transit, False, source),
        term("logits", passes.logits, False, logits_source),
    ]
    if passes.scores.total > 0:
        kept_scores = "attention without a fused kernel: heads x tokens x tokens per sample"
        terms.append(term("scores", passes.scores.total, False, kept_scores))
    if passes.mask.total > 0:
        masks = "attention within documents: tokens x tokens per sample"
        terms.append(term("mask", passes.mask.total, False, masks))
    if passes.keys.total > 0:
        copies_of = "keys and values, copied for each head of queries"
        terms.append(term("keys", passes.keys.total, False, copies_of))
    terms += [
        process_term(resolved),
    ]
    freed = GIB * sum(each.gib for each in terms if each.name not in IN_EVERY_PHASE)
    copied = numbers_copied_in_step(spec) * size / (layout.tensor * shards)
    if copied > freed and not on_host(resolved):
        source = f"copies that a step of {spec.training.optimizer} makes, less what passes free"
        terms.append(term("update", copied - freed, False, source))
    return terms


def copies_at_once(resolved: ResolvedSpec, in_flight: float) -> float:
    """Return how many half-precision copies of its matrices a rank has that keeps all activations.

    Each micro-batch has its own, unless they share one. The zero-bubble schedules make all
    gradients of a stage at once; those of shared copies are in half precision as well.
    """
    parallelism = resolved.spec.parallelism
    if not shares_copies(resolved.spec, resolved.layout):
        return in_flight
    schedule = schedule_of(resolved.strategy, parallelism)
    if schedule in ZERO_BUBBLE:
        return 1 + 1 / stages_per_rank(schedule, parallelism)
    return 1


def spare(resolved: ResolvedSpec, passes: InPasses, gradients: float) -> Spare:
    """Return the bytes of the passes and of `gradients` that no longer or not yet exist."""
    again, logits = passes.again, passes.logits
    if gradients_stay(resolved):
        return Spare(head=logits + again, last_layer=logits, layer=logits, first=passes.total)
    kept = passes.total - logits
    beside = passes.less(gradients)
    last_layer = gradients + beside.total - kept
    return Spare(
        head=last_layer + again,
        last_layer=last_layer,
        layer=beside.logits,
        first=beside.total,
    )


def in_passes(resolved: ResolvedSpec, share: StageShare) -> InPasses:
    """Return the bytes that the passes of a rank with this share of the model hold at most.

    What passes in attention counts as far as it is more than what is never there at the same time:
    logits and the feed-forward part of a layer.
    """
    layers, in_flight = share.layers, share.in_flight
    again = recomputed_bytes(resolved)
    logits = max(0.0, logit_bytes(resolved) - again) if share.has_head else 0.0
    of_scores, of_mask = scores(resolved, layers, in_flight), mask(resolved, layers, in_flight)
    of_keys = copied_keys(resolved, layers, in_flight)
    if of_scores.passing + of_mask.passing + of_keys.passing > 0:
        elsewhere = logits + feed_forward_bytes(resolved)
        of_keys = of_keys.beside(elsewhere - of_scores.passing - of_mask.passing)
        of_mask = of_mask.beside(elsewhere - of_scores.passing)
        of_scores = of_scores.beside(elsewhere)
    activations = activation_bytes(resolved, layers, in_flight)
    activations += waiting_bytes(resolved, layers, share.place)
    if share.has_head:
        activations += end_bytes(resolved, in_flight)
    in_transit = transit_bytes(resolved)
    return InPasses(activations, again, in_transit, logits, of_scores, of_mask, of_keys)


def embedding_gradient_bytes(resolved: ResolvedSpec) -> float:
    """Return the bytes of the embedding's gradient beside the one that is kept.

    It is the last of a micro-batch, in the type of the computation. One that is added to earlier
    gradients exists once more, in the type of weights.
    """
    spec = resolved.spec
    if spec.adapter is not None or spec.model.name.reads_images:
        return 0.0
    wide, narrow = BYTES_PER_WEIGHT[spec.precision], BYTES_PER_FEATURE[spec.precision]
    size = (narrow if narrow < wide else 0) + (wide if gradients_stay(resolved) else 0)
    return vocabulary_size(spec.data) * spec.model.width * size / resolved.layout.tensor


def needed_by_phase(
    resolved: ResolvedSpec, share: StageShare, terms: list[MemoryTerm], factor: float = 1.0
) -> dict[MemoryPhase, float]:
    """Return the highest memory of a rank in each phase in GiB, without Python and its libraries.

    `terms` are those of its share of the model, the estimated ones `factor` times as large.
    """
    gib = {each.name: each.gib for each in terms if each.name != PROCESS}
    late, update = gib.get("late gradients", 0.0), gib.get("update", 0.0)
    held = sum(gib.get(name, 0.0) for name in ("frozen", "weights", "optimizer")) + late
    gradients, backward = gib["gradients"], sum(gib.values()) - update
    own = math.ceil(share.trained / resolved.layout.tensor)
    sent = sending(resolved, own, -(-own // resolved.layout.shard))
    passes = in_passes(resolved, share)
    to_come = 0.0 if gradients_stay(resolved) else gradients
    to_send = sent.copies + (0.0 if resolved.strategy is Strategy.ZERO3 else sent.bucket)
    room = room_of_gradients(resolved, to_come * GIB, sent, passes.logits, 0.0)
    taken_over = passes.total - passes.less(room, at_end=shards_by_deepspeed(resolved)).total
    forward = backward - to_come - factor * (to_send - taken_over) / GIB
    copied = numbers_copied_in_step(resolved.spec) * BYTES_PER_WEIGHT[resolved.spec.precision]
    copied = 0 if on_host(resolved) else copied
    shards = resolved.layout.tensor * resolved.layout.shard
    return {
        "setup": held,
        "forward": forward,
        "backward": backward,
        "optimizer": held + gradients + max(update, copied / shards / GIB),
    }


def process_term(resolved: ResolvedSpec) -> MemoryTerm:
    """Return the memory of a rank before its model."""
    gib, source = process_gib(resolved)
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


def estimate(name: str, num_bytes: float, source: str) -> MemoryTerm:
    """Return a term that is an estimate."""
    return MemoryTerm(name=name, gib=num_bytes / GIB, exact=False, source=source)
