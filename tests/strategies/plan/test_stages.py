"""Layers are cut so that the slowest stage is as fast as it can be."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.spec import ParallelismSpec, PipelineSchedule, Strategy
from strategies.plan.stages import cut, layers_of, rank_of, schedule_of, stages_per_rank
from tests.strategies.support.training_runs import make_spec

cost = st.integers(0, 30)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), cost, cost)
def test_no_other_cut_has_a_faster_slowest_stage(
    layers: int, num_stages: int, layer_cost: int, first_cost: int, last_cost: int
) -> None:
    if num_stages > layers:
        return

    def slowest(counts: list[int]) -> int:
        costs = [layer_cost * number for number in counts]
        costs[0] += first_cost
        costs[-1] += last_cost
        return max(costs)

    stages = cut(
        layers, num_stages, layer_cost=layer_cost, first_cost=first_cost, last_cost=last_cost
    )
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert min(len(stage) for stage in stages) >= 1
    best = min(
        slowest([b - a for a, b in zip((0, *ends), (*ends, layers), strict=True)])
        for ends in combinations(range(1, layers), num_stages - 1)
    )
    assert slowest([len(stage) for stage in stages]) == best


def test_a_large_vocabulary_takes_layers_from_the_last_stage() -> None:
    small = make_spec(model={"name": "gpt", "layers": 12, "width": 768, "heads": 12})
    large = make_spec(
        model={"name": "gpt", "layers": 12, "width": 768, "heads": 12},
        data__tokenizer="characters",
        data__vocabulary_size=50_257,
    )
    assert [len(stage) for stage in layers_of(small, 4)] == [3, 3, 3, 3]
    # The head has 38.6 M weights, a layer 7.1 M: more than four layers multiply.
    assert [len(stage) for stage in layers_of(large, 4)] == [3, 4, 4, 1]


def test_uneven_layers_go_to_later_stages_which_keep_fewer_micro_batches() -> None:
    assert cut(7, 3, layer_cost=2, first_cost=0, last_cost=0) == [
        range(2),
        range(2, 4),
        range(4, 7),
    ]


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_neighbouring_stages_are_on_neighbouring_ranks(schedule: PipelineSchedule) -> None:
    places = [rank_of(stage, ranks=4, schedule=schedule) for stage in range(8)]
    assert places[:4] == [0, 1, 2, 3]
    assert places[4:] == ([3, 2, 1, 0] if schedule is PipelineSchedule.ZBV else [0, 1, 2, 3])


def test_stages_per_rank_are_what_the_schedule_needs_unless_given() -> None:
    def of(strategy: Strategy = Strategy.PIPELINE, **fields: object) -> int:
        parallelism = ParallelismSpec.model_validate(fields)
        return stages_per_rank(schedule_of(strategy, parallelism), parallelism)

    assert [of(pipeline_schedule=schedule) for schedule in PipelineSchedule] == [1, 1, 2, 2, 2]
    assert of(pipeline_schedule="Interleaved1F1B", pipeline_stages_per_rank=3) == 3
    assert of(Strategy.NAIVE, pipeline_schedule="ZBVZeroBubble") == 1
