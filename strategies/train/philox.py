"""Random numbers by position: number n of a stream needs none of those before it, and has the same
bits on every device.

Philox4x64-10: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011. The integers
come from numpy's compiled generator on CPU, and from torch's integer operations elsewhere. They
become floats by single float32 operations, which IEEE 754 rounds alike everywhere; a logarithm or a
cosine would differ between devices in its last bit.
"""

from collections.abc import Callable, Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

Key = tuple[int, int]  # two words of 64 bits

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
ROUNDS = 10
BLOCK = 8  # words of 32 bits for one value of the counter
LOW = (1 << 32) - 1

BLOCKS_ON_CPU = 1 << 13  # at a time: they stay in the second-level cache
BLOCKS_ELSEWHERE = 1 << 20  # at a time: 8 MiB for each of some 20 temporary tensors

CELL_BITS = 6  # quantiles are linear in 64 cells of every octave of the tail's probability
WITHIN_BITS = 23 - CELL_BITS  # of float32's mantissa
FIRST_CELL = 127 << CELL_BITS  # cell of the float 1
OCTAVES = 31


def normal_numbers(key: Key, span: range, device: torch.device) -> Tensor:
    """Return the numbers of `span` of a stream with mean 0 and deviation 1, 1-d, in float32.

    None is beyond 6.3. Quantiles are interpolated: the variance is right to 3e-5.
    """
    starts, slopes = quantiles(device)

    def converted(words: Tensor) -> Tensor:
        """Return signed quantiles of 31-bit tail probabilities; the highest bit is the sign."""
        tail = (words & 0x7FFFFFFF).bitwise_or_(1).to(torch.float32).view(torch.int32)
        cells = (tail >> WITHIN_BITS).sub_(FIRST_CELL)
        within = tail.bitwise_and_((1 << WITHIN_BITS) - 1).to(torch.float32)
        # Two operations: a fused one would round once, and not on every device.
        found = within.mul_(slopes.index_select(0, cells)).add_(starts.index_select(0, cells))
        return found.copysign_(words.view(torch.float32))

    return in_pieces(key, span, device, converted)


def uniform_numbers(key: Key, span: range, device: torch.device) -> Tensor:
    """Return the numbers of `span` of a stream between -1 and 1, 1-d, in float32."""
    return in_pieces(key, span, device, lambda words: words.to(torch.float32).mul_(2.0**-31))


def in_pieces(
    key: Key, span: range, device: torch.device, converted: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the converted words of `span`; few of them exist as integers at a time."""
    numbers = torch.empty(len(span), dtype=torch.float32, device=device)
    draw = words_on_cpu if device.type == "cpu" else words_elsewhere
    at = span.start // BLOCK * BLOCK
    for words in draw(key, range(at // BLOCK, -(-span.stop // BLOCK)), device):
        own = slice(max(at, span.start) - span.start, min(at + len(words), span.stop) - span.start)
        begin = max(span.start - at, 0)
        numbers[own] = converted(words[begin : begin + own.stop - own.start])
        at += len(words)
    return numbers


def words_on_cpu(key: Key, blocks: range, device: torch.device) -> Iterator[Tensor]:
    """Yield the words of some blocks, as int32, in pieces; each block is the lower half of its
    first 64 bits, their upper half, and so on."""
    before = (blocks.start - 1) % (1 << 256)  # numpy counts up before it draws
    generator = np.random.Philox(key=key[0] | key[1] << 64, counter=before)
    for start in range(blocks.start, blocks.stop, BLOCKS_ON_CPU):
        count = min(BLOCKS_ON_CPU, blocks.stop - start)
        yield torch.from_numpy(generator.random_raw(4 * count).view(np.int32))


def words_elsewhere(key: Key, blocks: range, device: torch.device) -> Iterator[Tensor]:
    """Yield the same words, by torch's integer operations on any device."""
    for start in range(blocks.start, blocks.stop, BLOCKS_ELSEWHERE):
        stop = min(start + BLOCKS_ELSEWHERE, blocks.stop)
        counter = torch.arange(start, stop, device=device)
        rest = torch.zeros_like(counter)
        yield (
            torch.stack(philox((counter, rest, rest, rest), key), dim=1).view(torch.int32).view(-1)
        )


def philox(counter: tuple[Tensor, ...], key: Key) -> tuple[Tensor, ...]:
    """Return the four words of 64 bits for counters of four such words, as int64 tensors."""
    first, second, third, fourth = counter
    for i in range(ROUNDS):
        keys = [signed(word + i * step) for word, step in zip(key, KEY_STEPS, strict=True)]
        high, low = product(first, MULTIPLIERS[0])
        other_high, other_low = product(third, MULTIPLIERS[1])
        first, second = other_high.bitwise_xor_(second).bitwise_xor_(keys[0]), other_low
        third, fourth = high.bitwise_xor_(fourth).bitwise_xor_(keys[1]), low
    return first, second, third, fourth


def product(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower 64 bits of unsigned products, by halves of 32 bits."""
    low, high = words & LOW, upper(words)
    factor_low, factor_high = factor & LOW, factor >> 32
    crossed, other = low * factor_high, high * factor_low
    carried = upper(low * factor_low).add_(crossed & LOW).add_(other & LOW)
    top = (high * factor_high).add_(upper(crossed)).add_(upper(other)).add_(upper(carried))
    return top, words * signed(factor)


def upper(words: Tensor) -> Tensor:
    """Return the upper 32 bits of unsigned words."""
    return (words >> 32).bitwise_and_(LOW)


def signed(word: int) -> int:
    """Return the integer of 64 bits with the same bits as an unsigned one, modulo 2^64."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def quantiles(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return every cell's first quantile, and the slope from there for each unit of `within`."""
    found = torch.tensor(cell_bounds(), dtype=torch.float64)
    slopes = (found[1:] - found[:-1]) / (1 << WITHIN_BITS)
    return found[:-1].to(device, torch.float32), slopes.to(device, torch.float32)


@cache
def cell_bounds() -> list[float]:
    """Return the quantiles at the bounds of all cells, and once more the last.

    Cells are those of the floats 1 to 2^31; float x stands for x / 2^31 of the probability of both
    tails together.
    """
    one_tail = [
        2.0 ** (octave - OCTAVES - 1) * (1 + cell / (1 << CELL_BITS))
        for octave in range(OCTAVES)
        for cell in range(1 << CELL_BITS)
    ]
    return [*(-NormalDist().inv_cdf(share) for share in one_tail), 0.0, 0.0]
