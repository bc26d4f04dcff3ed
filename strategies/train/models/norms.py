"""Norms of the text models, whose output has the type of their input.

The weights are rounded to that type as well: in 16 bits the result is then the same whether a rank
holds them in float32 or gathered them in 16 bits.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm, rms_norm

from strategies.train.models.autocast import without_autocast
from strategies.train.models.own import own_copy
from strategies.train.models.wanted import wanted


class LayerNorm(nn.LayerNorm):
    """Layer norm (arXiv:1607.06450), (..., C) to (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):  # on a GPU it would widen the output
            weight, bias = (own_copy(each).to(x.dtype) for each in (self.weight, self.bias))
            return layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Root mean square norm (arXiv:1910.07467), (..., C) to (..., C); keeps its input only.

    On a GPU torch's own does so too, and a compiler decides by itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = own_copy(self.weight).to(x.dtype)
        assert self.eps is not None
        if x.is_cuda or torch.compiler.is_compiling():
            with without_autocast(x):
                return rms_norm(x, self.normalized_shape, weight, self.eps)
        found: Tensor = RMSNormFunction.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return found


class RMSNormFunction(torch.autograd.Function):
    """torch's rms_norm over the last dimension, whose backward pass computes the norm again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.epsilon = epsilon
        ctx.save_for_backward(x, weight)
        with without_autocast(x):
            return rms_norm(x, weight.shape, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        wide = torch.promote_types(x.dtype, torch.float32)
        gradient, normed = gradient.to(wide), x.to(wide)
        scale = torch.rsqrt(normed.square().mean(dim=-1, keepdim=True) + ctx.epsilon)
        normed = normed * scale
        of_weight = None
        wants_x, wants_weight, _ = wanted(ctx)
        if wants_weight:
            of_weight = (gradient * normed).flatten(0, -2).sum(dim=0).to(weight.dtype)
        if not wants_x:
            return None, of_weight, None
        gradient = gradient * weight
        along = (gradient * normed).mean(dim=-1, keepdim=True)
        of_x = gradient.sub_(normed.mul_(along)).mul_(scale)
        return of_x.to(x.dtype), of_weight, None
