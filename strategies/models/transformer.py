"""What both text models share: the order of embedding, layers, final norm and head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from strategies.models.attention import rotary_table
from strategies.models.network import Network
from strategies.shapes import heads
from strategies.spec import ModelSpec


class Transformer(Network):
    """Tokens (B, T) to logits (B, T, V), T at most sequence_length; features are (B, T, C)."""

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
            embedding=nn.Embedding(vocabulary, spec.width, dtype=dtype),
            layer=lambda: block(spec, dtype),
            norm=norm,
            head=nn.Linear(spec.width, vocabulary, bias=False, dtype=dtype),
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

    def forward(self, x: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        # Sequence parallel splits what comes from another stage, but attention sees whole samples.
        rotation = self.rotation if self.embedding is None else self.rotation[: x.shape[1]]
        x_BTC = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x_BTC = layer(x_BTC, rotation, documents_BT)
        if self.norm is None or self.head is None:
            return x_BTC
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV
