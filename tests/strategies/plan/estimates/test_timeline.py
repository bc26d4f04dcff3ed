"""Timelines follow torch's own schedules, and the bubble is what they leave."""

import re
from itertools import pairwise, product
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from strategies.plan.estimates.timeline import Pass, PassKind, PassSpan, bubble, order_of, timeline
from strategies.plan.spec import ParallelismSpec, PipelineSchedule, Strategy
from strategies.plan.stages import SINGLE_STAGE, can_order

KINDS = {
    "F": PassKind.FORWARD,
    "B": PassKind.BACKWARD,
    "I": PassKind.INPUT_GRADIENT,
    "W": PassKind.WEIGHT_GRADIENT,
}


class ImaginedStage:
    """What torch's schedules ask of a stage before they run."""

    is_first = True
    is_last = False

    def __init__(self, index: int, num_stages: int, ranks: int) -> None:
        self.stage_index, self.num_stages = index, num_stages
        self.group_size, self.group_rank = ranks, 0
        self.submod = nn.Module()


def torchs_order(
    schedule: PipelineSchedule, ranks: int, per_rank: int, micro_batches: int
) -> dict[int, list[Pass]]:
    make = get_schedule_class(schedule)
    own = (
        [0, 2 * ranks - 1]
        if schedule is PipelineSchedule.ZBV
        else range(0, ranks * per_rank, ranks)
    )
    stages: Any = [ImaginedStage(stage, ranks * per_rank, ranks) for stage in own]
    several = issubclass(make, PipelineScheduleMulti)
    orders = make(stages if several else stages[0], micro_batches, loss_fn=max).pipeline_order
    found = {rank: re.findall(r"(\d+)([FBIW])(\d+)", str(orders[rank])) for rank in range(ranks)}
    return {
        rank: [
            Pass(KINDS[kind], int(stage), int(micro_batch)) for stage, kind, micro_batch in passes
        ]
        for rank, passes in found.items()
    }


def turns_of(schedule: PipelineSchedule) -> tuple[int, ...]:
    """Stages per rank worth trying."""
    if schedule in SINGLE_STAGE:
        return (1,)
    return (2,) if schedule is PipelineSchedule.ZBV else (1, 2, 3)


def legal(schedule: PipelineSchedule, *, most_ranks: int = 5) -> list[tuple[int, int, int]]:
    """Ranks, stages per rank and micro-batches that a schedule takes."""
    return [
        (ranks, per_rank, micro_batches)
        for ranks, per_rank, micro_batches in product(
            range(2, most_ranks + 1), turns_of(schedule), range(1, 14)
        )
        if can_order(schedule, ranks=ranks, micro_batches=micro_batches)
    ]


def slots_of(
    schedule: PipelineSchedule, ranks: int, per_rank: int, micro_batches: int
) -> list[PassSpan]:
    parallelism = ParallelismSpec(pipeline_schedule=schedule, pipeline_stages_per_rank=per_rank)
    return timeline(Strategy.PIPELINE, parallelism, ranks=ranks, micro_batches=micro_batches)


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_ranks_do_their_passes_in_torchs_order(schedule: PipelineSchedule) -> None:
    for ranks, per_rank, micro_batches in legal(schedule):
        torchs = torchs_order(schedule, ranks, per_rank, micro_batches)
        if schedule is PipelineSchedule.ONE_F_ONE_B:
            # torch 2.13 numbers the last rank's forward passes from 1; it does not run this list.
            torchs[ranks - 1] = [
                work._replace(micro_batch=work.micro_batch - 1)
                if work.kind is PassKind.FORWARD
                else work
                for work in torchs[ranks - 1]
            ]
        ours = {
            rank: list(order_of(schedule, rank, ranks, per_rank, micro_batches))
            for rank in range(ranks)
        }
        assert ours == torchs, (ranks, per_rank, micro_batches)


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_torch_takes_the_micro_batches_that_the_rule_allows_and_no_others(
    schedule: PipelineSchedule,
) -> None:
    per_rank = turns_of(schedule)[-1]
    for ranks, micro_batches in product(range(2, 6), range(1, 20)):
        try:
            torchs_order(schedule, ranks, per_rank, micro_batches)
            taken = True
        except ValueError:
            taken = False
        assert can_order(schedule, ranks=ranks, micro_batches=micro_batches) == taken


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_every_pass_has_its_input_and_ranks_do_one_thing_at_a_time(
    schedule: PipelineSchedule,
) -> None:
    for ranks, per_rank, micro_batches in legal(schedule, most_ranks=4):
        slots = slots_of(schedule, ranks, per_rank, micro_batches)
        ended = {slot.work: slot.end for slot in slots}
        assert len(ended) == len(slots)
        for before, after in pairwise(slots):
            assert before.rank != after.rank or before.end <= after.start
        for slot in slots:
            kind, stage, micro_batch = slot.work
            if kind is PassKind.FORWARD and stage > 0:
                assert ended[Pass(kind, stage - 1, micro_batch)] <= slot.start
            if kind in (PassKind.BACKWARD, PassKind.INPUT_GRADIENT):
                assert ended[Pass(PassKind.FORWARD, stage, micro_batch)] <= slot.start
                if stage < ranks * per_rank - 1:
                    assert ended[Pass(kind, stage + 1, micro_batch)] <= slot.start


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_the_bubble_is_what_the_timeline_leaves(schedule: PipelineSchedule) -> None:
    for ranks, per_rank, micro_batches in legal(schedule, most_ranks=6):
        slots = slots_of(schedule, ranks, per_rank, micro_batches)
        busy = sum(slot.end - slot.start for slot in slots)
        left = 1 - busy / (ranks * max(slot.end for slot in slots))
        parallelism = ParallelismSpec(pipeline_schedule=schedule, pipeline_stages_per_rank=per_rank)
        said = bubble(Strategy.PIPELINE, parallelism, ranks=ranks, micro_batches=micro_batches)
        assert said == pytest.approx(left), (ranks, per_rank, micro_batches)


def test_published_bubbles() -> None:
    """Narayanan et al., arXiv:2104.04473: p = 4, m = 8 wait 3/8 of the ideal time, half with v = 2;
    Qi et al., arXiv:2401.10241: a third of 1F1B's waiting time where the three passes are equal."""

    def of(strategy: Strategy = Strategy.PIPELINE, **fields: Any) -> float:
        return bubble(strategy, ParallelismSpec(**fields), ranks=4, micro_batches=8)

    def over_ideal(share: float) -> float:
        return share / (1 - share)

    assert over_ideal(of()) == pytest.approx(3 / 8)
    assert over_ideal(of(pipeline_schedule="GPipe")) == pytest.approx(3 / 8)
    assert over_ideal(of(pipeline_schedule="Interleaved1F1B")) == pytest.approx(3 / 16)
    once = {"pipeline_schedule": "InterleavedZeroBubble", "pipeline_stages_per_rank": 1}
    assert over_ideal(of(**once)) == pytest.approx(1 / 8)
    assert over_ideal(of(pipeline_schedule="ZBVZeroBubble")) == pytest.approx(1 / 16)
    assert of(Strategy.NAIVE) == pytest.approx(3 / 4)


def test_naive_ranks_take_turns() -> None:
    slots = timeline(Strategy.NAIVE, ParallelismSpec(), ranks=3, micro_batches=2)
    assert max(slot.end for slot in slots) == 2 * 3 * 3
    by_time = sorted(slots, key=lambda slot: slot.start)
    assert all(a.end == b.start for a, b in pairwise(by_time))
