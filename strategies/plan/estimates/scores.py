"""Memory of attention's scores, masks and copied keys. Pure, torch-free.

Fused kernels keep neither scores nor a mask, but the mask as a bias, if there is one. The math
kernel keeps the scores. Source: torch's `_scaled_dot_product_attention_math`, whose saved tensors a
test counts.
"""

from typing import NamedTuple

from strategies.plan.attention_kernels import (
    AttentionKernel,
    attends_whole,
    copies_keys,
    kernel_of,
)
from strategies.plan.catalog import BYTES_PER_FEATURE
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import heads, kv_width, query_width, tokens_per_sample
from strategies.plan.spec import ActivationCheckpointing

FLOAT32 = 4
BOOL = 1


class InAttention(NamedTuple):
    """Bytes of one rank's attention layers beside queries, keys, values and their gradients."""

    kept: float
    """Bytes that all layers keep for the backward pass."""
    again: float
    """Bytes that a layer keeps which is computed again."""
    passing: float
    """Bytes that the layer at work has beside them."""

    @property
    def total(self) -> float:
        return sum(self)

    def beside(self, others: float) -> "InAttention":
        """Return the bytes beyond `others`, which are gone while a layer's attention is at work."""
        return self._replace(passing=max(0.0, self.passing - max(0.0, others)))


NOTHING = InAttention(0.0, 0.0, 0.0)


def scores(resolved: ResolvedSpec, layers: float, in_flight: float) -> InAttention:
    """Return the bytes of scores: heads x tokens x tokens of each sample, in float32 at least.

    Kept are those after softmax, of one layer with full checkpointing; selective checkpointing
    keeps those before it in their place. Passing are the gradients of both.
    """
    spec, how = resolved.spec, resolved.spec.activation_checkpointing
    if kernel_of(resolved) is not AttentionKernel.MATH:
        return NOTHING
    size = BYTES_PER_FEATURE[spec.precision]
    wide, layout = max(FLOAT32, size), resolved.layout
    tokens = resolved.micro_batch_size * tokens_per_sample(spec.data) / layout.context
    numbers = tokens * heads(spec.model) * tokens_per_sample(spec.data) / layout.tensor
    passing = numbers * 2 * wide
    if how is ActivationCheckpointing.FULL:
        return InAttention(0.0, numbers * wide, passing)
    queries, keys_values = query_width(spec.model), 2 * kv_width(spec.model)
    if how is ActivationCheckpointing.NONE:
        # Copies in the type of scores, a head of keys and values for each of queries, instead.
        others = 3 * queries * wide - (queries + keys_values) * size
    else:
        others = queries * (wide - size)  # the result, before it is rounded
    kept = numbers * wide + tokens * others / layout.tensor
    return InAttention(layers * in_flight * kept, 0.0, passing)


def mask(resolved: ResolvedSpec, layers: float, in_flight: float) -> InAttention:
    """Return the bytes of the masks of packed documents, which every layer makes anew.

    Two of booleans, tokens x tokens of each sample, and the bias that kernels make of them in the
    type of the features. Fused kernels keep the bias, that of one layer if layers are recomputed.
    Beside scores masks do not count: they are gone by the backward pass, which needs more.
    """
    spec = resolved.spec
    if not spec.data.packing or not attends_whole(resolved):
        return NOTHING
    if kernel_of(resolved) is AttentionKernel.MATH:
        return NOTHING
    numbers = resolved.micro_batch_size * tokens_per_sample(spec.data) ** 2
    bias, passing = numbers * BYTES_PER_FEATURE[spec.precision], numbers * 2 * BOOL
    if spec.activation_checkpointing is not ActivationCheckpointing.NONE:
        return InAttention(0.0, bias, passing)
    return InAttention(layers * in_flight * bias, 0.0, passing)


def copied_keys(resolved: ResolvedSpec, layers: float, in_flight: float) -> InAttention:
    """Return the bytes by which copies of keys and values, a head for each of queries, are more
    than the shared ones, which are not kept then. Passing are their gradients."""
    spec = resolved.spec
    if not copies_keys(resolved):
        return NOTHING
    tokens = resolved.micro_batch_size * tokens_per_sample(spec.data) / resolved.layout.context
    more = 2 * (query_width(spec.model) - kv_width(spec.model)) / resolved.layout.tensor
    num_bytes = tokens * more * BYTES_PER_FEATURE[spec.precision]
    if spec.activation_checkpointing is not ActivationCheckpointing.NONE:
        return InAttention(0.0, num_bytes, num_bytes)
    return InAttention(layers * in_flight * num_bytes, 0.0, num_bytes)
