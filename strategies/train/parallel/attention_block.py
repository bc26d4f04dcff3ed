"""One block of a larger attention: some queries, some keys, and the log-sum-exp with which the
outputs of several blocks can be merged into one softmax over all their keys.

Online softmax: Milakov and Gimelshein, arXiv:1805.02867; FlashAttention, arXiv:2205.14135, 3.1.
Shapes: queries (B, H, T, D), keys and values (B, K, S, D) with K a divisor of H, log-sum-exp (B, H,
T) in natural logarithms, -inf for a query that sees no key.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

FLASH_WIDTHS = range(8, 257, 8)  # features per head that CUDA's kernel supports

aten = torch.ops.aten


class Sight(NamedTuple):
    """Keys that a query sees: all; those up to its own position; or those of a mask alone."""

    causal: bool = False
    mask_B1TS: Tensor | None = None


class Kernel(Protocol):
    """Implementation of a block.

    The output may have a narrower type than the log-sum-exp, which is in float32 at least.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, sight: Sight
    ) -> tuple[Tensor, Tensor]:
        """Return output (B, H, T, D) and log-sum-exp (B, H, T) of this block alone."""

    def backward(
        self,
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        sight: Sight,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this block's contribution to the gradients of query, key and value.

        Output and log-sum-exp are those of all blocks together.
        """


def kernel_for(query: Tensor, *, masked: bool) -> Kernel:
    """Return the fastest kernel that also gives the log-sum-exp."""
    if query.device.type == "cpu":
        return CpuFlash()
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type == "cuda" and half and not masked and query.shape[-1] in FLASH_WIDTHS:
        return CudaFlash()
    return WrittenOut()


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over blocks are kept: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def merge(output: Tensor, log_sum: Tensor, block_output: Tensor, block_log_sum: Tensor) -> None:
    """Merge one more block into `output` and `log_sum`, in place."""
    together = torch.logaddexp(log_sum, block_log_sum)
    old_share = (log_sum - finite(together)).exp().unsqueeze(-1)
    new_share = (block_log_sum - finite(together)).exp().unsqueeze(-1)
    output.mul_(old_share).addcmul_(new_share, block_output.to(output.dtype))
    log_sum.copy_(together)


def finite(log_sum: Tensor) -> Tensor:
    """Clamp -inf to the lowest finite number, so that a query that sees no key gets shares of 0.

    Subtracting -inf from -inf would give nan.
    """
    return log_sum.clamp_min(torch.finfo(log_sum.dtype).min)


class CpuFlash:
    """torch's fused kernel for CPUs: all precisions, grouped keys and masks."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, sight: Sight
    ) -> tuple[Tensor, Tensor]:
        output, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, sight.causal, attn_mask=self.bias(query, sight)
        )
        if sight.mask_B1TS is not None:  # the kernel returns 0 for queries that see no key
            log_sum = log_sum.masked_fill(~sight.mask_B1TS.any(-1), -math.inf)
        return output, log_sum

    def backward(
        self,
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        sight: Sight,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = (
            aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_output,
                query,
                key,
                value,
                output,
                finite(log_sum).contiguous(),
                0.0,
                sight.causal,
                attn_mask=self.bias(query, sight),
            )
        )
        return gradients

    def bias(self, query: Tensor, sight: Sight) -> Tensor | None:
        """Return the mask as numbers to add to scores."""
        if sight.mask_B1TS is None:
            return None
        zeros = torch.zeros(sight.mask_B1TS.shape, dtype=query.dtype, device=query.device)
        return zeros.masked_fill_(~sight.mask_B1TS, -math.inf)


class CudaFlash:
    """FlashAttention as torch ships it: 16 bits, no masks."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, sight: Sight
    ) -> tuple[Tensor, Tensor]:
        output, log_sum, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, sight.causal, False
        )
        return output, log_sum

    def backward(
        self,
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        sight: Sight,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Undefined lengths: with tensors, torch takes the kernel for batches of ragged samples.
        lengths, dropout_state = None, torch.empty(2, dtype=torch.uint64, device=query.device)
        gradients: tuple[Tensor, Tensor, Tensor] = (
            aten._scaled_dot_product_flash_attention_backward(
                grad_output,
                query,
                key,
                value,
                output,
                log_sum.contiguous(),
                lengths,
                lengths,
                query.shape[2],
                key.shape[2],
                0.0,
                sight.causal,
                dropout_state,
                torch.empty((), dtype=torch.uint64, device=query.device),
            )
        )
        return gradients


@dataclass(frozen=True)
class WrittenOut:
    """Formulas written out, for any device, a few queries at a time so that memory stays
    bounded."""

    most_scores: int = 2**24  # at once: 64 MiB in float32

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, sight: Sight
    ) -> tuple[Tensor, Tensor]:
        value_BHSD = per_query_head(value, query)
        output = torch.empty(query.shape, dtype=wide(query.dtype), device=query.device)
        log_sum = output.new_empty(query.shape[:-1])
        for rows in self.row_groups(query, key):
            scores_BHTS = scores(query, key, sight, rows)
            log_sum[:, :, rows] = scores_BHTS.logsumexp(-1)
            output[:, :, rows] = shares(scores_BHTS, log_sum[:, :, rows]) @ value_BHSD
        return output, log_sum

    def backward(
        self,
        grad_output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        sight: Sight,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients by FlashAttention, section B.2."""
        query_BHTD = query.to(wide(query.dtype))
        key_BHSD, value_BHSD = per_query_head(key, query), per_query_head(value, query)
        grad_query = torch.empty_like(query_BHTD)
        grad_key, grad_value = torch.zeros_like(key_BHSD), torch.zeros_like(value_BHSD)
        scale = 1 / math.sqrt(query.shape[-1])
        for rows in self.row_groups(query, key):
            shares_BHTS = shares(scores(query, key, sight, rows), log_sum[:, :, rows])
            grad_BHTD = grad_output[:, :, rows].to(query_BHTD.dtype)
            grad_value += shares_BHTS.mT @ grad_BHTD
            mean_BHT1 = (grad_BHTD * output[:, :, rows]).sum(-1, keepdim=True)
            grad_scores = shares_BHTS * (grad_BHTD @ value_BHSD.mT - mean_BHT1) * scale
            grad_query[:, :, rows] = grad_scores @ key_BHSD
            grad_key += grad_scores.mT @ query_BHTD[:, :, rows]
        by_group = (key.shape[1], -1)
        return (
            grad_query,
            torch.unflatten(grad_key, 1, by_group).sum(2),
            torch.unflatten(grad_value, 1, by_group).sum(2),
        )

    def row_groups(self, query: Tensor, key: Tensor) -> Iterator[slice]:
        """Yield groups of queries with at most `most_scores` scores each."""
        batch, heads, num_rows = query.shape[:3]
        size = max(1, self.most_scores // (batch * heads * key.shape[2]))
        for start in range(0, num_rows, size):
            yield slice(start, start + size)


def per_query_head(key_BKSD: Tensor, query: Tensor) -> Tensor:
    """Return the keys or values of every query head, (B, H, S, D), in the wide type."""
    groups = query.shape[1] // key_BKSD.shape[1]
    return key_BKSD.to(wide(key_BKSD.dtype)).repeat_interleave(groups, dim=1)


def scores(query: Tensor, key: Tensor, sight: Sight, rows: slice) -> Tensor:
    """Return scaled products of some queries with all keys, -inf where a query does not see a
    key."""
    query_BHTD = query[:, :, rows].to(wide(query.dtype)) / math.sqrt(query.shape[-1])
    scores_BHTS = query_BHTD @ per_query_head(key, query).mT
    if sight.mask_B1TS is not None:
        return scores_BHTS.masked_fill_(~sight.mask_B1TS[:, :, rows], -math.inf)
    if sight.causal:
        places = torch.arange(query.shape[2], device=query.device)
        later = places[rows, None] < torch.arange(key.shape[2], device=query.device)
        return scores_BHTS.masked_fill_(later, -math.inf)
    return scores_BHTS


def shares(scores_BHTS: Tensor, log_sum_BHT: Tensor) -> Tensor:
    """Return the softmax of scores, with a log-sum-exp that may cover more keys than these."""
    return (scores_BHTS - finite(log_sum_BHT).unsqueeze(-1)).exp()
