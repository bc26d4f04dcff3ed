"""State that ZeRO 3 keeps in files on its node's disk (`nvme`), and its buffers in memory.

Source: ZeRO-Infinity (arXiv:2104.07857), sections 5.2 and 6; the buffers are those of DeepSpeed
0.19. Pure, torch-free.
"""

from collections.abc import Iterator

from strategies.plan.catalog import computes_in_half
from strategies.plan.shapes import matrices, vocabulary_size
from strategies.plan.spec import Offload, TrainSpec

FLOAT32_BYTES, HALF_BYTES = 4, 2
BUFFERS = 4  # weights, gradients and two averages of a row
LEAST_BYTES = 1 << 20  # DeepSpeed keeps smaller parts in memory


def numbers_at_a_time(spec: TrainSpec, shards: int) -> int:
    """Return the least count of a rank's numbers updated at a time: a layer's, or a file's."""
    of_layer = sum(-(-numbers // shards) for numbers in layer_matrices(spec))
    return max(of_layer, LEAST_BYTES // FLOAT32_BYTES)


def largest_row(spec: TrainSpec, shards: int) -> int:
    """Return the largest count of a rank's numbers updated at a time."""
    wanted, largest, row = numbers_at_a_time(spec, shards), 0, 0
    for numbers in all_matrices(spec):
        row += -(-numbers // shards)
        largest = max(largest, row)
        if row >= wanted:
            row = 0
    return largest


def largest_part(spec: TrainSpec, shards: int) -> int:
    """Return the count of numbers in a rank's part of the largest matrix."""
    return max(-(-numbers // shards) for numbers in all_matrices(spec))


def gathered_buffers(spec: TrainSpec) -> int:
    """Return how many matrices' parts can be in memory: two layers', embedding and head."""
    return 2 * len(layer_matrices(spec)) + 2


def buffer_bytes(spec: TrainSpec, shards: int) -> int:
    """Return the bytes of a rank's buffers for files; they are locked in memory."""
    num_bytes, asked = 0, spec.parallelism
    if Offload.NVME not in (asked.offload_optimizer, asked.offload_parameters):
        return 0
    row = largest_row(spec, shards)
    if asked.offload_optimizer is Offload.NVME:
        num_bytes += FLOAT32_BYTES * BUFFERS * row
    if asked.offload_parameters is Offload.NVME:
        # And a buffer to write a row's weights from, which DeepSpeed sizes for the whole weights.
        numbers = gathered_buffers(spec) * largest_part(spec, shards) + row * shards
        num_bytes += numbers * (HALF_BYTES if computes_in_half(spec) else FLOAT32_BYTES)
    return num_bytes


def layer_matrices(spec: TrainSpec) -> list[int]:
    """Return the count of numbers in each matrix of a layer."""
    return [out * into for out, into in matrices(spec.model).values()]


def all_matrices(spec: TrainSpec) -> Iterator[int]:
    """Yield the count of numbers in every matrix, in the model's order."""
    ends = vocabulary_size(spec.data) * spec.model.width
    yield ends
    for _ in range(spec.model.layers):
        yield from layer_matrices(spec)
    if not spec.model.tied_embeddings:
        yield ends
