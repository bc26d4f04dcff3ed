"""Linear layer behind an activation, which keeps the activation's inputs and not its result.

The result is as wide as the inputs: to compute it again costs little arithmetic, and spares a GPT a
fifth, a llama two fifths of what its layers keep.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from strategies.train.models.autocast import as_autocast_wants, without_autocast
from strategies.train.models.own import own
from strategies.train.models.products import Products, one_by_one
from strategies.train.models.wanted import wanted

Activation = Callable[..., Tensor]
IS_LAST = ContextVar("is_last", default=False)
"""True while the product is computed that ends a layer."""


class Down(nn.Linear):
    """Last matrix of a part of a layer.

    A tensor-parallel rank has some of its columns, and returns its part of a sum over ranks.
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight if isinstance(x, DTensor) else own(self.weight))


class ActivatedPart(nn.Module):
    """Part of a layer that ends with an activation and a matrix, `down`."""

    down: nn.Module
    products: Products
    recomputes = True
    """False in a layer that is computed again as a whole, which would repeat its last product."""

    def __init__(self) -> None:
        super().__init__()
        self.products = one_by_one  # tensor parallelism replaces it

    def finish(self, activation: Activation, *inputs: Tensor) -> Tensor:
        """Return down(activation(*inputs)).

        A matrix that is stored in another form or hooked keeps the result after all; so may a
        compiled one, whose compiler decides.
        """
        down = self.down
        found: Tensor
        if torch.compiler.is_compiling() or not is_plain(down):
            found = down(activation(*inputs))
        elif self.recomputes:
            found = ActivatedLinear.apply(  # type: ignore[no-untyped-call]
                activation, as_autocast_wants(own(down.weight)), *inputs
            )
        else:
            activated = activation(*inputs)
            with last_product():
                found = down(activated)
        return found


def is_plain(layer: nn.Module) -> TypeGuard[Down]:
    """Return True if the layer is a product with its matrix and nothing else."""
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return type(layer) is Down and not is_hooked


@contextmanager
def last_product() -> Iterator[None]:
    """Mark the product that ends a layer: its backward pass needs what it reads, not its result."""
    before = IS_LAST.set(True)
    try:
        yield
    finally:
        IS_LAST.reset(before)


class ActivatedLinear(torch.autograd.Function):
    """Autograd function of `ActivatedPart.finish`, (..., in) to (..., out)."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, weight: Tensor, *inputs: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(weight, *inputs)
        with without_autocast(weight):
            return linear(activation(*inputs), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *inputs = ctx.saved_tensors
        _, wants_weight, *wants_inputs = wanted(ctx)
        with without_autocast(weight), torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in inputs]
            activated = ctx.activation(*inputs)
        of_weight = None
        if wants_weight:
            of_weight = gradient.flatten(0, -2).T @ activated.detach().flatten(0, -2)
        if not any(wants_inputs):
            return None, of_weight, *(None for _ in inputs)
        result = get_gradient_edge(activated)
        del activated  # before its gradient, of the same size, is made
        return None, of_weight, *torch.autograd.grad(result, inputs, gradient @ weight)
