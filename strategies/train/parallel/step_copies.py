"""Half-precision copies of a stage's matrices that all micro-batches of a step share.

Autocast rounds a matrix in each forward pass, and the graph of each micro-batch keeps the copy for
its backward pass. A pipeline has several micro-batches under way at once, and would keep as many
copies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from strategies.train.models.network import Network


class StepCopies(nn.Module):
    """Stage that computes with copies of its float32 matrices for as long as a step lasts.

    A copy is a leaf, whose gradient is added to that of its matrix as soon as it is there. Were the
    copies computed from the matrices in autograd's sight, it would pass all their gradients on at
    the end of a backward pass, in the order of the forward pass, and hold all of them until then.
    The embedding has no copy: its backward pass needs no weights.
    """

    def __init__(self, stage: Network, dtype: torch.dtype) -> None:
        super().__init__()
        self.stage, self.dtype = stage, dtype
        self.copies: dict[str, Tensor] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return the context of a step's forward and backward passes."""
        inputs = set() if self.stage.embedding is None else {*self.stage.embedding.parameters()}
        for name, matrix in self.stage.named_parameters():
            if matrix.ndim > 1 and matrix.dtype == torch.float32 and matrix not in inputs:
                self.copies[name] = self.copy_of(matrix)
        try:
            yield
        finally:
            self.copies = {}

    def copy_of(self, matrix: nn.Parameter) -> Tensor:
        """Return a copy that passes its gradients on to the matrix."""
        copy = matrix.detach().to(self.dtype)
        if matrix.requires_grad:
            copy.requires_grad_().register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(add_gradient, matrix=matrix)
            )
        return copy

    def settle(self) -> None:
        """Pass gradients on that were assigned to copies, which calls no hook of autograd's."""
        for name, copy in self.copies.items():
            add_gradient(copy, self.stage.get_parameter(name))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the tensors that gradients reach: within a step, copies in place of matrices."""
        for name, parameter in self.stage.named_parameters(recurse=recurse):
            yield self.copies.get(name, parameter)  # type: ignore[misc]

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return functional_call(self.stage, self.copies, arguments, options)


def add_gradient(copy: Tensor, matrix: nn.Parameter) -> None:
    """Add the gradient of a copy, if it has one, to that of its matrix, in float32."""
    gradient, copy.grad = copy.grad, None
    if gradient is None:
        return
    if matrix.grad is None:
        matrix.grad = gradient.to(matrix.dtype)
    else:
        matrix.grad.add_(gradient)
