"""Linear layer behind an activation, which keeps the activation's inputs and not its result.

The result is as wide as the inputs: to compute it again costs little arithmetic, and spares a GPT a
fifth, a llama two fifths of what its layers keep.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from strategies.train.models.autocast import as_autocast_wants, without_autocast

Activation = Callable[..., Tensor]


class ActivatedPart(nn.Module):
    """Part of a layer that ends with an activation and a matrix, `down`."""

    down: nn.Module
    recomputes = True
    """False in a layer that is computed again as a whole, which would repeat its last product."""

    def finish(self, activation: Activation, *inputs: Tensor) -> Tensor:
        """Return down(activation(*inputs)).

        A matrix that is split over ranks, stored in another form or hooked keeps the result after
        all; so may a compiled one, whose compiler decides.
        """
        down = self.down
        leave = torch.compiler.is_compiling() or not self.recomputes
        if leave or not (isinstance(down, nn.Linear) and is_plain(down)):
            found: Tensor = down(activation(*inputs))
            return found
        found = ActivatedLinear.apply(  # type: ignore[no-untyped-call]
            activation, as_autocast_wants(down.weight), *inputs
        )
        return found


def is_plain(layer: nn.Linear) -> bool:
    """Return True if the layer is a product with its matrix and nothing else."""
    if type(layer) is not nn.Linear or layer.bias is not None or isinstance(layer.weight, DTensor):
        return False
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return not is_hooked


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
        with without_autocast(weight), torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in inputs]
            activated = ctx.activation(*inputs)
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = gradient.flatten(0, -2).T @ activated.detach().flatten(0, -2)
        result = get_gradient_edge(activated)
        del activated  # before its gradient, of the same size, is made
        return None, of_weight, *torch.autograd.grad(result, inputs, gradient @ weight)
