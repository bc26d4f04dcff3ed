"""Loss: a token sum over the valid tokens of the whole optimizer step. An image is one token.

Dividing by the global number, not by that of a micro-batch or a rank, makes accumulation, data
parallelism and ragged masks all give the gradient of the one big batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Measure = Callable[[Tensor, Tensor], Tensor]  # of logits and labels

IGNORED = -100  # label of a position that is not trained on


def token_loss_sum(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over the valid tokens; labels are already shifted.

    Computed in float32 at least, whatever the type of the logits.
    """
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return cross_entropy(
        logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def loss_sum_and_hits(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the same sum, and the number of valid tokens whose label was the likeliest, (2,)."""
    hits = (logits_BTV.argmax(dim=-1) == labels_BT).sum()  # no class is numbered IGNORED
    loss = token_loss_sum(logits_BTV, labels_BT)
    return torch.stack([loss, hits.to(loss.dtype)])
