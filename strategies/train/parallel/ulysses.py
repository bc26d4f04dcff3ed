"""Ulysses: ranks that hold some tokens of all heads trade them for all tokens of some heads.

Jacobs et al., arXiv:2309.14509. Shapes: u ranks; T their tokens together; queries (B, H, T/u, D),
keys and values (B, K, T/u, D).
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def trade_tokens_for_heads(
    query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B, H/u, T, D), and the keys and values that they need, in one exchange.

    H must be divisible by u. If the number of key heads is not, each is sent more than once.
    """
    degree = group.size()
    copies = degree // math.gcd(degree, key.shape[1])
    key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    by_rank = [torch.unflatten(x_BHTD, 1, (degree, -1)) for x_BHTD in (query, key, value)]
    heads = [x.shape[2] for x in by_rank]
    received = trade(torch.cat(by_rank, dim=2).movedim(1, 0), group)  # (u, B, heads, T/u, D)
    query, key, value = torch.split(received.movedim(0, 2).flatten(2, 3), heads, dim=1)
    return query, key, value


def trade_heads_for_tokens(output: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Undo the exchange: (B, H/u, T, D) to (B, H, T/u, D)."""
    by_rank = torch.unflatten(output, 2, (group.size(), -1))
    return trade(by_rank.movedim(2, 0), group).movedim(0, 1).flatten(1, 2)


def trade(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send part i to rank i; part i of the result came from rank i."""
    received: Tensor = Trade.apply(parts, group)  # type: ignore[no-untyped-call]
    return received


class Trade(torch.autograd.Function):
    """All-to-all exchange; its gradient is the reverse exchange."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad_received: Tensor) -> tuple[Tensor, None]:
        return trade(grad_received, ctx.group), None
