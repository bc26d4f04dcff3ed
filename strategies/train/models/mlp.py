"""Multilayer perceptron over an image's pixels: LayerNorm, GELU and a matrix in each layer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from strategies.plan.image_shapes import ImageShape
from strategies.plan.spec import ModelSpec
from strategies.train.models.network import Network


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_epsilon, dtype=dtype)
        self.matrix = nn.Linear(spec.width, spec.width, bias=False, dtype=dtype)

    def forward(self, x_BTC: Tensor) -> Tensor:
        output: Tensor = self.matrix(gelu(self.norm(x_BTC)))
        return output


class MLP(Network):
    """Perceptron: images (B, T, pixels) to logits (B, T, classes).

    T = 1: an image is a sample of one token.
    """

    def __init__(
        self, spec: ModelSpec, *, image: ImageShape, classes: int, dtype: torch.dtype
    ) -> None:
        super().__init__(
            spec,
            embedding=nn.Linear(image.size, spec.width, bias=False, dtype=dtype),
            layer=lambda: Layer(spec, dtype),
            norm=nn.LayerNorm(spec.width, eps=spec.norm_epsilon, dtype=dtype),
            head=nn.Linear(spec.width, classes, bias=False, dtype=dtype),
        )
        self.dtype = dtype

    def forward(self, x: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        x_BTC = x if self.embedding is None else self.embedding(x.to(self.dtype))
        for layer in self.layers.values():
            x_BTC = layer(x_BTC)
        if self.norm is None or self.head is None:
            return x_BTC
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV
