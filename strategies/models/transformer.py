"""What both networks share: embedding, numbered layers, final norm, head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from strategies.models.attention import rotary_table
from strategies.spec import ModelSpec


class Transformer(nn.Module):
    """Tokens (B, T) to logits (B, T, V), T at most sequence_length.

    Layers are named by their number in the whole model, also where a rank holds only some of them.
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
        super().__init__()
        self.sequence_length, self.dtype = sequence_length, dtype
        self.head_width = spec.width // spec.heads
        self.embedding = nn.Embedding(vocabulary, spec.width, dtype=dtype)
        self.layers = nn.ModuleDict({str(i): block(spec, dtype) for i in range(spec.layers)})
        self.norm = norm
        self.head = nn.Linear(spec.width, vocabulary, bias=False, dtype=dtype)
        self.register_buffer("rotation", torch.empty(0), persistent=False)

    def compute_constants(self, device: torch.device) -> None:
        """Fill the tables that are not trained; a model made without storage lacks them."""
        self.rotation = rotary_table(
            self.sequence_length, self.head_width, dtype=self.dtype, device=device
        )

    def forward(self, tokens_BT: Tensor) -> Tensor:
        rotation = self.rotation[: tokens_BT.shape[1]]
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers.values():
            x_BTC = layer(x_BTC, rotation)
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV
