"""Floating-point operations of a training, counted by convention. Pure arithmetic, torch-free.

The convention is PaLM's (arXiv:2204.02311, appendix B): six per matrix weight and token (two
forward, four backward) and 12 x layers x width of heads x tokens for attention, no discount for
causality and without counting recomputation. A frozen weight counts four: it has no gradient. A
convolution's weight counts at every position. Model FLOPs utilisation divides by the peak of dense
matrix products.
"""

from strategies.plan import image_shapes
from strategies.plan.shapes import (
    count_adapters,
    ffn_width,
    kv_width,
    query_width,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.plan.spec import AdapterSpec, ModelName, ModelSpec, TrainSpec

FLOPS_PER_WEIGHT = 6
FLOPS_PER_FROZEN_WEIGHT = 4  # a frozen weight has no gradient of its own
FLOPS_PER_ATTENTION = 12


def matrix_weights(model: ModelSpec, *, vocabulary: int) -> int:
    """Return how many weights each token is multiplied by: all matrices but the embedding."""
    width = model.width
    attention = 2 * width * (query_width(model) + kv_width(model))
    feed_forward = (2 if model.name is ModelName.GPT else 3) * width * ffn_width(model)
    return model.layers * (attention + feed_forward) + vocabulary * width


def flops_per_token(
    model: ModelSpec, *, vocabulary: int, sequence_length: int, adapter: AdapterSpec | None = None
) -> int:
    """Return the FLOPs of one token's forward and backward pass."""
    matrices = matrix_weights(model, vocabulary=vocabulary)
    attention = FLOPS_PER_ATTENTION * model.layers * query_width(model) * sequence_length
    if adapter is not None:
        trained = FLOPS_PER_WEIGHT * count_adapters(model, adapter)
        return FLOPS_PER_FROZEN_WEIGHT * matrices + trained + attention
    return FLOPS_PER_WEIGHT * matrices + attention


def flops_per_token_of(spec: TrainSpec) -> int:
    """Return the FLOPs of one token's forward and backward pass; an image counts as a token."""
    if spec.model.name.reads_images:
        return FLOPS_PER_WEIGHT * image_shapes.products(spec.model, spec.data)
    return flops_per_token(
        spec.model,
        vocabulary=vocabulary_size(spec.data),
        sequence_length=tokens_per_sample(spec.data),
        adapter=spec.adapter,
    )


def flops_per_step(spec: TrainSpec) -> int:
    """Return the FLOPs of one optimizer step, all samples full."""
    tokens = spec.training.global_batch_size * tokens_per_sample(spec.data)
    return tokens * flops_per_token_of(spec)
