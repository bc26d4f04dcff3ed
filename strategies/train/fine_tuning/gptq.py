"""Matrices rounded to 4 bits by GPTQ (Frantar et al., arXiv:2210.17323), as AutoGPTQ and
GPTQModel store them, read without their kernels."""

from typing import NamedTuple

import torch
from torch import Tensor

BITS = 4


class PackedMatrix(NamedTuple):
    """Matrix (out, in) whose inputs come in groups, with the format's own field names."""

    qweight: Tensor  # int32 (in / 8, out): eight inputs to an integer
    qzeros: Tensor  # int32 (groups, out / 8): the code that stands for zero, eight outputs each
    scales: Tensor  # (groups, out)
    g_idx: Tensor  # int32 (in,): the group of each input


def opened(packed: PackedMatrix, *, zeros_less_one: bool) -> Tensor:
    """Return the numbers that the codes represent, (out, in), float32.

    Checkpoints of the first format store every zero point less one; those of `gptq_v2` as it is.
    """
    codes_IO = unpacked(packed.qweight, dim=0)
    zeros_GO = unpacked(packed.qzeros, dim=1) + int(zeros_less_one)
    group_I = packed.g_idx.long()
    steps_IO = codes_IO - zeros_GO[group_I]
    return (steps_IO * packed.scales.float()[group_I]).T.contiguous()


def unpacked(integers: Tensor, *, dim: int) -> Tensor:
    """Return eight codes, 0 to 15, for each integer along `dim`, the lowest bits first."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    shifts = shifts.view(-1, *[1] * (integers.ndim - dim - 1))
    codes: Tensor = (integers.unsqueeze(dim + 1) >> shifts) & (2**BITS - 1)
    return codes.flatten(dim, dim + 1)
