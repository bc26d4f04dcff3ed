"""Weights and gradients that DeepSpeed (0.19) keeps, and its buffers to send them. Pure arithmetic,
torch-free.

Measured in float32 and bfloat16, also with matrices that are larger than a bucket:
tests/strategies/plan/estimates/test_weighed.py.
"""

from typing import NamedTuple

from strategies.plan.catalog import computes_in_half
from strategies.plan.estimates.units import half_beside, shards_by_deepspeed
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import largest_matrix, vocabulary_size
from strategies.plan.spec import ZERO_STAGES, Offload, Strategy, TrainSpec

BUCKET = 25_000_000  # numbers sent at a time; DeepSpeed's own 500 million dwarf small models
FLOAT32_BYTES = 4


class Sending(NamedTuple):
    """Bytes that DeepSpeed needs to send gradients."""

    bucket: float = 0.0
    copies: float = 0.0
    """Bytes of copies that exist beside the bucket while one is sent."""


def sending(resolved: ResolvedSpec, held: int, part: int) -> Sending:
    """Return what DeepSpeed needs to send the gradients of `held` weights; other engines send what
    they have.

    It copies a bucket, or a matrix that is larger. A float32 gradient that is brought to the host
    is beside its bucket, too. Stage 2 makes its part of float32 gradients anew, when nothing is
    sent any more.
    """
    if not shards_by_deepspeed(resolved):
        return Sending()
    stage, half = ZERO_STAGES[resolved.strategy], half_beside(resolved)
    bucket, matrix = min(held, bucket_of(resolved.spec, resolved.strategy)), matrix_of(resolved)
    if matrix <= bucket:
        copies = {1: 0.0, 2: 1.0, 3: 1 + 1 / resolved.layout.shard}[stage] * bucket
    else:
        copies = max(bucket if stage == 2 else 0.0, copies_of_matrix(resolved) * matrix)
    if stage < 3 and not half and offloads_optimizer(resolved.spec):
        copies += min(held, matrix)
    if stage == 2 and not half and updates_here(resolved):
        copies = max(copies, part - bucket)
    return Sending(FLOAT32_BYTES * bucket, FLOAT32_BYTES * copies)


def copies_of_matrix(resolved: ResolvedSpec) -> float:
    """Return how often the gradient of a matrix that is larger than a bucket exists in float32.

    Those of 16 bits are widened to be sent; float32 ones of a tied matrix are added up from two.
    """
    stage = ZERO_STAGES[resolved.strategy]
    if stage == 3:
        return 2.0
    if half_beside(resolved):
        return 1.0 if stage == 1 else 1.5
    return stage if resolved.spec.model.tied_embeddings else stage - 1


def bucket_of(spec: TrainSpec, strategy: Strategy) -> int:
    """Return how many numbers of gradients are sent at a time.

    A bucket takes the largest before stage 3 if they are brought to the host: in none, it would be
    copied twice more; and one of 16 bits has 32 in the bucket only.
    """
    is_image = spec.model.name.reads_images
    if strategy is Strategy.ZERO3 or is_image or not offloads_optimizer(spec):
        return BUCKET
    return max(BUCKET, largest_matrix(spec.model, vocabulary=vocabulary_size(spec.data)))


def adds_up_on_host(spec: TrainSpec, strategy: Strategy) -> bool:
    """Return True if stage 2 brings gradients of 16-bit weights to the host one by one, instead of
    adding them up on the device."""
    return strategy is Strategy.ZERO2 and offloads_optimizer(spec) and computes_in_half(spec)


def sends_head_at_once(resolved: ResolvedSpec) -> bool:
    """Return True if the first gradient of all is a head's that is larger than a bucket."""
    is_larger = matrix_of(resolved) > bucket_of(resolved.spec, resolved.strategy)
    return is_larger and not resolved.spec.model.tied_embeddings


def gradients_kept(resolved: ResolvedSpec, held: int, part: int) -> int:
    """Return the numbers of gradients that are kept on the device, of `held` weights.

    Stage 1 adds up whole gradients, and cuts out its part for the update; the others add up their
    part. Gradients follow an offloaded optimizer: before stage 3 a GPU keeps a buffer for the
    largest weight, and stage 1 the part of 16-bit weights' gradients; the host has them twice, as
    they are added up, or new weights, and as they are updated from, and a buffer of its own.
    """
    stage, half = ZERO_STAGES[resolved.strategy], half_beside(resolved)
    kept = held if stage == 1 else 0
    if not offloads_optimizer(resolved.spec):
        return kept + part
    buffer = min(held, matrix_of(resolved)) if stage < 3 else 0
    kept += buffer + (part if stage == 1 and half else 0)
    if resolved.hardware.device == "cpu":
        kept += 2 * part + (buffer // 2 if half else buffer)
    return kept


def weights_computed_with(resolved: ResolvedSpec, held: int, part: int) -> int:
    """Return the numbers of the weights that the model computes with and the device keeps."""
    if resolved.strategy is not Strategy.ZERO3:
        return held
    return part if stays(resolved, resolved.spec.parallelism.offload_parameters) else 0


def offloads_optimizer(spec: TrainSpec) -> bool:
    """Return True if the optimizer's state is on the host or in files."""
    return spec.parallelism.offload_optimizer is not Offload.NONE


def updates_here(resolved: ResolvedSpec) -> bool:
    """Return True if the optimizer's state is on the device."""
    return stays(resolved, resolved.spec.parallelism.offload_optimizer)


def stays(resolved: ResolvedSpec, offload: Offload) -> bool:
    """Return True if state with this setting is on the device, which may be a CPU."""
    on_cpu = resolved.hardware.device == "cpu"
    return offload is Offload.NONE or (on_cpu and offload is Offload.CPU)


def matrix_of(resolved: ResolvedSpec) -> int:
    """Return the numbers of the largest matrix of a text model, 0 for images."""
    spec = resolved.spec
    if spec.model.name.reads_images:
        return 0
    return largest_matrix(spec.model, vocabulary=vocabulary_size(spec.data))
