"""Engines with numbers on two devices: what a CPU alone never sees."""

from typing import Any

import pytest

from tests.strategies.support.training_runs import WarmRanks

pytestmark = pytest.mark.gloo

# Most of the time goes into first weights, by the layer; only a pipeline needs two of them.
ONE_LAYER = {
    "model": {"name": "llama", "layers": 1, "width": 64, "heads": 4, "kv_heads": 2},
}


def started(warm: WarmRanks, case: str, changes: list[dict[str, Any]]) -> None:
    ranks = warm.start(case, ranks=1, file="two_devices.py", changes=changes)
    assert ranks.wait() == [0], warm.said()


LOCAL_SGD = {"parallelism__strategy": "local_sgd", "parallelism__average_every_steps": 1}


@pytest.mark.parametrize(
    "changes",
    [
        [{"training__optimizer": "sgd"}, {"training__optimizer": "lars"}, LOCAL_SGD],
        [{"training__optimizer": "adamw"}, {"precision": "pure_bfloat16"}],
    ],
    ids=["each-once", "the-others"],
)
@pytest.mark.slow
def test_optimizers_and_local_sgd_step_skip_and_load_on_a_device(
    changes: list[dict[str, Any]], warm: WarmRanks
) -> None:
    """Not lamb and delayed gradients, which read a number of the host that fake tensors lack."""
    started(warm, "whole_steps", [each | ONE_LAYER for each in changes])


@pytest.mark.parametrize(
    "cases",
    [
        [("ddp", "float32"), ("fsdp", "pure_bfloat16")],
        pytest.param([("ddp", "pure_bfloat16"), ("fsdp", "float32")], marks=pytest.mark.slow),
    ],
    ids=["each-once", "the-others"],
)
def test_ranks_that_share_gradients_or_weights_step_skip_and_load_on_a_device(
    cases: list[tuple[str, str]], warm: WarmRanks
) -> None:
    """DistributedDataParallel without its reducer, FSDP with streams that do nothing: neither can
    run on fake tensors."""
    changes = [
        {"parallelism__strategy": strategy, "precision": precision} | ONE_LAYER
        for strategy, precision in cases
    ]
    started(warm, "steps_of_many", changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16", "training__optimizer": "sgd"},
        pytest.param(
            {"precision": "float16", "adapter": {"rank": 2, "targets": ["query"]}},
            marks=pytest.mark.slow,
        ),
        pytest.param({"precision": "float32"}, marks=pytest.mark.slow),
        pytest.param({"precision": "pure_bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=["bfloat16", "float16, LoRA", "float32", "pure_bfloat16"],
)
def test_parts_on_the_host_are_gathered_and_updated(
    changes: dict[str, Any], warm: WarmRanks
) -> None:
    """torch keeps them there, and brings each to the device for as long as it is gathered."""
    on_host = {
        "parallelism__strategy": "fsdp",
        "parallelism__offload_optimizer": "cpu",
        "parallelism__offload_parameters": "cpu",
    }
    started(warm, "steps_of_many", [on_host | changes | ONE_LAYER])


def test_ranks_that_share_a_model_step_skip_and_load_on_a_device(warm: WarmRanks) -> None:
    """Pipeline without the vote on its shapes, which is one of numbers."""
    changes: list[dict[str, Any]] = [
        {"parallelism__strategy": "tensor"} | ONE_LAYER,
        {"parallelism__strategy": "context"} | ONE_LAYER,
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
