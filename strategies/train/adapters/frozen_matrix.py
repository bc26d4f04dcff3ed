"""Linear layers whose matrix is frozen and stored in some other form than its numbers."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from strategies.train.models.autocast import as_autocast_wants


class FrozenMatrix(nn.Module, ABC):
    """Linear layer (out, in) whose matrix is stored in some other form.

    Integers are parameters, so that code that splits parameters over ranks splits them too; the few
    scales are buffers, and whole on every rank.
    """

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.shape = torch.Size((frozen.out_features, frozen.in_features))
        self.bias = frozen.bias

    @abstractmethod
    def take(self, full: Tensor) -> None:
        """Store a whole matrix, given in any floating-point type on any device."""

    @abstractmethod
    def whole(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix used in computations."""

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(product.dtype)


class FrozenProduct(torch.autograd.Function):
    """Product x W^T that keeps neither x nor W for the backward pass, but computes W again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: FrozenMatrix) -> Tensor:
        ctx.matrix, ctx.dtype = matrix, x.dtype
        x = as_autocast_wants(x)  # and so the matrix, which has no wider copy
        return linear(x, matrix.whole(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient @ ctx.matrix.whole(gradient.dtype)).to(ctx.dtype), None
