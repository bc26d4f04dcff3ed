"""Products with matrices of which each tensor-parallel rank has some columns.

The backward pass sends while it multiplies. With sequence parallelism a rank keeps the features of
its own tokens, and gathers those of all again meanwhile: Korthikanti et al., arXiv:2205.05198,
section 4.2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from strategies.train.models.autocast import as_autocast_wants, without_autocast
from strategies.train.models.own import own
from strategies.train.models.wanted import wanted
from strategies.train.parallel.exchange import Awaited, Exchange


@dataclass(frozen=True)
class Columns:
    """The products of one rank: features of all tokens with its own columns."""

    exchange: Exchange
    gathers_again: bool
    """True if features of all tokens are gathered once more instead of kept."""

    def __call__(self, x: Tensor, *matrices: nn.Linear) -> Sequence[Tensor]:
        """Map (B, T / ranks, C), or (B, T, C) unless tokens are split, to one (B, T, columns) for
        each matrix."""
        weights = [as_autocast_wants(own(matrix.weight)) for matrix in matrices]
        biases = [None if m.bias is None else as_autocast_wants(own(m.bias)) for m in matrices]
        products: Sequence[Tensor] = ColumnProducts.apply(  # type: ignore[no-untyped-call]
            self, as_autocast_wants(x), *weights, *biases
        )
        return products


class ColumnProducts(torch.autograd.Function):
    """Autograd function of `Columns`."""

    @staticmethod
    def forward(ctx: Any, columns: Columns, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        half = len(parameters) // 2
        weights, biases = parameters[:half], parameters[half:]
        ctx.columns = columns
        x_BTC = columns.exchange.gather(x)()
        ctx.save_for_backward(x if columns.gathers_again else x_BTC, *weights)
        with without_autocast(x):
            return tuple(linear(x_BTC, *each) for each in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        columns: Columns = ctx.columns
        exchange = columns.exchange
        _, wants_x, *wants = wanted(ctx)
        wants_weights, wants_biases = wants[: len(weights)], wants[len(weights) :]
        flat = [gradient.flatten(0, -2) for gradient in gradients]
        again = columns.gathers_again and any(wants_weights)
        of_all = exchange.gather(x) if again else None
        with without_autocast(x):
            total: Awaited | None = None
            if wants_x:
                of_x = flat[0] @ weights[0]
                for gradient, weight in zip(flat[1:], weights[1:], strict=True):
                    of_x.addmm_(gradient, weight)
                total = exchange.add_up(torch.unflatten(of_x, 0, gradients[0].shape[:-1]))
                del of_x
            x_NC = (of_all() if of_all else x).flatten(0, -2)
            del of_all
            of_weights = [
                gradient.T @ x_NC if is_wanted else None
                for gradient, is_wanted in zip(flat, wants_weights, strict=True)
            ]
            of_biases = [
                gradient.sum(dim=0) if is_wanted else None
                for gradient, is_wanted in zip(flat, wants_biases, strict=True)
            ]
        return None, total() if total else None, *of_weights, *of_biases
