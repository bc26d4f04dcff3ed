"""Collectives as checks: the data each rank sends and must receive, to the bit.

Ranks contribute small whole numbers that every dtype holds exactly, their sums and means too, so
that any order of adding gives the same bits, and the expected result can be computed in the same
dtype. The sent and the expected numbers repeat every PERIOD places; PERIOD is prime, so that a part
that ends up in a wrong place is noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from strategies.plan.trust.preflight_report import Check
from strategies.train.trust.ring_all_reduce import pass_on, ring_all_reduce

PERIOD = 997
UNTOUCHED = 253  # content of a buffer before it is written to
KIB, MIB = 1024, 1024**2
ODD = 1000  # bytes; the number of elements is not divisible by 3 or 16 ranks
LARGE = {"cpu": 16 * MIB, "cuda": 64 * MIB}

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "mean": dist.ReduceOp.AVG,  # as FSDP does it
}
REDUCTIONS = tuple(OPERATIONS)
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
}
# Whole numbers up to these limits are exact. Sums in bfloat16 over more than 128 ranks may not be.
EXACT = 2**16  # sufficient, for types that are exact further
EXACT_UP_TO = {torch.bfloat16: 2**8, torch.float16: 2**11}


@dataclass
class Exchange:
    """One rank's side of a collective: the tensors, and the operation if it has one."""

    rank: int
    ranks: int
    operation: dist.ReduceOp.RedOpType | None
    sent: Tensor
    received: Tensor
    later: bool = False
    """True to only begin it; the returned work waits for its end."""

    @property
    def root(self) -> int:
        """Last rank: a collective that always takes rank 0 for the root is noticed."""
        return self.ranks - 1


@dataclass(frozen=True)
class Collective:
    """Collective operation and its expected result."""

    run: Callable[[Exchange], Any]
    """Function that returns torch's Work, which waits for the end, or None if it has ended."""
    gives: Callable[["Numbers"], Tensor | None]
    """Function that returns the expected result on this rank; None if that is undefined."""
    bus_factor: Callable[[int], float]
    """Bytes that must cross the busiest link, per byte of the tensor (nccl-tests,
    doc/PERFORMANCE.md)."""
    operations: tuple[str | None, ...] = (None,)
    in_place: bool = False
    is_cut: bool = False
    """True if the tensor is cut into a part for each rank."""
    sends_part: bool = False
    receives_part: bool = False


@dataclass(frozen=True)
class Numbers:
    """Contributions of the ranks, and this rank's number."""

    sent_RP: Tensor
    """Contributions by rank and place in the period, in the dtype and on the device of sending."""
    rank: int
    elements: int
    """Number of elements of the whole tensor."""
    operation: str | None

    @property
    def ranks(self) -> int:
        return self.sent_RP.shape[0]

    @property
    def part(self) -> int:
        """Number of elements of each rank's part, if the tensor is cut."""
        return self.elements // self.ranks

    def of(self, rank: int) -> Tensor:
        """Return the whole tensor that a rank contributes."""
        return spread(self.sent_RP[rank], self.elements)

    def part_of(self, rank: int, part: int) -> Tensor:
        """Return one of the N parts of a rank's contribution."""
        return spread(self.sent_RP[rank], self.part, start=part * self.part)

    def part_of_each(self, part: int) -> Tensor:
        """Return the same part of each rank's contribution, one rank after the other."""
        return spread(self.sent_RP, self.part, start=part * self.part).flatten()

    def reduced(self) -> Tensor:
        """Return one period of the result of the operation over all ranks."""
        if self.operation == "min":
            return self.sent_RP.amin(0)
        if self.operation == "max":
            return self.sent_RP.amax(0)
        total = self.sent_RP.sum(0, dtype=self.sent_RP.dtype)
        return total.div_(self.ranks) if self.operation == "mean" else total


def spread(period: Tensor, elements: int, *, start: int = 0) -> Tensor:
    """Repeat one or several periods to `elements` numbers, from place `start` of the sequence."""
    start %= PERIOD
    times = (start + elements) // PERIOD + 1
    return period.repeat(*[1] * (period.ndim - 1), times)[..., start : start + elements]


def all_reduce(x: Exchange) -> Any:
    return dist.all_reduce(x.received, x.operation, async_op=x.later)


def by_hand(x: Exchange) -> None:
    ring_all_reduce(x.received)


def reduce(x: Exchange) -> Any:
    return dist.reduce(x.received, x.root, x.operation, async_op=x.later)


def reduce_scatter(x: Exchange) -> Any:
    return dist.reduce_scatter_single(x.received, x.sent, x.operation, async_op=x.later)


def broadcast(x: Exchange) -> Any:
    return dist.broadcast(x.received, x.root, async_op=x.later)


def all_gather(x: Exchange) -> Any:
    return dist.all_gather_single(x.received, x.sent, async_op=x.later)


def scatter(x: Exchange) -> Any:
    parts = list(x.sent.chunk(x.ranks)) if x.rank == x.root else None
    return dist.scatter(x.received, parts, src=x.root, async_op=x.later)


def all_to_all(x: Exchange) -> Any:
    return dist.all_to_all_single(x.received, x.sent, async_op=x.later)


def p2p_ring(x: Exchange) -> None:
    pass_on(x.sent, x.received)


def everything_reduced(n: Numbers) -> Tensor:
    return spread(n.reduced(), n.elements)


def reduced_at_root(n: Numbers) -> Tensor | None:
    return everything_reduced(n) if n.rank == n.ranks - 1 else None


def own_part_reduced(n: Numbers) -> Tensor:
    return spread(n.reduced(), n.part, start=n.rank * n.part)


def of_root(n: Numbers) -> Tensor:
    return n.of(n.ranks - 1)


def first_part_of_each(n: Numbers) -> Tensor:
    return n.part_of_each(0)


def own_part_of_root(n: Numbers) -> Tensor:
    return n.part_of(n.ranks - 1, n.rank)


def own_part_of_each(n: Numbers) -> Tensor:
    return n.part_of_each(n.rank)


def of_left_neighbour(n: Numbers) -> Tensor:
    return n.of((n.rank - 1) % n.ranks)


def whole(ranks: int) -> float:
    return 1.0


def others(ranks: int) -> float:
    return (ranks - 1) / ranks


def twice_others(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


COLLECTIVES = {
    "all_reduce": Collective(
        all_reduce, everything_reduced, twice_others, operations=REDUCTIONS, in_place=True
    ),
    "ring by hand": Collective(
        by_hand, everything_reduced, twice_others, operations=("sum",), in_place=True
    ),
    "reduce": Collective(reduce, reduced_at_root, whole, operations=REDUCTIONS, in_place=True),
    "reduce_scatter": Collective(
        reduce_scatter,
        own_part_reduced,
        others,
        operations=REDUCTIONS,
        is_cut=True,
        receives_part=True,
    ),
    "broadcast": Collective(broadcast, of_root, whole, in_place=True),
    "all_gather": Collective(all_gather, first_part_of_each, others, is_cut=True, sends_part=True),
    "scatter": Collective(scatter, own_part_of_root, others, is_cut=True, receives_part=True),
    "all_to_all": Collective(all_to_all, own_part_of_each, others, is_cut=True),
    "p2p ring": Collective(p2p_ring, of_left_neighbour, whole),
}


def full_list(device: str) -> list[Check]:
    """Return every collective with every operation, dtype and size that it supports."""
    checks = []
    for name, collective in COLLECTIVES.items():
        for operation in collective.operations:
            for dtype in DTYPES:
                if operation == "mean" and not DTYPES[dtype].is_floating_point:
                    continue  # torch has no mean of integers
                large = dtype == "float32" and operation in ("sum", None)
                for size in (ODD, MIB, LARGE[device]) if large else (ODD, MIB):
                    checks.append(check(name, operation, dtype, size))
    return checks


def quick_list() -> list[Check]:
    """Return each collective once, with the operations and dtypes that training uses most.

    No second all_reduce, because it takes longest.
    """
    size = 16 * KIB
    return [
        check("all_reduce", "sum", "float32", size),
        check("reduce", "max", "int64", size),
        check("reduce_scatter", "mean", "bfloat16", size),
        check("broadcast", None, "float32", size),
        check("all_gather", None, "bfloat16", size),
        check("scatter", None, "float32", size),
        check("all_to_all", None, "float32", size),
        check("p2p ring", None, "float32", size),
    ]


def check(collective: str, operation: str | None, dtype: str, size_bytes: int) -> Check:
    """Return a check by its names."""
    return Check(collective=collective, operation=operation, dtype=dtype, size_bytes=size_bytes)


@dataclass(frozen=True)
class PreparedCheck:
    """Check that is ready to be run on this rank, any number of times."""

    collective: Collective
    exchange: Exchange
    expected: Tensor | None
    elements: int
    """Number of elements of the whole tensor."""

    @property
    def bus_bytes(self) -> float:
        """Bytes that cross the busiest link."""
        size = self.elements * self.exchange.sent.element_size()
        return size * self.collective.bus_factor(self.exchange.ranks)

    def reset(self) -> None:
        """Fill the tensors anew."""
        received = self.exchange.received
        if self.collective.in_place:
            received.copy_(self.exchange.sent)
        else:
            received.fill_(UNTOUCHED)

    def run(self) -> None:
        """Run the check once; on a GPU it has then been queued, not completed."""
        self.collective.run(self.exchange)

    def begin(self) -> dist.Work | None:
        """Begin the check; return the work that waits for its end, or None if it has ended."""
        work: dist.Work | None = self.collective.run(replace(self.exchange, later=True))
        return work

    def first_wrong(self) -> int | None:
        """Return the first index where the result is wrong; None if it is right."""
        if self.expected is None:
            return None
        found, expected = bits(self.exchange.received), bits(self.expected)
        if torch.equal(found, expected):
            return None
        return int((found != expected).nonzero()[0, 0])


def prepare(check: Check, *, rank: int, ranks: int, device: torch.device) -> PreparedCheck:
    """Return a check with its tensors on this rank."""
    collective, dtype = COLLECTIVES[check.collective], DTYPES[check.dtype]
    elements = max(ranks, check.size_bytes // dtype.itemsize)
    if collective.is_cut:
        elements -= elements % ranks
    exact_up_to = EXACT_UP_TO.get(dtype, EXACT) if check.operation else EXACT
    sent_RP = contributed(ranks, exact_up_to, dtype, device)
    numbers = Numbers(sent_RP, rank, elements, check.operation)
    sent = numbers.part_of(rank, 0) if collective.sends_part else numbers.of(rank)
    size = numbers.part if collective.receives_part else elements
    expected = collective.gives(numbers)
    return PreparedCheck(
        collective=collective,
        exchange=Exchange(
            rank=rank,
            ranks=ranks,
            operation=None if check.operation is None else OPERATIONS[check.operation],
            sent=sent,
            received=torch.empty(size, dtype=dtype, device=device),
        ),
        expected=expected,
        elements=elements,
    )


@lru_cache
def contributed(ranks: int, exact_up_to: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the ranks' numbers in the dtype and on the device of sending."""
    return summands(ranks, exact_up_to).to(device, dtype)


@lru_cache
def summands(ranks: int, exact_up_to: int) -> Tensor:
    """Return each rank's contribution, by rank and place, int64; its sum is `ranks` times its mean.

    At each place ranks 2p and 2p + 1 are equally far above and below the mean; the last of an odd
    number is the mean. No sum of any of them is above `exact_up_to`, for up to exact_up_to / 2
    ranks, and no number above 100, which every dtype holds.
    """
    place_P = torch.arange(PERIOD)
    mean_P = 1 + place_P % max(1, min(50, exact_up_to // (2 * ranks)))
    pair_R1 = torch.arange(ranks)[:, None] // 2
    sign_R1 = 1 - 2 * (torch.arange(ranks)[:, None] % 2)
    if ranks % 2:
        sign_R1[-1] = 0
    return mean_P + sign_R1 * ((place_P // 7 + pair_R1) % (mean_P + 1))


def bits(tensor: Tensor) -> Tensor:
    """Return the same storage as integers, so that -0.0 differs from 0.0 and NaN equals itself."""
    sizes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])
