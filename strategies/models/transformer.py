"""What both networks share: embedding, numbered layers, final norm, head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from strategies.models.attention import rotary_table
from strategies.spec import ModelSpec

TIED_AWAY = "head.weight"  # named as the embedding's matrix, when the head uses that


class Transformer(nn.Module):
    """Tokens (B, T) to logits (B, T, V), T at most sequence_length.

    Layers are named by their number in the whole model. A pipeline's rank holds only some of them,
    and takes and gives features (B, T, C) where it lacks the embedding or norm and head.
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
        self.tied = spec.tied_embeddings
        self.rope_base, self.rope_scaling = spec.rope_base, spec.rope_scaling
        self.embedding: nn.Module | None = nn.Embedding(vocabulary, spec.width, dtype=dtype)
        self.layers = nn.ModuleDict({str(i): block(spec, dtype) for i in range(spec.layers)})
        self.norm: nn.Module | None = norm
        self.head: nn.Module | None = nn.Linear(spec.width, vocabulary, bias=False, dtype=dtype)
        self.register_buffer("rotation", torch.empty(0), persistent=False)
        self.tie()

    def tie(self) -> None:
        """Let the head use the embedding's matrix, where the model asks for it and has both."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """Every parameter once, by its name in the whole model."""
        return [
            ("embedding.weight" if self.tied and name == TIED_AWAY else name, parameter)
            for name, parameter in self.named_parameters()
        ]

    def compute_constants(self, device: torch.device) -> None:
        """Fill the tables that are not trained; a model made without storage lacks them."""
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
