"""Ring attention: every rank keeps its queries while keys and values travel from rank to rank.

Liu et al., arXiv:2310.01889. Tokens are dealt in zigzag (Llama 3, arXiv:2407.21783, 3.3.2): of 2R
equal chunks, rank r of R has chunks r and 2R - 1 - r, so that all have the same causal work.
Shapes: n = T / R tokens of a rank; queries (B, H, n, D), keys and values (B, K, n, D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from strategies.train.parallel.attention_block import Sight, kernel_for, merge, wide


def zigzag(sequence_length: int, degree: int) -> Tensor:
    """Return the positions of each rank's tokens, (R, T/R); T divisible by 2R, or R = 1."""
    positions = torch.arange(sequence_length)
    if degree == 1:
        return positions.unsqueeze(0)
    chunks = positions.view(2 * degree, -1)
    return torch.cat((chunks[:degree], chunks[degree:].flip(0)), dim=1)


class AttentionBlock(NamedTuple):
    """One block of the attention matrix: a slice of queries x a slice of keys."""

    queries: slice
    keys: slice
    causal: bool


def part_of(rank: int, origin: int, tokens: int) -> AttentionBlock:
    """Return the slices of `rank`'s queries and `origin`'s keys, `tokens` each, that interact.

    Keys of an earlier rank: its first chunk is in the past of both of ours, its second in the
    future of both. Keys of a later rank: all are in the past of our second chunk and in the future
    of our first. Pairs outside the block are never computed.
    """
    everything, half = slice(0, tokens), tokens // 2
    if origin == rank:
        return AttentionBlock(everything, everything, causal=True)
    if origin < rank:
        return AttentionBlock(everything, slice(0, half), causal=False)
    return AttentionBlock(slice(half, tokens), everything, causal=False)


@dataclass(frozen=True)
class Ring:
    """Ranks that pass blocks on, each to the next."""

    group: dist.ProcessGroup

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    def pass_on(self, block: Tensor) -> "Passing":
        """Start to send a block to the next rank and to receive the previous one's."""
        received = torch.empty_like(block)
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, block, group=self.group, group_peer=following),
                dist.P2POp(dist.irecv, received, group=self.group, group_peer=previous),
            ]
        )
        return Passing(block, received, works)


@dataclass(frozen=True)
class Passing:
    """Block in transit; the sent tensor must not change until the transfer is complete."""

    sent: Tensor
    received: Tensor
    works: Sequence[dist.Work]

    def wait(self) -> Tensor:
        """Wait for the transfer and return the previous rank's block."""
        for work in self.works:
            work.wait()
        return self.received


def ring_attend(
    query: Tensor, key: Tensor, value: Tensor, documents_BRn: Tensor | None, ring: Ring
) -> Tensor:
    """Attend from this rank's queries to the keys of all ranks of the ring, (B, H, n, D), causally.

    With the document numbers of all ranks' tokens, attention stays inside each document.
    """
    output: Tensor = RingAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, documents_BRn, ring
    )
    return output


class RingAttention(torch.autograd.Function):
    """Autograd function that saves only this rank's own tensors for the backward pass.

    In that pass keys and values travel once more, followed by their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        documents_BRn: Tensor | None,
        ring: Ring,
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            output, log_sum = attend_around(query, key, value, documents_BRn, ring)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, documents_BRn, output, log_sum)
        ctx.ring = ring
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, documents_BRn, output, log_sum = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            grad_query, grad_keys_values = gradients_around(
                grad_output, query, key, value, documents_BRn, output, log_sum, ctx.ring
            )
        grad_key, grad_value = grad_keys_values.to(key.dtype)
        return grad_query.to(query.dtype), grad_key, grad_value, None, None


def attend_around(
    query: Tensor, key: Tensor, value: Tensor, documents_BRn: Tensor | None, ring: Ring
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp over the keys of all ranks, in the wide type.

    Our own block comes first, and in it every query sees at least itself.
    """
    kernel = kernel_for(query, masked=documents_BRn is not None)
    output = torch.zeros(query.shape, dtype=wide(query.dtype), device=query.device)
    log_sum = torch.full_like(output[..., 0], -torch.inf)
    keys_values = torch.stack((key, value))
    for step in range(ring.size):
        last = step == ring.size - 1
        passing = None if last else ring.pass_on(keys_values)  # while this block is computed
        origin = (ring.rank - step) % ring.size
        part = part_of(ring.rank, origin, query.shape[2])
        key, value = keys_values[..., part.keys, :]
        block = kernel.forward(
            query[:, :, part.queries], key, value, sight_of(part, ring.rank, origin, documents_BRn)
        )
        merge(output[:, :, part.queries], log_sum[:, :, part.queries], *block)
        if passing is not None:
            keys_values = passing.wait()
    return output, log_sum


def gradients_around(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents_BRn: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    ring: Ring,
) -> tuple[Tensor, Tensor]:
    """Return gradients of this rank's queries, and of its keys and values in one tensor, all wide.

    The gradients of a rank's keys and values follow these around the ring, one step behind, grow on
    each rank, and return with the last step.
    """
    kernel = kernel_for(query, masked=documents_BRn is not None)
    keys_values = torch.stack((key, value))
    grad_query = torch.zeros(query.shape, dtype=log_sum.dtype, device=query.device)
    grad_keys_values = torch.zeros(keys_values.shape, dtype=log_sum.dtype, device=query.device)
    following = None
    for step in range(ring.size):
        last = step == ring.size - 1
        passing = None if last else ring.pass_on(keys_values)
        origin = (ring.rank - step) % ring.size
        part = part_of(ring.rank, origin, query.shape[2])
        key, value = keys_values[..., part.keys, :]
        rows = part.queries
        found_query, found_key, found_value = kernel.backward(
            grad_output[:, :, rows],
            query[:, :, rows],
            key,
            value,
            output[:, :, rows],
            log_sum[:, :, rows],
            sight_of(part, ring.rank, origin, documents_BRn),
        )
        grad_query[:, :, rows] += found_query
        if following is not None:
            grad_keys_values = following.wait()
        grad_keys_values[0, ..., part.keys, :] += found_key
        grad_keys_values[1, ..., part.keys, :] += found_value
        following = ring.pass_on(grad_keys_values)
        if passing is not None:
            keys_values = passing.wait()
    assert following is not None
    return grad_query, following.wait()


def sight_of(part: AttentionBlock, rank: int, origin: int, documents_BRn: Tensor | None) -> Sight:
    """Return the visible keys of a part: earlier ones, with documents only of the same document."""
    if documents_BRn is None:
        return Sight(causal=part.causal)
    own = documents_BRn[:, rank, part.queries]
    theirs = documents_BRn[:, origin, part.keys]
    same_B1TS = (own[:, :, None] == theirs[:, None, :]).unsqueeze(1)
    return Sight(mask_B1TS=same_B1TS.tril() if part.causal else same_B1TS)
