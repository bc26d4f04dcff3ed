"""Activation checkpointing: activations that a layer does not keep are recomputed for its backward.

Chen et al., arXiv:1604.06174; which are worth keeping: Korthikanti et al., arXiv:2205.05198,
section 5. Implemented by torch.utils.checkpoint.
"""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from strategies.plan.spec import ActivationCheckpointing
from strategies.train.models.activated_linear import IS_LAST, ActivatedPart
from strategies.train.models.network import Network

aten = torch.ops.aten
# Operations that take most of the time: their results are kept, all others are recomputed.
LONG = (
    aten.mm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)


def forget_activations(model: Network, how: ActivationCheckpointing) -> None:
    """Make every layer of a model keep only its input (full), or also its products (selective).

    The layer's forward is replaced, not the layer: names stay, and hooks of sharding on the layer
    stay outside, so the recomputation finds the weights that the backward pass gathered.
    """
    if how is ActivationCheckpointing.NONE:
        return
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)  # nothing is random
    if how is ActivationCheckpointing.SELECTIVE:
        again = partial(again, context_fn=partial(create_selective_checkpoint_contexts, policy))
    for layer in model.layers.values():
        layer.forward = partial(again, layer.forward)
        for part in layer.modules():
            if isinstance(part, ActivatedPart):
                part.recomputes = False


def policy(_: SelectiveCheckpointContext, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Keep the results of long operations; not of the last product, which nobody reads again."""
    if operation in LONG and not IS_LAST.get():
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
