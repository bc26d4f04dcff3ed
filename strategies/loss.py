"""The loss: a token sum over the valid tokens of the whole optimizer step.

Dividing by the global number, not by that of a micro-batch or a rank, makes accumulation, data
parallelism and ragged masks all give the gradient of the one big batch.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100  # label of a position that is not trained on


def token_loss_sum(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the valid tokens; labels are already shifted.

    In float32 at least, whatever the logits are in.
    """
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return cross_entropy(
        logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
