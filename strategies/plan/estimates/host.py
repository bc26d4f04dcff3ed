"""Memory and disk of a GPU node's host: states that are offloaded to it, buffers that are locked
for copies, the ranks' processes. Pure, torch-free.

DeepSpeed (0.19) keeps, of a state that it updates on the host, the averages, the float32 weights,
and the gradients twice: as they are added up, and as they are updated from. Before stage 3 it has
the new weights once more, to send them. torch's fully sharded ranks keep weights, gradients and
averages once each. torch rounds every locked buffer up to a power of two.
"""

import math
from collections.abc import Iterator

from strategies.plan.catalog import BYTES_PER_WEIGHT
from strategies.plan.estimates import swapping
from strategies.plan.estimates.memory import (
    FLOAT32_BYTES,
    SWAPPED_THROUGH,
    MemoryTerm,
    StageShare,
    estimate,
    frozen_weight_bytes,
    shares,
)
from strategies.plan.estimates.optimizer_step import averages_per_weight
from strategies.plan.estimates.units import half_beside, on_host, sizes
from strategies.plan.hardware import Hardware
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import ADAM_8BIT_BLOCK, count_trained, matrices
from strategies.plan.spec import Offload, OptimizerName, Strategy

CHECKPOINT_COPY = "checkpoint copy"  # the name of its term
# Resident memory of a rank beside its GPU: Python, torch, libraries of CUDA. Not measured.
PROCESS_GIB = 2.0
USABLE_SHARE = 0.9  # the rest is for the platform and the system: docs/worker.md, "Memory"


def host_capacity_gib(hardware: Hardware, ranks_per_node: int) -> float | None:
    """Return the memory of a GPU node's host for so many of its slots; None if it is not known."""
    if hardware.device == "cpu" or hardware.host_memory_gib is None:
        return None
    share = min(1.0, ranks_per_node / hardware.slots)
    return hardware.for_one_job(USABLE_SHARE * hardware.host_memory_gib * share)


def host_terms(resolved: ResolvedSpec) -> list[MemoryTerm]:
    """Return the memory of a GPU node's host for its ranks, by term; empty for a CPU node.

    Every rank keeps locked memory for copies of its state, from which checkpoints are written.
    """
    if resolved.hardware.device == "cpu":
        return []
    ranks = resolved.ranks_per_node
    copied = ranks * max(copied_bytes(resolved, each) for each in shares(resolved))
    terms = [estimate(CHECKPOINT_COPY, copied, "locked: weights and optimizer of each rank")]
    terms += offloaded(resolved, to=Offload.CPU)
    if (swapped := swapping.buffer_bytes(resolved.spec, resolved.layout.shard)) > 0:
        terms.append(estimate("swap buffers", ranks * swapped, SWAPPED_THROUGH))
    processes = MemoryTerm(
        name="processes",
        gib=ranks * PROCESS_GIB,
        exact=False,
        source=f"{ranks} x Python, torch and CUDA's libraries",
    )
    return [*terms, processes]


def copied_bytes(resolved: ResolvedSpec, share: StageShare) -> float:
    """Return the bytes of the locked copy of a rank's state, for a checkpoint: its part of the
    trained weights, and their averages.

    DeepSpeed has the state in rows, others in a buffer for each weight.
    """
    spec, layout = resolved.spec, resolved.layout
    shards = layout.shard * (layout.context if layout.shard > 1 else 1)
    part = math.ceil(math.ceil(share.trained / layout.tensor) / shards)
    size = BYTES_PER_WEIGHT[spec.precision]
    is_8bit = spec.training.optimizer is OptimizerName.ADAMW_8BIT
    average = 1 + 4 / ADAM_8BIT_BLOCK if is_8bit else size
    rounding = rounding_of_copies(resolved, layout.tensor * shards, size)
    return part * (size + averages_per_weight(spec.training) * average) * rounding


def rounding_of_copies(resolved: ResolvedSpec, parts: int, size: int) -> float:
    """Return by how much locking makes copies of a layer's matrices larger, each in so many
    parts."""
    spec = resolved.spec
    if spec.adapter is not None or spec.model.name.reads_images:
        return 1.0  # small
    own = [-(-out * into // parts) * size for out, into in matrices(spec.model).values()]
    return sum(map(locked, own)) / sum(own)


def locked(num_bytes: int) -> int:
    """Return the bytes that torch allocates to lock so many: the next power of two."""
    return 1 << max(0, num_bytes - 1).bit_length()


def file_terms(resolved: ResolvedSpec) -> list[MemoryTerm]:
    """Return the disk space of a node for its ranks, by term; empty without offloading to nvme.

    The gradient waits there for the update, too. Parts under 1 MiB stay in memory.
    """
    return list(offloaded(resolved, to=Offload.NVME))


def offloaded(resolved: ResolvedSpec, *, to: Offload) -> Iterator[MemoryTerm]:
    """Yield the terms that all ranks of a node have offloaded to one device."""
    if on_host(resolved):
        if to is Offload.CPU:
            yield from parts_on_host(resolved)
        return
    parallelism, ranks = resolved.spec.parallelism, resolved.ranks_per_node
    part = -(-count_trained(resolved.spec) // resolved.layout.shard)
    optimizer = parallelism.offload_optimizer
    if optimizer is to:
        averages = averages_per_weight(resolved.spec.training)
        source = f"{averages} averages, weight and gradient for each of {ranks * part:,} numbers"
        yield estimate("optimizer", (averages + 2) * ranks * part * FLOAT32_BYTES, source)
    if optimizer is not Offload.NONE and to is Offload.CPU:
        yield estimate("gradients", *gradients_on_host(resolved, part))
    if parallelism.offload_parameters is to:
        size = sizes(resolved).gathered
        yield estimate("weights", ranks * part * size, f"{ranks * part:,} x {size} bytes")


def parts_on_host(resolved: ResolvedSpec) -> Iterator[MemoryTerm]:
    """Yield the terms of fully sharded ranks whose parts torch keeps on the host."""
    spec, layout, ranks = resolved.spec, resolved.layout, resolved.ranks_per_node
    shards = layout.shard * layout.context
    part = -(-count_trained(spec) // shards)
    size, averages = BYTES_PER_WEIGHT[spec.precision], averages_per_weight(spec.training)
    numbers = ranks * part * rounding_of_copies(resolved, shards, size)
    if (frozen := frozen_weight_bytes(spec)) > 0:
        yield estimate("frozen", ranks * frozen / shards, "locked: parts of frozen weights")
    source = f"locked: {ranks * part:,} x {size} bytes"
    yield estimate("weights", numbers * size, source)
    yield estimate("gradients", numbers * size, source)
    source = f"{averages} averages for each of {ranks * part:,} numbers"
    yield estimate("optimizer", averages * ranks * part * size, source)


def gradients_on_host(resolved: ResolvedSpec, part: int) -> tuple[float, str]:
    """Return the bytes of all ranks' gradients on the host beside those that the update reads.

    Stage 3 adds up in one locked row. Earlier stages have locked rows of the new weights, and add
    up there if a step accumulates; stage 1 adds up gradients of 16-bit weights on the device.
    """
    row = locked(part * FLOAT32_BYTES)
    if resolved.strategy is not Strategy.ZERO3:
        in_stage_1 = resolved.strategy is Strategy.ZERO1 and half_beside(resolved)
        adds_up = resolved.gradient_accumulation_steps > 1 and not in_stage_1
        row = locked(part * sizes(resolved).gathered) + adds_up * row
    source = "locked rows of DeepSpeed: gradients added up, new weights to send"
    return resolved.ranks_per_node * row, source
