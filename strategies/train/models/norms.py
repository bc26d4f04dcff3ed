"""Norms of the text models, whose output has the type of their input.

The weights are rounded to that type as well: in 16 bits the result is then the same whether a rank
holds them in float32 or gathered them in 16 bits.
"""

from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from strategies.train.models.autocast import without_autocast


class LayerNorm(nn.LayerNorm):
    """Layer norm (arXiv:1607.06450), (..., C) to (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):  # on a GPU it would widen the output
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Root mean square norm (arXiv:1910.07467), (..., C) to (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):  # on a GPU it would widen the output
            return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
