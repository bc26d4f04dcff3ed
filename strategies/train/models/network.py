"""Base of every network: a first part, numbered layers, a final norm, a head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from strategies.plan.spec import ModelSpec

TIED_AWAY = "head.weight"  # named as the embedding's matrix, when the head uses that


class Network(nn.Module):
    """Network from samples to logits.

    Layers are named by their number in the whole model. A pipeline's rank holds only some of them;
    without the embedding it takes features, without norm and head it returns features.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: nn.Module,
        layer: Callable[[], nn.Module],
        norm: nn.Module,
        head: nn.Linear,
    ) -> None:
        super().__init__()
        self.tied = spec.tied_embeddings
        self.embedding: nn.Module | None = embedding
        self.layers = nn.ModuleDict({str(i): layer() for i in range(spec.layers)})
        self.norm: nn.Module | None = norm
        self.head: nn.Module | None = head
        self.tie()

    def tie(self) -> None:
        """Make the head use the embedding's matrix if the model ties them and this rank has
        both."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """Return every parameter once, by its name in the whole model."""
        return [
            ("embedding.weight" if self.tied and name == TIED_AWAY else name, parameter)
            for name, parameter in self.named_parameters()
        ]

    def compute_constants(self, device: torch.device) -> None:
        """Fill the tables that are not trained; a model created without storage lacks them."""

    def forward(self, x: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        raise NotImplementedError
