"""A rank that fails leaves at once, with its reason in error.json."""

from pathlib import Path
from typing import Any

import pytest

from strategies.plan.run_directory import ExitCode
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
