"""Timeline of a pipeline's ranks: passes in the order of torch's schedules, laid out in time, and
the share of it that ranks wait. Pure, torch-free.

Time is counted in forward passes of one stage: a backward pass takes two, one for the gradient of
the stage's input and one for that of its weights. Sending takes no time.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from strategies.plan.spec import ParallelismSpec, PipelineSchedule, Strategy
from strategies.plan.stages import schedule_of, stages_per_rank


class PassKind(StrEnum):
    """Kind of pass; zero-bubble schedules go backward in two halves."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


TIME = {
    PassKind.FORWARD: 1,
    PassKind.BACKWARD: 2,
    PassKind.INPUT_GRADIENT: 1,
    PassKind.WEIGHT_GRADIENT: 1,
}
FORWARD, BACKWARD, INPUT, WEIGHT = PassKind


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage."""

    kind: PassKind
    stage: int
    micro_batch: int


class PassSpan(NamedTuple):
    """Pass of a rank, with its start and end."""

    rank: int
    work: Pass
    start: int
    end: int


def timeline(
    strategy: Strategy, parallelism: ParallelismSpec, *, ranks: int, micro_batches: int
) -> list[PassSpan]:
    """Return every pass of a step, rank by rank, each as early as its rank and its input allow."""
    schedule = schedule_of(strategy, parallelism)
    per_rank = stages_per_rank(schedule, parallelism)
    order = [
        list(order_of(schedule, rank, ranks, per_rank, micro_batches)) for rank in range(ranks)
    ]
    if strategy is Strategy.NAIVE:
        order = [naive_order(rank, micro_batches) for rank in range(ranks)]
    return laid_out(order, num_stages=ranks * per_rank)


def bubble(
    strategy: Strategy, parallelism: ParallelismSpec, *, ranks: int, micro_batches: int
) -> float:
    """Return the share of a step in which a rank waits, from 0 to 1.

    Ranks p, stages per rank v, micro-batches m: (p - 1) / (v m + p - 1) for GPipe and 1F1B (v = 1)
    and interleaved (arXiv:2104.04473, section 2.2; m < p adds a gap per turn); a third of that
    waiting time if weight gradients fill the gaps; (p - 1) / p for naive.
    """
    schedule = schedule_of(strategy, parallelism)
    stages = stages_per_rank(schedule, parallelism)
    if strategy is Strategy.NAIVE:
        return (ranks - 1) / ranks
    waits = waiting_time(schedule, ranks, stages, micro_batches)
    return waits / (3 * stages * micro_batches + waits)


def waiting_time(schedule: PipelineSchedule, ranks: int, per_rank: int, micro_batches: int) -> int:
    """Return how long a rank waits in a step; derived from timelines, and tested against them."""
    hops, missing = ranks - 1, max(0, ranks - micro_batches)
    match schedule:
        case PipelineSchedule.GPIPE | PipelineSchedule.ONE_F_ONE_B:
            return 3 * hops
        case PipelineSchedule.INTERLEAVED:
            return 3 * hops + 3 * (per_rank - 1) * missing
        case PipelineSchedule.INTERLEAVED_ZERO_BUBBLE:
            if not missing:
                return hops
            return hops + missing + (per_rank - 1) * max(2 * ranks - 3 * micro_batches, missing)
        case PipelineSchedule.ZBV:
            return max(hops, 4 * hops - 2 * (micro_batches - 1))


def laid_out(orders: list[list[Pass]], *, num_stages: int) -> list[PassSpan]:
    """Return each rank's passes in its order, as early as possible."""
    ended: dict[Pass, int] = {}
    slots: list[list[PassSpan]] = [[] for _ in orders]
    waiting = set(range(len(orders)))
    while waiting:
        before = len(ended)
        for rank in sorted(waiting):
            order, own = orders[rank], slots[rank]
            while len(own) < len(order):
                work = order[len(own)]
                needed = input_of(work, num_stages)
                if needed is not None and needed not in ended:
                    break
                start = max(own[-1].end if own else 0, 0 if needed is None else ended[needed])
                ended[work] = start + TIME[work.kind]
                own.append(PassSpan(rank, work, start, ended[work]))
            else:
                waiting.discard(rank)
        assert len(ended) > before or not waiting, "this schedule deadlocks"
    return [slot for own in slots for slot in own]


def input_of(work: Pass, num_stages: int) -> Pass | None:
    """Return the pass that must end before a pass can start, apart from its own rank's earlier
    ones."""
    kind, stage, micro_batch = work
    if kind is FORWARD:
        return Pass(FORWARD, stage - 1, micro_batch) if stage > 0 else None
    if kind is WEIGHT:
        return Pass(INPUT, stage, micro_batch)
    if stage == num_stages - 1:
        return Pass(FORWARD, stage, micro_batch)
    return Pass(kind, stage + 1, micro_batch)


def order_of(
    schedule: PipelineSchedule, rank: int, ranks: int, per_rank: int, micro_batches: int
) -> Iterator[Pass]:
    """Yield the passes of one rank, in torch's order."""
    match schedule:
        case PipelineSchedule.GPIPE:
            yield from (Pass(FORWARD, rank, i) for i in range(micro_batches))
            yield from (Pass(BACKWARD, rank, i) for i in range(micro_batches))
        case PipelineSchedule.ONE_F_ONE_B:
            yield from one_forward_one_backward(rank, ranks, micro_batches)
        case PipelineSchedule.INTERLEAVED | PipelineSchedule.INTERLEAVED_ZERO_BUBBLE:
            halves = schedule is PipelineSchedule.INTERLEAVED_ZERO_BUBBLE
            yield from interleaved(rank, ranks, per_rank, micro_batches, halves=halves)
        case PipelineSchedule.ZBV:
            yield from v_shaped(rank, ranks, micro_batches)


def naive_order(rank: int, micro_batches: int) -> list[Pass]:
    """Return each micro-batch's forward and backward pass before those of the next."""
    return [Pass(kind, rank, i) for i in range(micro_batches) for kind in (FORWARD, BACKWARD)]


def one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> Iterator[Pass]:
    """Yield enough forward passes for the last rank to start going back, then both in turn."""
    ahead = min(ranks - 1 - rank, micro_batches)
    yield from (Pass(FORWARD, rank, i) for i in range(ahead))
    for i in range(ahead, micro_batches):
        yield Pass(FORWARD, rank, i)
        yield Pass(BACKWARD, rank, i - ahead)
    yield from (Pass(BACKWARD, rank, i) for i in range(micro_batches - ahead, micro_batches))


def interleaved(
    rank: int, ranks: int, per_rank: int, micro_batches: int, *, halves: bool
) -> Iterator[Pass]:
    """Yield 1F1B over several stages per rank, a round of micro-batches through each of them in
    turn.

    In halves, a rank's weight gradients wait until `rank` input gradients are done, and fill gaps.
    """
    a_round = micro_batches // max(1, micro_batches // ranks)
    total = per_rank * micro_batches
    hops = (1 if halves else 2) * (ranks - 1 - rank)
    ahead = min((per_rank - 1) * a_round + hops, total)
    counted: Counter[tuple[PassKind, int]] = Counter()

    def next_of(kind: PassKind, turn: int) -> Pass:
        stage = turn * ranks + rank
        counted[kind, stage] += 1
        return Pass(kind, stage, counted[kind, stage] - 1)

    def turn_back(step: int) -> int:
        return per_rank - 1 - step // a_round % per_rank

    back = INPUT if halves else BACKWARD
    for step in range(total + ahead):
        if step < total:
            yield next_of(FORWARD, step // a_round % per_rank)
        if step >= ahead:
            yield next_of(back, turn_back(step - ahead))
            if halves and step - ahead >= rank:
                yield next_of(WEIGHT, turn_back(step - ahead - rank))
    if halves:
        yield from (next_of(WEIGHT, turn_back(step)) for step in range(max(0, total - rank), total))


def v_shaped(rank: int, ranks: int, micro_batches: int) -> Iterator[Pass]:
    """Yield the passes of two stages per rank, one on the way to the last rank and one on the way
    back.

    Qi et al., arXiv:2401.10241, section 6. Too few micro-batches to fill the V leave gaps.
    """
    down, up = rank, 2 * ranks - 1 - rank
    filled = max(micro_batches, 2 * ranks - 1)
    counted: Counter[tuple[PassKind, int]] = Counter()

    def next_of(kind: PassKind, stage: int) -> Pass:
        counted[kind, stage] += 1
        return Pass(kind, stage, counted[kind, stage] - 1)

    def passes() -> Iterator[Pass]:
        for _ in range(2 * (ranks - rank) - 1):
            yield next_of(FORWARD, down)
        for _ in range(rank):
            yield next_of(FORWARD, up)
            yield next_of(FORWARD, down)
        for _ in range(ranks - rank):
            yield from (next_of(kind, up) for kind in (FORWARD, INPUT, WEIGHT))
        while counted[FORWARD, up] < filled:
            if counted[FORWARD, down] < filled:
                yield next_of(FORWARD, down)
            yield from (next_of(kind, down) for kind in (INPUT, WEIGHT))
            yield from (next_of(kind, up) for kind in (FORWARD, INPUT, WEIGHT))
        for _ in range(rank):
            yield next_of(INPUT, down)
            yield next_of(INPUT, up)
        for _ in range(ranks - rank):
            yield from (next_of(kind, down) for kind in (INPUT, WEIGHT))
        for stage in (up, down):
            while counted[WEIGHT, stage] < filled:
                yield next_of(WEIGHT, stage)

    return (work for work in passes() if work.micro_batch < micro_batches)
