"""Advice for a job that does not fit: legal changes that make it fit, each with its own numbers.

`DECISIONS` is the table, in the order in which it is read: first changes that keep the training as
it is and cost little, then those that use other ranks or the host, last those that change the
trained model. Pure, torch-free.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import BaseModel, ConfigDict

from strategies.plan.estimates.units import adds_to_parts, shards_by_torch
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.spec import (
    ZERO_STAGES,
    ActivationCheckpointing,
    FrozenBase,
    Gather,
    Offload,
    OptimizerName,
    Precision,
    Reduction,
    Strategy,
    TrainSpec,
)

Fields = dict[str, Any]  # dotted field -> value
RANKS = "resources.ranks_per_node"
MICRO, ACCUMULATION = "training.micro_batch_size", "training.gradient_accumulation_steps"
MOST_LOSS_PARTS = 64
MOST_TOGETHER = 4  # changes in one piece of advice
PAIRED = 6  # changes among which every pair is tried


class Advice(BaseModel):
    """One change, or several together, and the plan of the changed job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    change: dict[str, Any]
    """Field of the job, dotted, to its new value; `parallelism`: the whole part anew."""
    costs: str
    fits: bool
    needed_gib: float
    slow_down: float | None
    """Expected step time over that of the unchanged job; None: the hardware's speed is not
    known."""
    result_class: str
    changes_training: bool
    """True if the trained model changes: other weights, or another number format of them."""


@dataclass(frozen=True)
class Decision:
    """One line of the table; its candidates are tried in order, the mildest first."""

    title: str
    costs: str
    candidates: Callable[[ResolvedSpec], Iterator[Fields]]
    changes_training: bool = False


@dataclass(frozen=True)
class ChangedPlan:
    """Result of planning a changed job."""

    legal: bool
    fits: bool
    needed_gib: float
    step_s: float | None
    result_class: str
    micro_batch_size: int


Try = Callable[[TrainSpec, int], ChangedPlan]  # a changed spec, and ranks per node


def smaller_micro_batches(resolved: ResolvedSpec) -> Iterator[Fields]:
    size = resolved.micro_batch_size
    while size > 1:
        size //= smallest_factor(size)
        yield in_parts(size)


def smallest_factor(number: int) -> int:
    """Return the smallest factor above 1."""
    return next((f for f in range(2, math.isqrt(number) + 1) if number % f == 0), number)


def half_precision(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.precision in (Precision.FLOAT32, Precision.FLOAT64):
        yield {"precision": Precision.BFLOAT16.value}


def selective_checkpointing(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.activation_checkpointing is ActivationCheckpointing.NONE:
        yield {"activation_checkpointing": ActivationCheckpointing.SELECTIVE.value}


def full_checkpointing(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.activation_checkpointing is not ActivationCheckpointing.FULL:
        yield {"activation_checkpointing": ActivationCheckpointing.FULL.value}


def offloaded_optimizer(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.hardware.device == "cuda":
        for strategy in ZERO_STAGES:
            yield instead(strategy, offload_optimizer=Offload.CPU.value)


def offloaded_parts(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.hardware.device == "cuda" and resolved.world_size > 1:
        yield from fully_sharded(resolved, **all_in(Offload.CPU))


def offloaded_weights(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.hardware.device == "cuda":
        yield instead(Strategy.ZERO3, **all_in(Offload.CPU))


def offloaded_to_files(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.hardware.device == "cuda":
        yield instead(Strategy.ZERO3, **all_in(Offload.NVME))


def sharded_optimizer(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.world_size > 1:
        yield instead(Strategy.ZERO1)
        yield instead(Strategy.ZERO2)


def sharded(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.world_size > 1 and resolved.nodes == 1:
        yield instead(Strategy.FSDP)


def sharded_inside_nodes(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.nodes > 1:
        yield from fully_sharded(resolved)


def split_matrices(resolved: ResolvedSpec) -> Iterator[Fields]:
    degree = 2
    while degree <= resolved.ranks_per_node:
        rest = Strategy.FSDP if degree < resolved.world_size else Strategy.TENSOR
        yield instead(rest, tensor_parallel_degree=degree, sequence_parallel=True)
        degree *= 2


def split_layers(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.world_size > 1:
        degree = resolved.nodes if resolved.nodes > 1 else resolved.ranks_per_node
        rest = Strategy.PIPELINE if degree == resolved.world_size else Strategy.FSDP
        yield instead(rest, pipeline_parallel_degree=degree)


def split_samples(resolved: ResolvedSpec) -> Iterator[Fields]:
    degree = 2
    while resolved.micro_batch_size == 1 and degree <= resolved.world_size:
        rest = Strategy.FSDP if degree < resolved.world_size else Strategy.CONTEXT
        yield instead(rest, context_parallel_degree=degree)
        degree *= 2


def more_ranks(resolved: ResolvedSpec) -> Iterator[Fields]:
    ranks = 2 * resolved.ranks_per_node
    while resolved.nodes == 1 and 1 < ranks <= resolved.hardware.slots:
        yield instead(Strategy.FSDP) | {RANKS: ranks}
        ranks *= 2


def loss_in_parts(resolved: ResolvedSpec) -> Iterator[Fields]:
    length = resolved.spec.data.sequence_length or 1
    parts = 2
    while parts <= min(length, MOST_LOSS_PARTS) and length % parts == 0:
        yield {"tiling.loss_parts": parts}
        parts *= 2


def matrix_by_matrix(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.tiling.gather is Gather.LAYER and resolved.layout.shard > 1:
        yield {"tiling.gather": Gather.MATRIX.value}


def reduced_each(resolved: ResolvedSpec) -> Iterator[Fields]:
    layout, accumulates = resolved.layout, resolved.gradient_accumulation_steps > 1
    is_sharded = shards_by_torch(resolved) and layout.shard > 1 and layout.pipeline == 1
    if accumulates and is_sharded and not adds_to_parts(resolved):
        yield {"parallelism.reduce_gradients": Reduction.EACH_MICRO_BATCH.value}


def adapters(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.adapter is None:
        yield {"adapter": {"base": FrozenBase.NONE.value}}
        yield {"adapter": {"base": FrozenBase.NF4.value}}


def eight_bit_averages(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.training.optimizer is OptimizerName.ADAMW:
        yield {"training.optimizer": OptimizerName.ADAMW_8BIT.value}


def quantised_base(resolved: ResolvedSpec) -> Iterator[Fields]:
    adapter = resolved.spec.adapter
    if adapter is not None and adapter.base is FrozenBase.NONE:
        yield {"adapter.base": FrozenBase.NF4.value}


def half_precision_everywhere(resolved: ResolvedSpec) -> Iterator[Fields]:
    if resolved.spec.precision is not Precision.PURE_BFLOAT16:
        yield {"precision": Precision.PURE_BFLOAT16.value}


DECISIONS = (
    Decision(
        "smaller micro-batches, accumulated",
        "little, unless the micro-batches get so small that the GPU idles",
        smaller_micro_batches,
    ),
    Decision(
        "computing in bfloat16",
        "nothing; it is faster if the GPU has units for it. The loss curve stays within a "
        "tolerance",
        half_precision,
    ),
    Decision(
        "selective activation checkpointing",
        "about 3 % more arithmetic",
        selective_checkpointing,
    ),
    Decision("full activation checkpointing", "a third more arithmetic", full_checkpointing),
    Decision(
        "logits and loss computed in more parts (tiling)",
        "nothing, until the products get too small to keep a GPU busy",
        loss_in_parts,
    ),
    Decision(
        "weights gathered matrix by matrix (tiling)",
        "more, smaller messages",
        matrix_by_matrix,
    ),
    Decision(
        "gradients summed in every micro-batch (FSDP, HSDP)",
        "gradients travel for every micro-batch, not once in a step",
        reduced_each,
    ),
    Decision(
        "optimizer state sharded (ZeRO 1, 2)",
        "1.5 times the traffic of data parallelism",
        sharded_optimizer,
    ),
    Decision(
        "weights, gradients and optimizer sharded (FSDP)",
        "1.5 times the traffic of data parallelism, hidden behind computing if links are fast",
        sharded,
    ),
    Decision(
        "sharded inside each node, replicated across (HSDP)",
        "as FSDP inside a node, as data parallelism across",
        sharded_inside_nodes,
    ),
    Decision(
        "every matrix split inside a node (tensor and sequence parallel)",
        "ranks wait for each other in every layer",
        split_matrices,
    ),
    Decision(
        "layers split (pipeline parallel)", "a bubble while it fills and drains", split_layers
    ),
    Decision(
        "each sample split along its tokens (context parallel)",
        "keys and values travel in every layer",
        split_samples,
    ),
    Decision(
        "more GPUs of the node, sharded (FSDP)",
        "GPU-hours; each step gets shorter",
        more_ranks,
    ),
    Decision(
        "optimizer state in the host's memory (ZeRO)",
        "gradients and weights cross the bus in every step, and the host updates",
        offloaded_optimizer,
    ),
    Decision(
        "weights, gradients and optimizer in the host's memory (FSDP, HSDP)",
        "weights and gradients cross the bus for every micro-batch, and the host updates",
        offloaded_parts,
    ),
    Decision(
        "weights in the host's memory too (ZeRO 3)",
        "weights cross the bus for every layer and micro-batch",
        offloaded_weights,
    ),
    Decision(
        "weights and optimizer state in files on the node's disk (ZeRO 3, nvme)",
        "all of it is read and written in every step; for hosts with too little memory",
        offloaded_to_files,
    ),
    Decision(
        "small matrices trained beside frozen weights (LoRA; QLoRA in 4 bits)",
        "less arithmetic; the learned change is of low rank",
        adapters,
        changes_training=True,
    ),
    Decision(
        "optimizer averages in 8 bits",
        "the averages are rounded at every step",
        eight_bit_averages,
        changes_training=True,
    ),
    Decision(
        "the frozen matrices in 4 bits (QLoRA)",
        "the matrices are dequantised for every product, with errors of about a tenth",
        quantised_base,
        changes_training=True,
    ),
    Decision(
        "bfloat16 for weights and optimizer too",
        "small updates are rounded away; no time",
        half_precision_everywhere,
        changes_training=True,
    ),
)


def advise(
    resolved: ResolvedSpec, try_out: Try, *, needed_gib: float, step_s: float | None
) -> list[Advice]:
    """Return every decision that is legal here and fits or saves memory, and combinations if none
    fits alone.

    Each comes with its mildest candidate that fits, else the one that needs least. `needed_gib` and
    `step_s` are those of the unchanged job.
    """
    found = [
        advice
        for decision in DECISIONS
        if (advice := decide(decision, resolved, try_out, step_s))
        and (advice.fits or advice.needed_gib < needed_gib)
    ]
    if not any(advice.fits for advice in found):
        found += together(found, resolved, try_out, step_s)
    return found


def decide(
    decision: Decision, resolved: ResolvedSpec, try_out: Try, step_s: float | None
) -> Advice | None:
    """Return the mildest candidate that fits, else the one that needs least; None if none is
    legal."""
    best = None
    for candidate in decision.candidates(resolved):
        change, outcome = tried(resolved, candidate, try_out)
        if not outcome.legal or (best is not None and best.needed_gib <= outcome.needed_gib):
            continue
        best = Advice(
            title=decision.title,
            change=change,
            costs=decision.costs,
            fits=outcome.fits,
            needed_gib=outcome.needed_gib,
            slow_down=ratio(outcome.step_s, step_s),
            result_class=outcome.result_class,
            changes_training=decision.changes_training,
        )
        if outcome.fits:
            break
    return best


def together(
    single: list[Advice], resolved: ResolvedSpec, try_out: Try, step_s: float | None
) -> Iterator[Advice]:
    """Yield a combination of a few changes that fits; nothing if none does.

    Tried first are pairs of the changes that save most; the fastest that fits is taken. Then
    changes are added one by one, each time the one that saves most beside those taken. Changes of
    the trained model are included only if nothing else helps.
    """
    kept = [advice for advice in single if not advice.changes_training]
    for among in (kept, single):
        best = sorted(among, key=lambda advice: advice.needed_gib)[:PAIRED]
        tried_pairs = tried_together(combinations(best, 2), resolved, try_out, step_s)
        fitting = [advice for advice in tried_pairs if advice.fits]
        if fitting:
            yield min(fitting, key=lambda advice: (advice.slow_down or 1, advice.needed_gib))
            return
        taken = min(tried_pairs, key=lambda advice: advice.needed_gib, default=None)
        for _ in range(2, MOST_TOGETHER):
            if taken is None or taken.fits:
                break
            more = tried_together(((taken, one) for one in among), resolved, try_out, step_s)
            taken = min(more, key=lambda advice: advice.needed_gib, default=None)
        if taken is not None and taken.fits:
            yield taken
            return


def tried_together(
    sets: Iterable[tuple[Advice, ...]], resolved: ResolvedSpec, try_out: Try, step_s: float | None
) -> list[Advice]:
    """Return every set of changes that do not overlap and are legal together, each as one
    advice."""
    apart = (changes for changes in sets if not overlap(changes))
    return [one for changes in apart if (one := joined(changes, resolved, try_out, step_s))]


def joined(
    changes: Sequence[Advice], resolved: ResolvedSpec, try_out: Try, step_s: float | None
) -> Advice | None:
    """Return several changes as one, with the smallest of their micro-batches.

    None if they are not legal together.
    """
    merged: Fields = {}
    for advice in changes:
        merged |= advice.change
    sizes = [advice.change[MICRO] for advice in changes if MICRO in advice.change]
    if sizes:
        merged |= in_parts(min(sizes))
    change, outcome = tried(resolved, merged, try_out)
    if not outcome.legal:
        return None
    return Advice(
        title=", ".join(advice.title for advice in changes),
        change=change,
        costs="; ".join(advice.costs for advice in changes),
        fits=outcome.fits,
        needed_gib=outcome.needed_gib,
        slow_down=ratio(outcome.step_s, step_s),
        result_class=outcome.result_class,
        changes_training=any(advice.changes_training for advice in changes),
    )


def tried(resolved: ResolvedSpec, fields: Fields, try_out: Try) -> tuple[Fields, ChangedPlan]:
    """Return a change and its outcome.

    With fewer data-parallel ranks each gets more samples; the change then also keeps the
    micro-batch no larger than before.
    """
    ranks = fields.get(RANKS, resolved.ranks_per_node)
    outcome = try_out(changed(resolved.spec, fields), ranks)
    if outcome.micro_batch_size > resolved.micro_batch_size:
        fields = fields | in_parts(resolved.micro_batch_size)
        outcome = try_out(changed(resolved.spec, fields), ranks)
    return fields, outcome


def overlap(changes: Sequence[Advice]) -> bool:
    """Return True if two changes set the same field, apart from the cut into micro-batches."""
    fields = [f for advice in changes for f in advice.change if f not in (MICRO, ACCUMULATION)]
    return len(fields) != len(set(fields))


def in_parts(size: int) -> Fields:
    """Return the change to micro-batches of a size, as many as the batch then has."""
    return {MICRO: size, ACCUMULATION: None}


def ratio(new: float | None, old: float | None) -> float | None:
    return None if new is None or old is None else new / old


def instead(strategy: Strategy, **options: Any) -> Fields:
    """Return the change to another strategy, with the whole `parallelism` part of the spec."""
    return {"parallelism": {"strategy": strategy.value, **options}}


def fully_sharded(resolved: ResolvedSpec, **options: Any) -> Iterator[Fields]:
    """Yield the change to HSDP, where there are several nodes of several ranks, and to FSDP."""
    if resolved.nodes > 1 and resolved.ranks_per_node > 1:
        degree = resolved.ranks_per_node
        yield instead(Strategy.HSDP, data_parallel_shard_degree=degree, **options)
    yield instead(Strategy.FSDP, **options)


def all_in(place: Offload) -> Fields:
    """Return the options that keep all of a model's state outside the device."""
    return {"offload_optimizer": place.value, "offload_parameters": place.value}


def changed(spec: TrainSpec, fields: Fields) -> TrainSpec:
    """Return the spec with other values."""
    body = spec.model_dump()
    for dotted, value in fields.items():
        part, _, name = dotted.partition(".")
        if dotted == RANKS:
            continue  # not a matter of the training
        if name:
            body[part][name] = value
        else:
            body[part] = value
    return type(spec).model_validate(body)
