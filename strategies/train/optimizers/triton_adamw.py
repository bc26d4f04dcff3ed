"""AdamW in a kernel of our own: all tensors of a group in one launch.

Every thread block updates one block of numbers; one table gives the tensor and offset of each
block, another the addresses of each tensor's weights, gradients and averages. The order of
operations is that of torch's fused AdamW, so that the two differ by rounding only.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.optim import Optimizer

from strategies.train.gradients import own_part
from strategies.train.optimizers.large_batch import (
    Group,
    gradient_part,
    parameters_of,
    with_gradient,
)
from strategies.train.transfer import to_device

BLOCK = 1024
EPSILON = 1e-8
ALIGNMENT = 16  # bytes: four numbers are read at a time if every tensor begins at a multiple


class TritonAdamW(Optimizer):
    """AdamW of Loshchilov and Hutter (arXiv:1711.05101), algorithm 2, for float32 weights on a GPU.

    Its state has the names of torch's AdamW. The step count is on the host, which computes the
    powers of the betas in float64.
    """

    def __init__(self, groups: list[Group], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})
        for parameter in parameters_of(self):
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_step: dict[int, list[nn.Parameter]] = {}
            for parameter in with_gradient(group):
                self.state[parameter]["step"] += 1
                by_step.setdefault(int(self.state[parameter]["step"]), []).append(parameter)
            for step, parameters in by_step.items():
                update([self.tensors_of(parameter) for parameter in parameters], step, group)

    def tensors_of(self, parameter: nn.Parameter) -> list[Tensor]:
        """Return this rank's part of a weight, its gradient and its two averages."""
        state = self.state[parameter]
        averages = own_part(state["exp_avg"]), own_part(state["exp_avg_sq"])
        return [own_part(parameter), gradient_part(parameter), *averages]


def update(rows: Sequence[Sequence[Tensor]], step: int, group: Group) -> None:
    """Make the `step`-th update of some weights, each given with its gradient and two averages."""
    rows = [row for row in rows if row[0].numel() > 0]
    if not rows:
        return
    flat = [[tensor.contiguous() for tensor in row] for row in rows]
    addresses = [[row[i].data_ptr() for row in flat] for i in range(4)]
    device = rows[0][0].device
    cut = cut_into_blocks(tuple(row[0].numel() for row in rows), device)
    rate, (beta1, beta2) = group["lr"], group["betas"]
    adamw[(len(cut.tensor_of),)](
        to_device(torch.tensor(addresses), device),
        *cut,
        len(rows),
        rate * group["weight_decay"],
        rate / (1 - beta1**step),
        (1 - beta2**step) ** 0.5,
        1 - beta1,
        beta2,
        1 - beta2,
        EPSILON=EPSILON,
        BLOCK=BLOCK,
        ALIGNED=all(address % ALIGNMENT == 0 for column in addresses for address in column),
    )
    for row, made in zip(rows, flat, strict=True):
        for tensor, contiguous in zip(row, made, strict=True):
            if contiguous is not tensor:
                tensor.copy_(contiguous)


class BlockTable(NamedTuple):
    """Tensors cut into blocks: the tensor and offset of each block, and the tensors' lengths."""

    tensor_of: Tensor
    start_of: Tensor
    length_of: Tensor


@lru_cache(maxsize=64)
def cut_into_blocks(lengths: tuple[int, ...], device: torch.device) -> BlockTable:
    """Cut tensors of these lengths into blocks of BLOCK numbers; the last of each may be
    shorter."""
    length_of = torch.tensor(lengths)
    blocks = (length_of + BLOCK - 1) // BLOCK
    tensor_of = torch.arange(len(lengths)).repeat_interleave(blocks)
    first = blocks.cumsum(0) - blocks
    start_of = (torch.arange(len(tensor_of)) - first[tensor_of]) * BLOCK
    return BlockTable(tensor_of.to(device), start_of.to(device), length_of.to(device))


@triton.jit  # type: ignore[untyped-decorator]
def adamw(
    addresses: torch.Tensor,
    tensor_of: torch.Tensor,
    start_of: torch.Tensor,
    length_of: torch.Tensor,
    num_tensors: int,
    decay: float,
    step_size: float,
    correction: float,
    weight1: float,
    beta2: float,
    weight2: float,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> None:
    """Update one block of one tensor; `addresses` are int64 (4, num_tensors), the rest: BlockTable.

    decay: rate x weight decay. step_size: rate over the first correction; correction: the root of
    the second. weight1, weight2: weights of the new gradient in the averages.
    """
    block = tl.program_id(0)
    tensor, start = tl.load(tensor_of + block), tl.load(start_of + block)
    length = tl.load(length_of + tensor)
    w = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    g = tl.load(addresses + num_tensors + tensor).to(tl.pointer_type(tl.float32))
    m = tl.load(addresses + 2 * num_tensors + tensor).to(tl.pointer_type(tl.float32))
    v = tl.load(addresses + 3 * num_tensors + tensor).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        w, g = tl.multiple_of(w, 16), tl.multiple_of(g, 16)
        m, v = tl.multiple_of(m, 16), tl.multiple_of(v, 16)
    at = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
    factors = decay, step_size, correction, weight1, beta2, weight2
    if start + BLOCK <= length:  # a mask would break reads of four numbers at a time
        update_block(w + at, g + at, m + at, v + at, None, factors, EPSILON)
    else:
        update_block(w + at, g + at, m + at, v + at, at < length, factors, EPSILON)


@triton.jit  # type: ignore[untyped-decorator]
def update_block(
    weights: tl.tensor,
    gradients: tl.tensor,
    means: tl.tensor,
    squares: tl.tensor,
    inside: "tl.tensor | None",
    factors: tl.tuple,
    EPSILON: tl.constexpr,
) -> None:
    """Update the numbers at some places, those `inside`; None: all of them."""
    decay, step_size, correction, weight1, beta2, weight2 = factors
    w, g = tl.load(weights, mask=inside), tl.load(gradients, mask=inside)
    m, v = tl.load(means, mask=inside), tl.load(squares, mask=inside)
    w -= decay * w
    m += weight1 * (g - m)
    v = beta2 * v + weight2 * g * g
    deviation = tl.div_rn(tl.sqrt_rn(v), correction) + EPSILON
    w -= tl.div_rn(step_size * m, deviation)
    tl.store(weights, w, mask=inside)
    tl.store(means, m, mask=inside)
    tl.store(squares, v, mask=inside)
