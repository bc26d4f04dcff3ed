"""The jobs of a study: what of a spec changes from one to the next, and what stays."""

from typing import Any

import pytest

from core.spec.spec import JobSpec
from core.spec.study import SCHEDULES, on_class, scheduled, sized
from strategies.plan.trust.scaling import StudyKind


def spec(**changes: Any) -> JobSpec:
    made: dict[str, Any] = {
        "name": "gpt-ddp",
        "model": {"name": "gpt", "layers": 4, "width": 16, "heads": 2},
        "data": {"dataset": "python-stdlib", "sequence_length": 8},
        "training": {"steps": 50, "global_batch_size": 8, "learning_rate": 0.001, "seed": 5},
        "parallelism": {"strategy": "ddp", "data_parallel_replicate_degree": 2},
        "resources": {"ranks_per_node": 2, "wall_time": "20min"},
    }
    for name, part in changes.items():
        made[name] = {**made[name], **part} if isinstance(part, dict) else part
    return JobSpec.model_validate(made)


def strong(asked: JobSpec, ranks: int) -> JobSpec:
    return sized(asked, ranks, smallest=1, kind=StudyKind.STRONG)


def test_a_size_changes_the_ranks_and_the_axis_that_takes_them() -> None:
    asked = spec()
    made = strong(asked, 4)
    assert (made.name, made.resources.ranks_per_node) == ("gpt-ddp 4 ranks", 4)
    assert made.parallelism.data_parallel_replicate_degree is None
    assert made.training == asked.training
    assert (made.model, made.data, made.precision) == (asked.model, asked.data, asked.precision)
    assert made.resources.wall_time == asked.resources.wall_time


def test_the_other_degrees_stay() -> None:
    asked = spec(
        parallelism={
            "strategy": "fsdp",
            "data_parallel_replicate_degree": None,
            "data_parallel_shard_degree": 2,
            "tensor_parallel_degree": 2,
        }
    )
    parallelism = strong(asked, 4).parallelism
    assert (parallelism.data_parallel_shard_degree, parallelism.tensor_parallel_degree) == (None, 2)


def test_weak_scaling_grows_the_batch_with_the_ranks() -> None:
    made = [sized(spec(), ranks, smallest=2, kind=StudyKind.WEAK) for ranks in (2, 3, 4)]
    assert [one.training.global_batch_size for one in made] == [8, 12, 16]
    with pytest.raises(ValueError, match="a fraction of a sample"):
        sized(spec(training={"global_batch_size": 9}), 3, smallest=2, kind=StudyKind.WEAK)
    with pytest.raises(ValueError, match="global_batch_size"):
        sized(spec(training={"global_batch_size": 2**20}), 2, smallest=1, kind=StudyKind.WEAK)


def test_a_micro_batch_stays_and_the_accumulation_follows() -> None:
    asked = spec(training={"micro_batch_size": 2, "gradient_accumulation_steps": 2})
    training = strong(asked, 1).training
    assert (training.micro_batch_size, training.gradient_accumulation_steps) == (2, None)
    asked = spec(training={"gradient_accumulation_steps": 2})
    assert strong(asked, 1).training.gradient_accumulation_steps == 2


def test_schedules_change_the_pipelines_order_alone() -> None:
    asked = spec(parallelism={"strategy": "naive", "data_parallel_replicate_degree": None})
    made = {name: scheduled(asked, name) for name in SCHEDULES}
    assert made["naive"].parallelism.strategy == "naive"
    assert made["GPipe"].parallelism.strategy == "pipeline"
    assert made["GPipe"].parallelism.pipeline_schedule == "GPipe"
    assert {one.training for one in made.values()} == {asked.training}
    assert made["1F1B"].name == "gpt-ddp 1F1B"


def test_a_long_name_gives_way_to_what_sets_a_job_apart() -> None:
    assert strong(spec(name="n" * 63), 16).name == "n" * 54 + " 16 ranks"


def test_all_run_on_one_class_with_equal_threads() -> None:
    resources = on_class(spec(), "cpu4", threads_per_rank=1).resources
    assert (resources.node_class, resources.threads_per_rank) == ("cpu4", 1)
    asked = spec(resources={"threads_per_rank": 2})
    assert on_class(asked, "cpu4", threads_per_rank=1).resources.threads_per_rank == 2
