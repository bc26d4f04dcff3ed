"""Engines with numbers on two devices: what a CPU alone never sees."""

from typing import Any

import pytest

from tests.strategies.support.training_runs import WarmRanks

pytestmark = pytest.mark.gloo


def started(warm: WarmRanks, case: str, changes: list[dict[str, Any]]) -> None:
    ranks = warm.start(case, ranks=1, file="two_devices.py", changes=changes)
    assert ranks.wait() == [0], warm.said()


def test_optimizers_and_local_sgd_step_skip_and_load_on_a_device(warm: WarmRanks) -> None:
    """Not lamb and delayed gradients, which read a number of the host that fake tensors lack."""
    optimizers = [{"training__optimizer": name} for name in ("adamw", "sgd", "lars")]
    others: list[dict[str, Any]] = [
        {"precision": "pure_bfloat16"},
        {"parallelism__strategy": "local_sgd", "parallelism__average_every_steps": 1},
    ]
    started(warm, "whole_steps", optimizers + others)


def test_ranks_that_share_gradients_or_weights_step_skip_and_load_on_a_device(
    warm: WarmRanks,
) -> None:
    """DistributedDataParallel without its reducer, FSDP with streams that do nothing: neither can
    run on fake tensors."""
    changes: list[dict[str, Any]] = [
        {"parallelism__strategy": strategy, "precision": precision}
        for strategy in ("ddp", "fsdp")
        for precision in ("float32", "pure_bfloat16")
    ]
    started(warm, "steps_of_many", changes)


def test_ranks_that_share_a_model_step_skip_and_load_on_a_device(warm: WarmRanks) -> None:
    """Pipeline without the vote on its shapes, which is one of numbers."""
    changes: list[dict[str, Any]] = [
        {"parallelism__strategy": "tensor"},
        {"parallelism__strategy": "context"},
        {
            "parallelism__strategy": "pipeline",
            "training__global_batch_size": 4,
            "training__gradient_accumulation_steps": 2,
        },
    ]
    started(warm, "steps_of_many", changes)


def test_offloaded_gradients_are_clipped_and_states_loaded_on_the_host(warm: WarmRanks) -> None:
    """The norm is on the rank's device, gradients are where DeepSpeed keeps the state."""
    offloads: list[dict[str, Any]] = [
        {"parallelism__strategy": f"zero{stage}", "parallelism__offload_optimizer": "cpu"}
        for stage in (1, 2, 3)
    ]
    started(warm, "clips_of_zero", offloads)
