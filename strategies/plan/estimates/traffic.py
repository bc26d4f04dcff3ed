"""Traffic that a rank sends in one optimizer step, by axis. Pure arithmetic, torch-free.

Of n bytes that N ranks share, a rank sends 2 (N-1)/N n in an all-reduce, and (N-1)/N n in an
all-gather, a reduce-scatter or an all-to-all, when it goes round a ring. The formulas are those of
docs/strategies/. The rank that sends the most counts: the first or the last of a pipeline has the
embedding or the head beside its layers.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, pairwise
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import (
    BYTES_PER_FEATURE,
    BYTES_PER_WEIGHT,
    gathers_again,
    multiplies_together,
    shares_copies,
)
from strategies.plan.estimates.activations import bytes_between_stages, tokens
from strategies.plan.estimates.memory import frozen_weight_bytes
from strategies.plan.estimates.optimizer_step import averages_per_weight
from strategies.plan.estimates.units import adds_to_parts, gathers_first_again, sizes, units
from strategies.plan.layout import AXES
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import count_trained, heads, kv_heads, vocabulary_size
from strategies.plan.spec import ActivationCheckpointing, GradientCompression, Strategy
from strategies.plan.stages import rank_of, schedule_of, stages_per_rank
from strategies.plan.words import counted

NUMBERS_PER_LOSS = 3  # a token's largest logit, its sum of exponentials, its own logit
BYTES_OF_LOSS = 4
BYTES_COMPRESSED = 2


class Traffic(BaseModel):
    """Data that one rank sends along one axis in one step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    axis: str
    ranks: int
    """Number of ranks that communicate with each other."""
    num_bytes: int
    crosses_nodes: bool
    overlaps: bool
    """True if the data can travel while the rank computes."""
    what: str


class Shares(NamedTuple):
    """Sizes that traffic depends on."""

    weights: int  # bytes of this rank's share of the weights, gathered along all but two axes
    used_once: int  # bytes of those that one gathering serves: the last unit, and an embedding
    gradients: int  # bytes of the gradients of trained weights
    features: int  # numbers between two layers of one micro-batch, on one context rank
    micro_batches: int


def traffic(resolved: ResolvedSpec) -> list[Traffic]:
    """Return the traffic of every axis along which ranks communicate, outer to inner."""
    shares = shares_of(resolved)
    found = [*pipeline(resolved, shares), *data_parallel(resolved, shares)]
    found += [*context(resolved, shares), *tensor(resolved, shares)]
    return found


def shares_of(resolved: ResolvedSpec) -> Shares:
    spec, layout = resolved.spec, resolved.layout
    across, size = layout.tensor * layout.pipeline, sizes(resolved)
    trained = -(-count_trained(spec) // across)
    frozen = -(-frozen_weight_bytes(spec, most=size.gathered) // across)
    first, _, last = units(resolved)
    once = [last] if gathers_first_again(resolved) else [first, last]
    return Shares(
        weights=trained * size.gathered + frozen,
        used_once=int(sum(unit.trained * size.gathered + unit.frozen for unit in once))
        // layout.tensor,
        gradients=trained * size.sent,
        features=tokens(resolved) * spec.model.width,
        micro_batches=resolved.gradient_accumulation_steps,
    )


def pipeline(resolved: ResolvedSpec, shares: Shares) -> Iterator[Traffic]:
    """Yield features sent to the next stage and gradients to the previous one, for all
    micro-batches."""
    spec, ranks = resolved.spec, resolved.layout.pipeline
    if ranks == 1:
        return
    schedule = schedule_of(resolved.strategy, spec.parallelism)
    stages = ranks * stages_per_rank(schedule, spec.parallelism)
    at = [rank_of(stage, ranks=ranks, schedule=schedule) for stage in range(stages)]
    borders = [(a, b) for a, b in pairwise(at) if a != b]
    # Across a border the earlier stage sends features, the later one gradients.
    most = max(Counter(chain.from_iterable(borders)).values(), default=0)
    sent = most * shares.micro_batches * bytes_between_stages(resolved)
    what = f"features of {shares.micro_batches} micro-batches over {counted(most, 'stage border')}"
    tied = spec.model.tied_embeddings and spec.adapter is None
    if tied and resolved.strategy is not Strategy.NAIVE:
        sent += vocabulary_bytes(resolved)
        what += ", and the gradient of the tied matrix"
    yield along(resolved, ("pipeline",), sent, overlaps=False, what=what)


def data_parallel(resolved: ResolvedSpec, shares: Shares) -> Iterator[Traffic]:
    """Yield gradients, and with shards weights, among ranks with different samples or tokens."""
    layout, strategy = resolved.layout, resolved.strategy
    if layout.shard == 1:
        ranks = layout.replicate * layout.context
        if ranks > 1:
            axes = tuple(a for a in ("replicate", "context") if getattr(layout, a) > 1)
            yield replicas(resolved, axes, all_reduce(ranks, shares.gradients))
        return
    ranks = layout.shard * layout.context
    axes = tuple(a for a in ("shard", "context") if getattr(layout, a) > 1)
    times = shares.micro_batches
    match strategy:
        case Strategy.ZERO1 | Strategy.ZERO2:
            sums = 1 if strategy is Strategy.ZERO1 else times
            sent = sums * all_reduce(ranks, shares.gradients) + gather(ranks, shares.weights)
            what = f"gradients summed {times_in_words(sums)}, updated weights gathered once"
        case Strategy.ZERO3:
            sent = 2 * times * gather(ranks, shares.weights)
            sent += times * gather(ranks, shares.gradients)
            gathered, scattered = times_in_words(2 * times), times_in_words(times)
            what = f"weights gathered {gathered}, gradients scattered {scattered}"
        case _:
            gathers = 1 if layout.pipeline > 1 else 2 * times  # a stage stays gathered
            sums = times if adds_to_parts(resolved) else 1
            weights = gathers * shares.weights
            weights -= 0 if layout.pipeline > 1 else times * shares.used_once
            sent = gather(ranks, weights) + sums * gather(ranks, shares.gradients)
            gathered, scattered = times_in_words(gathers), times_in_words(sums)
            what = f"weights gathered {gathered}, gradients scattered {scattered}"
    yield along(resolved, axes, sent, overlaps=True, what=what)
    if layout.replicate > 1:
        part = shares.gradients // ranks
        sent = all_reduce(layout.replicate, part)
        yield along(resolved, ("replicate",), sent, overlaps=True, what="gradients summed, once")


def replicas(resolved: ResolvedSpec, axes: tuple[str, ...], whole_sum: int) -> Traffic:
    """Return the traffic of ranks with the same weights, whose gradients take `whole_sum` bytes to
    sum.

    Ranks of local SGD, whose weights differ between averages, are included.
    """
    parallelism = resolved.spec.parallelism
    every = parallelism.average_every_steps
    if every is not None:
        states = 1 + averages_per_weight(resolved.spec.training)
        what = f"weights and optimizer state averaged, every {every} steps"
        return along(resolved, axes, states * whole_sum // every, overlaps=False, what=what)
    if shares_copies(resolved.spec, resolved.layout):
        what = "gradients summed, once, after both passes"
        return along(resolved, axes, whole_sum, overlaps=False, what=what)
    what = "gradients summed, once"
    if parallelism.gradient_compression is not GradientCompression.NONE:
        whole_sum = whole_sum * BYTES_COMPRESSED // BYTES_PER_WEIGHT[resolved.spec.precision]
        what += f", as {parallelism.gradient_compression}"
    return along(resolved, axes, whole_sum, overlaps=True, what=what)


def context(resolved: ResolvedSpec, shares: Shares) -> Iterator[Traffic]:
    """Yield keys and values round a ring, or heads traded (Ulysses), in every layer and pass.

    With b samples of s tokens, h features, c ranks of which u trade, g key-value heads per head, a
    rank sends (2+2g) bsh (u-1)/(uc) to trade and 2g bsh (c/u-1)/c round the ring, each way; and in
    the backward pass 2g bsh/u of gradients, at least in float32, if there is a ring.
    """
    spec, ranks = resolved.spec, resolved.layout.context
    if ranks == 1:
        return
    trade = spec.parallelism.ulysses_degree
    ring = ranks // trade
    grouped = Fraction(kv_heads(spec.model), heads(spec.model))
    bsh = Fraction(shares.features * ranks, resolved.layout.tensor)
    traded = (2 + 2 * grouped) * bsh * Fraction(trade - 1, trade * ranks)
    round_ring = 2 * grouped * bsh * Fraction(ring - 1, ranks)
    gradients = 2 * grouped * bsh / trade if ring > 1 else Fraction(0)
    passes = 3 if recomputes(resolved) else 2
    size = BYTES_PER_FEATURE[spec.precision]
    per_layer = passes * (traded + round_ring) * size + gradients * max(4, size)
    sent = int(per_layer * layers_on_a_rank(resolved) * shares.micro_batches)
    what = "keys and values sent round the ring" if trade == 1 else "heads exchanged"
    if 1 < trade < ranks:
        what += ", keys and values sent round the ring"
    yield along(resolved, ("context",), sent, overlaps=trade == 1, what=f"{what}, in every layer")


def tensor(resolved: ResolvedSpec, shares: Shares) -> Iterator[Traffic]:
    """Yield two sums of features per pass of a layer, one at each end of the model, and the loss.

    A recomputed layer does not send its output again, so one sum is enough; in two halves, of
    tokens and of features (sequence parallelism), both inputs are gathered once more, as they are
    if they are not kept. What travels while the backward pass multiplies: gradients of what its
    pairs of matrices read, and what is gathered again.
    """
    spec, ranks = resolved.spec, resolved.layout.tensor
    if ranks == 1:
        return
    halves, layers = spec.parallelism.sequence_parallel, layers_on_a_rank(resolved)
    in_layer, behind = 4.0, 0.0
    if recomputes(resolved):
        in_layer = 5.5 if halves else 5.0
    if multiplies_together(spec, resolved.layout):
        behind = 1.0 if halves else 2.0
        in_layer -= behind
    if gathers_again(spec, resolved.layout):
        behind += 1
    sums = in_layer * layers + (2 if resolved.layout.pipeline == 1 else 1)
    loss = all_reduce(ranks, NUMBERS_PER_LOSS * tokens(resolved) * BYTES_OF_LOSS)
    how = "scattered and gathered" if halves else "summed"
    for times, beside, overlaps in ((sums, loss, False), (behind * layers, 0, True)):
        num_bytes = int(shares.features * times * BYTES_PER_FEATURE[spec.precision])
        sent = shares.micro_batches * (all_reduce(ranks, num_bytes) + beside)
        what = f"features {how} {times:g} times in each micro-batch"
        if sent:
            yield along(resolved, ("tensor",), sent, overlaps=overlaps, what=what)


def along(
    resolved: ResolvedSpec, axes: tuple[str, ...], num_bytes: int, *, overlaps: bool, what: str
) -> Traffic:
    """Return the traffic among the ranks of a line along some axes."""
    ranks = 1
    for axis in axes:
        ranks *= getattr(resolved.layout, axis)
    return Traffic(
        axis=" x ".join(axes),
        ranks=ranks,
        num_bytes=num_bytes,
        crosses_nodes=crosses_nodes(resolved, axes[0]),
        overlaps=overlaps,
        what=what,
    )


def crosses_nodes(resolved: ResolvedSpec, axis: str) -> bool:
    """Return True if neighbours along an axis can be on different nodes: ranks fill node after
    node."""
    inner = AXES[AXES.index(axis) :]
    together = 1
    for name in inner:
        together *= getattr(resolved.layout, name)
    return resolved.nodes > 1 and resolved.ranks_per_node % together != 0


def all_reduce(ranks: int, num_bytes: int) -> int:
    """Return the bytes that one of `ranks` sends to sum `num_bytes`."""
    return 2 * gather(ranks, num_bytes)


def gather(ranks: int, num_bytes: int) -> int:
    """Return the bytes that one of `ranks` sends so that all have `num_bytes`, or a part of a
    sum."""
    return num_bytes * (ranks - 1) // ranks


def layers_on_a_rank(resolved: ResolvedSpec) -> int:
    return -(-resolved.spec.model.layers // resolved.layout.pipeline)


def recomputes(resolved: ResolvedSpec) -> bool:
    """Return True if the backward pass runs each layer's forward pass again, with its traffic."""
    return resolved.spec.activation_checkpointing is ActivationCheckpointing.FULL


def vocabulary_bytes(resolved: ResolvedSpec) -> int:
    """Return the bytes of this rank's part of the embedding's matrix."""
    spec = resolved.spec
    numbers = vocabulary_size(spec.data) * spec.model.width // resolved.layout.tensor
    return numbers * BYTES_PER_WEIGHT[spec.precision]


def times_in_words(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
