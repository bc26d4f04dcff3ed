"""What ZeRO 3 keeps in files on its node's disk (`nvme`), and the memory that it reads them into.
Pure, torch-free.

Source: ZeRO-Infinity (arXiv:2104.07857), sections 5.2 and 6; the buffers as DeepSpeed 0.19 has
them.
"""

from collections.abc import Iterator

from strategies.shapes import matrices, vocabulary_size
from strategies.spec import Offload, TrainSpec

FLOAT32_BYTES = 4
BUFFERS = 4  # weights, gradients and two averages of a row
LEAST_BYTES = 1 << 20  # DeepSpeed keeps in memory what is smaller


def numbers_at_a_time(spec: TrainSpec, shards: int) -> int:
    """How many numbers of a rank are updated at a time, at least: a layer's, or a file's."""
    of_layer = sum(-(-numbers // shards) for numbers in layer_matrices(spec))
    return max(of_layer, LEAST_BYTES // FLOAT32_BYTES)


def largest_row(spec: TrainSpec, shards: int) -> int:
    """How many numbers of a rank are updated at a time, at most."""
    wanted, largest, row = numbers_at_a_time(spec, shards), 0, 0
    for numbers in all_matrices(spec):
        row += -(-numbers // shards)
        largest = max(largest, row)
        if row >= wanted:
            row = 0
    return largest


def largest_part(spec: TrainSpec, shards: int) -> int:
    """Numbers of a rank's part of the largest matrix."""
    return max(-(-numbers // shards) for numbers in all_matrices(spec))


def gathered_buffers(spec: TrainSpec) -> int:
    """How many matrices' parts can be in memory: two layers', embedding and head."""
    return 2 * len(layer_matrices(spec)) + 2


def buffer_bytes(spec: TrainSpec, shards: int) -> int:
    """What a rank reads into and writes from; locked in memory."""
    numbers, asked = 0, spec.parallelism
    if Offload.NVME not in (asked.offload_optimizer, asked.offload_parameters):
        return 0
    row = largest_row(spec, shards)
    if asked.offload_optimizer is Offload.NVME:
        numbers += BUFFERS * row
    if asked.offload_parameters is Offload.NVME:
        # And room to write a row's weights from, which DeepSpeed makes as large as the whole ones.
        numbers += gathered_buffers(spec) * largest_part(spec, shards) + row * shards
    return numbers * FLOAT32_BYTES


def layer_matrices(spec: TrainSpec) -> list[int]:
    """Numbers of each matrix of a layer."""
    return [out * into for out, into in matrices(spec.model).values()]


def all_matrices(spec: TrainSpec) -> Iterator[int]:
    """Numbers of every matrix, in the model's order."""
    ends = vocabulary_size(spec.data) * spec.model.width
    yield ends
    for _ in range(spec.model.layers):
        yield from layer_matrices(spec)
    if not spec.model.tied_embeddings:
        yield ends
