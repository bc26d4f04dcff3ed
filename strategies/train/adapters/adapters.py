"""Adapters: small trained matrices beside the model's own weights, which stay frozen.

LoRA, Hu et al., arXiv:2106.09685. The frozen matrices may be stored in few bits (`quantised`).
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from strategies.plan.spec import AdapterSpec, FrozenBase
from strategies.train.models.network import Network


class Lora(nn.Module):
    """Term added to a frozen matrix W (out, in): alpha / rank x B A, A (rank, in), B (out, rank).

    B starts at zero, so a run starts from the frozen model's function.
    """

    def __init__(self, *, out: int, into: int, rank: int, alpha: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, into, dtype=dtype))
        self.b = nn.Parameter(torch.empty(out, rank, dtype=dtype))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.scale * linear(linear(x, self.a), self.b)


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
        """Store a whole matrix, given in float64 on any device."""

    @abstractmethod
    def whole(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix used in computations."""

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class FrozenProduct(torch.autograd.Function):
    """Product x W^T that keeps neither x nor W for the backward pass, but computes W again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: FrozenMatrix) -> Tensor:
        ctx.matrix, ctx.dtype = matrix, x.dtype
        return linear(x, matrix.whole(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient @ ctx.matrix.whole(gradient.dtype)).to(ctx.dtype), None


def adapt(model: Network, adapter: AdapterSpec) -> None:
    """Freeze a model on the meta device, store its layers' matrices as asked, and add adapters.

    The adapters of a part of a layer are its child `lora`, under the names of their matrices.
    """
    model.requires_grad_(False)
    for layer in model.layers.values():
        for part in list(layer.children()):
            matrices = {
                name: child for name, child in part.named_children() if isinstance(child, nn.Linear)
            }
            adapters = nn.ModuleDict()
            for name, matrix in matrices.items():
                frozen = stored_as(adapter.base, matrix)
                setattr(part, name, frozen)
                if name in adapter.targets:
                    adapters[name] = beside(frozen, matrix, adapter)
            if adapters:
                part.lora = adapters


def stored_as(base: FrozenBase, matrix: nn.Linear) -> nn.Module:
    """Return a linear layer in the form that stores its frozen matrix."""
    if base is FrozenBase.NONE:
        return matrix
    from strategies.train.adapters.quantised import FORMS

    with torch.device("meta"):
        return FORMS[base](matrix)


def beside(frozen: nn.Module, matrix: nn.Linear, adapter: AdapterSpec) -> Lora:
    """Attach an adapter that adds to a frozen layer's output, before ranks exchange that output."""
    with torch.device("meta"):
        lora = Lora(
            out=matrix.out_features,
            into=matrix.in_features,
            rank=adapter.rank,
            alpha=adapter.alpha,
            dtype=matrix.weight.dtype,
        )
    frozen.register_forward_hook(lambda _, inputs, output: output + lora(inputs[0]))
    return lora
