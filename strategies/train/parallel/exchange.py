"""Messages of tensor-parallel ranks: features of a sample's tokens, gathered or added up.

Without sequence parallelism every rank has all tokens, and nothing is to be gathered. One direction
is the other's backward pass: Korthikanti et al., arXiv:2205.05198, section 4.2.2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Awaited = Callable[[], Tensor]
"""Function that waits for a message and returns it."""


@dataclass(frozen=True)
class Exchange:
    """One rank's end of the messages."""

    ranks: dist.ProcessGroup
    splits_tokens: bool
    """True if a rank has the features of its own tokens: sequence parallelism."""

    def whole(self, x: Tensor) -> Tensor:
        """Return the features of all tokens, (B, T, C), of which each rank uses what it needs."""
        found: Tensor = Whole.apply(self, x)  # type: ignore[no-untyped-call]
        return found

    def sum(self, part_BTC: Tensor) -> Tensor:
        """Return the sum over ranks, of this rank's tokens if they are split."""
        found: Tensor = Sum.apply(self, part_BTC)  # type: ignore[no-untyped-call]
        return found

    def gather(self, x: Tensor) -> Awaited:
        """Start to gather the features of all tokens."""
        if not self.splits_tokens:
            return lambda: x
        samples, tokens, width = x.shape
        parts = x.new_empty(self.ranks.size() * samples, tokens, width)
        work = dist.all_gather_single(parts, x.contiguous(), self.ranks, async_op=True)

        def awaited() -> Tensor:
            work.wait()
            by_rank = torch.unflatten(parts, 0, (-1, samples))
            return by_rank.transpose(0, 1).flatten(1, 2)

        return awaited

    def add_up(self, x: Tensor) -> Awaited:
        """Start to add up the ranks' parts of (B, T, C), for each rank its own tokens; `x` may be
        overwritten."""
        if not self.splits_tokens:
            work = dist.all_reduce(x, group=self.ranks, async_op=True)
            total = x
        else:
            by_rank = torch.unflatten(x, 1, (self.ranks.size(), -1)).transpose(0, 1)
            parts = by_rank.flatten(0, 1).contiguous()
            total = x.new_empty(by_rank.shape[1:])
            work = dist.reduce_scatter_single(total, parts, group=self.ranks, async_op=True)

        def awaited() -> Tensor:
            work.wait()
            return total

        return awaited

    def added_up(self, x: Tensor) -> Tensor:
        """Add up the ranks' parts; `x` stays as it is."""
        return self.add_up(x if self.splits_tokens else x.clone())()


class Whole(torch.autograd.Function):
    """Autograd function of `Exchange.whole`."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, x: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.gather(x)() if exchange.splits_tokens else x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        exchange: Exchange = ctx.exchange
        return None, exchange.added_up(gradient)


class Sum(torch.autograd.Function):
    """Autograd function of `Exchange.sum`."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, part_BTC: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.added_up(part_BTC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        exchange: Exchange = ctx.exchange
        return None, exchange.gather(gradient)()
