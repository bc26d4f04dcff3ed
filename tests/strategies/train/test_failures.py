"""A rank that fails leaves at once, with its reason in error.json."""

from pathlib import Path
from typing import Any

import pytest

from strategies.plan.run_directory import ExitCode
from strategies.train.deadline import Waits
from strategies.train.failures import exit_code_of
from tests.strategies.support.training_runs import WarmRanks, make_run_plan, make_spec


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_no_memory_has_one_exit_code_in_every_wording(message: str) -> None:
    assert exit_code_of(RuntimeError(message)) is ExitCode.OUT_OF_MEMORY


def test_a_wait_is_counted_from_the_last_collective_that_ended_in_its_group() -> None:
    waits = Waits()
    assert waits.longest_s({"0": (5, 5)}, now=10.0, begin=0.0) == (0.0, "")
    assert waits.longest_s({"0": (6, 5)}, now=11.0, begin=0.0) == (0.0, "0")
    assert waits.longest_s({"0": (9, 5)}, now=21.0, begin=0.0) == (10.0, "0")  # entered ahead
    assert waits.longest_s({"0": (9, 6)}, now=22.0, begin=0.0) == (0.0, "0")
    both = {"0": (9, 6), "1": (2, 1)}
    assert waits.longest_s(both, now=23.0, begin=0.0) == (1.0, "0")
    assert waits.longest_s(both, now=27.0, begin=20.0) == (5.0, "0")
    assert waits.longest_s(both, now=27.0, begin=26.0)[0] == 1.0  # another timeout holds since
    assert waits.longest_s({"0": (9, 9), "1": (2, 1)}, now=28.0, begin=0.0) == (5.0, "1")
    assert waits.longest_s({"0": (10, 9)}, now=30.0, begin=0.0) == (0.0, "0")


@pytest.mark.gloo
def test_a_rank_that_fails_does_not_wait_for_its_process_group(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(make_spec(parallelism__strategy="ddp"), ranks=2, **ragged)
    _, started = warm.start_training(
        run_plan, tmp_path / "run", case="train_with_endless_teardown", engine="FailingEngine"
    )
    assert started.wait() == [ExitCode.USER_ERROR] * 2, warm.said()
    assert warm.error(1)["type"] == "ZeroDivisionError"
