"""Frozen matrices in four or eight bits, with bitsandbytes' kernels.

NF4 with double quantisation: Dettmers et al., QLoRA, arXiv:2305.14314. Eight bits with a scale for
every row: the weights of LLM.int8, arXiv:2208.07339. Products use the numbers that the codes
represent, in the precision of the run, so a token's result depends on no other token's.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from strategies.plan.shapes import NF4_BLOCK, NF4_BLOCKS_TOGETHER
from strategies.plan.spec import FrozenBase
from strategies.train.adapters.bnb import kernels
from strategies.train.adapters.frozen_matrix import FrozenMatrix


class Nf4Linear(FrozenMatrix):
    """Matrix in NF4: every 64 consecutive numbers share an 8-bit scale, every 256 scales
    another."""

    scales: Tensor
    mean: Tensor

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__(frozen)
        blocks = -(-self.shape.numel() // NF4_BLOCK)
        self.codes = integers(blocks * NF4_BLOCK // 2, torch.uint8)  # two to a byte
        self.block_scales = integers(blocks, torch.uint8)
        self.register_buffer("scales", torch.empty(-(-blocks // NF4_BLOCKS_TOGETHER)))
        self.register_buffer("mean", torch.empty(()))

    @torch.no_grad()
    def take(self, full: Tensor) -> None:
        numbers = full.to(self.codes.device, torch.float32).flatten()
        blocks = pad(numbers, (0, 2 * len(self.codes) - len(numbers))).view(-1, NF4_BLOCK)
        codes, state = kernels.quantize_4bit(
            blocks, blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4"
        )
        self.codes.copy_(codes.flatten())
        self.block_scales.copy_(state.absmax)
        self.scales.copy_(state.state2.absmax)
        self.mean.copy_(state.offset)

    def whole(self, dtype: torch.dtype) -> Tensor:
        rounded_to = dtype if dtype.itemsize == 2 else torch.float32
        state = kernels.QuantState(
            absmax=self.block_scales,
            # A row for each block: the kernel for CPUs misreads rows that end within one.
            shape=torch.Size((len(self.block_scales), NF4_BLOCK)),
            dtype=rounded_to,
            blocksize=NF4_BLOCK,
            quant_type="nf4",
            offset=self.mean,
            state2=kernels.QuantState(
                absmax=self.scales,
                code=scale_values(self.codes.device),
                blocksize=NF4_BLOCKS_TOGETHER,
                dtype=torch.float32,
            ),
        )
        blocks: Tensor = kernels.dequantize_4bit(self.codes.view(-1, 1), state)
        return blocks.flatten()[: self.shape.numel()].view(self.shape).to(dtype)


class Int8Linear(FrozenMatrix):
    """Matrix in 8 bits: each row as integers from -127 to 127, and the number that 127
    represents."""

    scales: Tensor

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__(frozen)
        self.codes = integers(self.shape, torch.int8)
        self.register_buffer("scales", torch.empty(self.shape[0]))

    @torch.no_grad()
    def take(self, full: Tensor) -> None:
        codes, scales, _ = kernels.int8_vectorwise_quant(full.to(self.codes.device, torch.float16))
        self.codes.copy_(codes)
        self.scales.copy_(scales)

    def whole(self, dtype: torch.dtype) -> Tensor:
        return self.codes.to(dtype).mul_((self.scales / 127).to(dtype).unsqueeze(1))


FORMS: dict[FrozenBase, type[Nf4Linear] | type[Int8Linear]] = {
    FrozenBase.NF4: Nf4Linear,
    FrozenBase.INT8: Int8Linear,
}


def integers(shape: int | torch.Size, dtype: torch.dtype) -> nn.Parameter:
    """Return an uninitialised parameter for codes."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


@cache
def scale_values(device: torch.device) -> Tensor:
    """Return the numbers that the 256 codes of a block's scale represent."""
    values: Tensor = kernels.create_dynamic_map().to(device)
    return values
