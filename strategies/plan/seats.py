"""Place of each rank of a plan, and schedule of a pipeline's ranks, for people to look at before
a run. Pure, torch-free."""

from pydantic import BaseModel, ConfigDict

from strategies.plan.estimates.timeline import timeline
from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec

MOST_RANKS = 1024  # that a picture can show
MOST_PASSES = 4096


class Seat(BaseModel):
    """One rank: its coordinate along each axis, and the node and slot that it runs on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    node: int
    """Number of the job's node, from 0."""
    slot: int
    """Number of the node's GPU, or of the share of its cores."""


class TimeSlot(BaseModel):
    """One pass of a pipeline's rank; time in forward passes of one stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    """Position along the pipeline."""
    kind: str
    stage: int
    micro_batch: int
    start: int
    end: int


def seats(plan: Plan) -> list[Seat]:
    """Return every rank; none if they are too many to draw or the degrees do not multiply to
    them."""
    if plan.world_size > MOST_RANKS or plan.layout.world_size != plan.world_size:
        return []
    return [
        Seat(
            rank=rank,
            **plan.layout.coordinate(rank)._asdict(),
            node=rank // plan.ranks_per_node,
            slot=rank % plan.ranks_per_node,
        )
        for rank in range(plan.world_size)
    ]


def time_slots(spec: TrainSpec, plan: Plan) -> list[TimeSlot]:
    """Return one step of a pipeline; empty if the plan cannot run or the step is too long to
    draw."""
    ranks, micro_batches = plan.layout.pipeline, plan.gradient_accumulation_steps
    if ranks == 1 or plan.problems or ranks * micro_batches > MOST_PASSES:
        return []
    slots = timeline(plan.strategy, spec.parallelism, ranks=ranks, micro_batches=micro_batches)
    return [
        TimeSlot(rank=slot.rank, **slot.work._asdict(), start=slot.start, end=slot.end)
        for slot in slots
    ]
