"""Random numbers by position: published vectors, and one law from both implementations."""

import math

import pytest
import torch
from torch import Tensor

from strategies.train.philox import (
    BLOCK,
    BLOCKS_ON_CPU,
    WITHIN_BITS,
    normal_numbers,
    philox,
    quantiles,
    signed,
    uniform_numbers,
    words_elsewhere,
    words_on_cpu,
)

CPU = torch.device("cpu")
KEY = (0x452821E638D01377, 0xBE5466CF34E90C6C)

# tests/kat_vectors of Random123: counter, key, result of philox4x64 with 10 rounds.
PUBLISHED = [
    (
        "0000000000000000 0000000000000000 0000000000000000 0000000000000000",
        "0000000000000000 0000000000000000",
        "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
    ),
    (
        "ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff",
        "ffffffffffffffff ffffffffffffffff",
        "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
    ),
    (
        "243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89",
        "452821e638d01377 be5466cf34e90c6c",
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


def hexadecimal(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


@pytest.mark.parametrize(("counter", "key", "result"), PUBLISHED)
def test_published_vectors(counter: str, key: str, result: str) -> None:
    first, second = hexadecimal(key)
    found = philox(
        tuple(torch.tensor([signed(word)]) for word in hexadecimal(counter)), (first, second)
    )
    assert [int(word) & (2**64 - 1) for word in found] == hexadecimal(result)


def test_the_compiled_generator_gives_the_published_vector_first() -> None:
    (words,) = words_on_cpu((0, 0), range(1), CPU)
    assert [int(word) & (2**64 - 1) for word in words.view(torch.int64)] == hexadecimal(
        PUBLISHED[0][2]
    )


@pytest.mark.parametrize("start", [0, 1, 2**31 - 7, 2**40 + 5])
def test_both_implementations_give_the_same_words(start: int) -> None:
    blocks = range(start, start + BLOCKS_ON_CPU + 3)
    compiled = torch.cat(list(words_on_cpu(KEY, blocks, CPU)))
    assert torch.equal(compiled, torch.cat(list(words_elsewhere(KEY, blocks, CPU))))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_same_bits() -> None:
    device, span = torch.device("cuda"), range(13, 3_000_000)
    for numbers in (normal_numbers, uniform_numbers):
        assert torch.equal(numbers(KEY, span, device).cpu(), numbers(KEY, span, CPU))


@pytest.mark.parametrize("numbers", [normal_numbers, uniform_numbers])
def test_a_part_of_a_stream_is_the_whole_ones(numbers: object) -> None:
    assert callable(numbers)
    end = BLOCK * BLOCKS_ON_CPU + 21
    whole = numbers(KEY, range(end), CPU)
    for start, stop in [(0, 1), (7, 9), (8, 16), (3, end), (end - 22, end), (5, 5)]:
        assert torch.equal(numbers(KEY, range(start, stop), CPU), whole[start:stop])
    later = numbers(KEY, range(2**40 + 3, 2**40 + 11), CPU)
    assert torch.equal(numbers(KEY, range(2**40 + 4, 2**40 + 6), CPU), later[1:3])


def moments(values: Tensor) -> list[float]:
    return [float((values.double() ** power).mean()) for power in range(1, 7)]


def test_normal_numbers_have_the_moments_of_a_normal_distribution() -> None:
    values = normal_numbers(KEY, range(1 << 20), CPU)
    # Five standard errors of each: the variance of x^n is (2n-1)!! - ((n-1)!!)^2, n even.
    for power, (found, wanted) in enumerate(zip(moments(values), [0, 1, 0, 3, 0, 15], strict=True)):
        spread = math.sqrt(math.prod(range(1, 2 * (power + 1), 2)) - wanted**2)
        assert abs(found - wanted) < 5 * spread / 2**10
    for x in (0.5, 1.0, 2.0, 3.0, 4.0):
        share, wanted = float((values.abs() > x).double().mean()), math.erfc(x / math.sqrt(2))
        assert abs(share - wanted) < 5 * math.sqrt(wanted / 2**20)
    assert abs(float((values[1:] * values[:-1]).mean())) < 5 / 2**10


def test_interpolated_quantiles_are_a_normal_distribution_to_five_digits() -> None:
    """Variance and fourth moment of the law itself, not of a sample: summed over its cells."""
    starts, slopes = (part.double() for part in quantiles(CPU))
    ends = starts + slopes * (1 << WITHIN_BITS)
    widths = torch.tensor([2.0 ** (i // 64 - 31) / 64 for i in range(31 * 64)]).double()
    mass, low, high = widths, starts[:-1], ends[:-1]
    assert float(mass.sum()) == pytest.approx(1 - 2**-31)
    second = (mass * (low**2 + low * high + high**2) / 3).sum()
    fourth = (mass * sum(low**i * high ** (4 - i) for i in range(5)) / 5).sum()
    assert float(second) == pytest.approx(1, abs=3e-5)
    assert float(fourth) == pytest.approx(3, abs=2e-4)
    assert float(starts[0]) == pytest.approx(6.23, abs=0.01)


def test_uniform_numbers_are_even() -> None:
    values = uniform_numbers(KEY, range(1 << 20), CPU)
    counts = torch.histc(values, bins=64, min=-1, max=1)
    assert float(((counts - 2**14) ** 2 / 2**14).sum()) < 63 + 5 * math.sqrt(2 * 63)
    assert -1 <= float(values.min()) < -0.9999
    assert 0.9999 < float(values.max()) <= 1


def test_keys_differ() -> None:
    a, b = (normal_numbers((seed, 0), range(1 << 16), CPU) for seed in (1, 2))
    assert abs(float((a * b).mean())) < 5 / 2**8
