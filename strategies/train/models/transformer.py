"""Base of both text models: the order of embedding, layers, final norm and head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from strategies.plan.loss_runs import tokens_at_once
from strategies.plan.shapes import head_width
from strategies.plan.spec import ModelSpec
from strategies.train.models.attention import rotary_table
from strategies.train.models.autocast import as_autocast_wants
from strategies.train.models.linear_cross_entropy import Words, linear_cross_entropy
from strategies.train.models.network import Network
from strategies.train.models.own import own


class Embedding(nn.Embedding):
    """Input layer: tokens (B, T) to features (B, T, C), in the type that the model computes in."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return embedding(tokens_BT, as_autocast_wants(self.weight))


class Head(nn.Linear):
    """Output layer: features (B, T, C) to logits (B, T, V) or, with labels, to their loss.

    The loss is the cross-entropy summed over valid tokens; its logits never exist all at once. A
    tensor-parallel rank has some of the words, and returns logits of these, or the loss over all.
    """

    parts = 1
    """Least number of runs of tokens."""
    keeps_gradients = True
    """True if the backward pass follows; otherwise it computes logits again."""
    words = Words()

    def forward(self, x_BTC: Tensor, labels_BT: Tensor | None = None) -> Tensor:
        weight = own(self.weight)
        if labels_BT is None:
            return linear(x_BTC, weight)
        x_NC, labels_N = x_BTC.flatten(0, 1), labels_BT.flatten()
        return linear_cross_entropy(
            x_NC,
            weight,
            labels_N,
            at_once=tokens_at_once(
                x_NC.device.type, tokens=len(x_NC), words=len(weight), parts=self.parts
            ),
            words=self.words,
            keeps_gradients=self.keeps_gradients,
        )


class Transformer(Network):
    """Text model: tokens (B, T) to logits (B, T, V), T at most sequence_length.

    Features are (B, T, C).
    """

    rotation: Tensor

    def __init__(
        self,
        spec: ModelSpec,
        *,
        block: Callable[[ModelSpec, torch.dtype], nn.Module],
        norm: nn.Module,
        vocabulary: int,
        sequence_length: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(
            spec,
            embedding=Embedding(vocabulary, spec.width, dtype=dtype),
            layer=lambda: block(spec, dtype),
            norm=norm,
            head=Head(spec.width, vocabulary, bias=False, dtype=dtype),
        )
        self.sequence_length, self.dtype = sequence_length, dtype
        self.head_width = head_width(spec)
        self.rope_base, self.rope_scaling = spec.rope_base, spec.rope_scaling
        self.register_buffer("rotation", torch.empty(0), persistent=False)

    def compute_constants(self, device: torch.device) -> None:
        self.rotation = rotary_table(
            self.sequence_length,
            self.head_width,
            dtype=self.dtype,
            device=device,
            base=self.rope_base,
            scaling=self.rope_scaling,
        )

    def forward(
        self,
        x: Tensor,
        documents_BT: Tensor | None = None,
        labels_BT: Tensor | None = None,
    ) -> Tensor:
        """Return logits; with labels, the loss summed over valid tokens."""
        # Sequence parallelism splits the input from another stage, but attention sees whole
        # samples.
        rotation = self.rotation if self.embedding is None else self.rotation[: x.shape[1]]
        x_BTC = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x_BTC = layer(x_BTC, rotation, documents_BT)
        if self.norm is None or self.head is None:
            return x_BTC
        x_BTC = self.norm(x_BTC)
        found: Tensor = self.head(x_BTC) if labels_BT is None else self.head(x_BTC, labels_BT)
        return found
