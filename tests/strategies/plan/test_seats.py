"""Where ranks sit, and when a pipeline's ranks do what, as it is drawn."""

from itertools import pairwise
from typing import Any

from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.seats import seats, time_slots
from tests.strategies.support.training_runs import HARDWARE, make_spec


def asked(ranks: int, nodes: int = 1, **parallelism: Any) -> Any:
    spec = make_spec(parallelism=parallelism)
    hardware = Hardware(class_name="x", device="cuda", slots=8, memory_gib=80)
    return spec, plan(spec, nodes=nodes, ranks_per_node=ranks, hardware=hardware)


def test_tensor_ranks_are_neighbours_on_a_node_and_stages_are_apart() -> None:
    spec, found = asked(
        4,
        nodes=2,
        strategy="ddp",
        data_parallel_replicate_degree=2,
        tensor_parallel_degree=2,
        pipeline_parallel_degree=2,
    )
    assert found.runnable, found.problems
    placed = seats(found)
    assert [seat.rank for seat in placed] == list(range(8))
    assert {(seat.node, seat.slot) for seat in placed} == {(n, s) for n in (0, 1) for s in range(4)}
    assert all(seat.node == seat.pipeline for seat in placed)
    for left, right in zip(placed[::2], placed[1::2], strict=True):
        assert (left.tensor, right.tensor) == (0, 1)
        assert (left.replicate, left.node) == (right.replicate, right.node)
    assert time_slots(spec, found)


def test_a_pipelines_step_has_every_pass_of_every_micro_batch_once() -> None:
    spec, found = asked(2, strategy="pipeline", pipeline_schedule="GPipe")
    slots = time_slots(spec, found)
    passes = {(slot.kind, slot.stage, slot.micro_batch) for slot in slots}
    assert len(passes) == len(slots) == 2 * 2 * found.gradient_accumulation_steps
    for rank in (0, 1):
        own = sorted((s.start, s.end) for s in slots if s.rank == rank)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


def test_what_cannot_be_drawn_is_left_out() -> None:
    spec, alone = asked(1, strategy="single")
    assert time_slots(spec, alone) == []
    assert len(seats(alone)) == 1
    _, wrong = asked(2, strategy="single")
    assert seats(wrong) == []
    crowd = plan(spec, nodes=600, ranks_per_node=8, hardware=HARDWARE)
    assert seats(crowd) == []
