"""Base of both text models: the order of embedding, layers, final norm and head."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from strategies.plan.shapes import heads
from strategies.plan.spec import ModelSpec
from strategies.train.models.attention import rotary_table
from strategies.train.models.autocast import as_autocast_wants
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network


class Embedding(nn.Embedding):
    """Input layer: tokens (B, T) to features (B, T, C), in the type that the model computes in."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return embedding(tokens_BT, as_autocast_wants(self.weight))


class Head(nn.Linear):
    """Output layer: features (B, T, C) to logits (B, T, V) or, with labels, to a measure of them.

    The measure is computed in `parts` parts, so the logits of only one part exist at a time.
    """

    parts = 1

    def forward(
        self, x_BTC: Tensor, labels_BT: Tensor | None = None, measure: Measure = token_loss_sum
    ) -> Tensor:
        if labels_BT is None:
            return super().forward(x_BTC)
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        features, labels = x_BTC.flatten(0, 1), labels_BT.flatten()
        runs = zip(features.chunk(self.parts), labels.chunk(self.parts), strict=True)
        found = [again(self.measured, x_NC, labels_N, measure) for x_NC, labels_N in runs]
        return torch.stack(found).sum(dim=0)

    def measured(self, x_NC: Tensor, labels_N: Tensor, measure: Measure) -> Tensor:
        """Return the measure of a run of tokens; its logits are not kept."""
        return measure(super().forward(x_NC)[None], labels_N[None])


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
        self.head_width = spec.width // heads(spec)
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
        measure: Measure = token_loss_sum,
    ) -> Tensor:
        """Return logits; with labels, a measure of them instead, computed in the head's parts."""
        # Sequence parallelism splits the input from another stage, but attention sees whole
        # samples.
        rotation = self.rotation if self.embedding is None else self.rotation[: x.shape[1]]
        x_BTC = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x_BTC = layer(x_BTC, rotation, documents_BT)
        if self.norm is None or self.head is None:
            return x_BTC
        x_BTC = self.norm(x_BTC)
        if labels_BT is None:
            logits_BTV: Tensor = self.head(x_BTC)
            return logits_BTV
        found: Tensor = self.head(x_BTC, labels_BT, measure)
        return found
