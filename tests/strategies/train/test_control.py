"""A running attempt listens: control.json, SIGTERM, and its own guards."""

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.run_directory import Action, ExitCode, newest_checkpoint, write_control
from strategies.train.watching.memory_snapshot import Snapshot
from tests.strategies.support.training_runs import Run, Started, WarmRanks, make_run_plan, make_spec

pytestmark = pytest.mark.gloo

DDP = {"parallelism__strategy": "ddp"}
# Long enough that no machine finishes it before the test speaks, and stopped by every test.
ENDLESS = {"training__steps": 100_000, "training__schedule": "constant", **DDP}


def wait_for(run: Run, key: str, *, at_least: int, deadline_s: float = 60) -> None:
    """Until that many metric lines carry `key`."""
    until = time.monotonic() + deadline_s
    while not run.directory.metrics.exists() or len(run.series(key)) < at_least:
        assert time.monotonic() < until, f"fewer than {at_least} lines with {key}"
        time.sleep(0.01)


@pytest.fixture
def endless(warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path) -> tuple[Run, Started]:
    """Two ranks that have trained three steps and would go on for hours."""
    run_plan = make_run_plan(make_spec(**ENDLESS), ranks=2, **ragged)
    run, started = warm.start_training(run_plan, tmp_path / "run")
    wait_for(run, "loss", at_least=3)
    return run, started


def assert_stopped_and_saved(run: Run) -> None:
    result = run.result
    assert (result.finished, result.reason) == (False, "stopped")
    assert result.step == run.series("step")[-1]
    assert result.checkpoint == f"step-{result.step:06d}"
    newest = newest_checkpoint(run.directory.checkpoints)
    assert newest is not None
    assert newest.name == result.checkpoint
    assert result.loss_first is not None
    assert result.loss_last is not None


def test_stop_saves_and_ends_every_rank_with_0(
    endless: tuple[Run, Started], warm: WarmRanks
) -> None:
    run, started = endless
    write_control(run.directory.control, Action.STOP)
    assert started.wait() == [0, 0], warm.said()
    assert_stopped_and_saved(run)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_sigterm_to_any_one_rank_stops_all_of_them(
    rank: int, endless: tuple[Run, Started], warm: WarmRanks
) -> None:
    run, started = endless
    os.kill(started.pids[rank], signal.SIGTERM)
    assert started.wait() == [0, 0], warm.said()
    assert_stopped_and_saved(run)


def test_checkpoint_and_profile_are_obeyed_once_each_and_training_goes_on(
    endless: tuple[Run, Started], warm: WarmRanks
) -> None:
    run, started = endless
    write_control(run.directory.control, Action.CHECKPOINT)
    wait_for(run, "checkpoint", at_least=1)
    write_control(run.directory.control, Action.PROFILE)
    wait_for(run, "artifact", at_least=1)
    write_control(run.directory.control, Action.SNAPSHOT)
    wait_for(run, "artifact", at_least=2)
    run.directory.control.write_text('{"sequence": 4, "action": "explode"}')
    wait_for(run, "loss", at_least=len(run.series("loss")) + 3)
    control = write_after(run)
    assert control == 4
    assert started.wait() == [0, 0], warm.said()
    saved = [line["checkpoint"] for line in run.lines if "checkpoint" in line]
    assert len(saved) == 2  # the one asked for, and the one of the stop
    for rank in (0, 1):
        (trace,) = run.directory.artifacts.glob(f"profile-step-*-rank-{rank}.json")
        names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
        assert "aten::mm" in names
        assert_names_what_fills_the_memory(run, rank)
    assert (
        "control.json is not a valid request" in (warm.logs / "rank-0" / "stdout.log").read_text()
    )


def assert_names_what_fills_the_memory(run: Run, rank: int) -> None:
    (path,) = run.directory.artifacts.glob(f"memory-step-*-rank-{rank}.json")
    found = Snapshot.model_validate_json(path.read_bytes())
    assert found.rank == rank
    weights = {one.name: one.bytes for one in found.tensors if one.kind == "weights"}
    assert weights["embedding.weight"] == 256 * 64 * 4
    # Adam keeps two numbers for each weight.
    moments = [one.bytes for one in found.tensors if "embedding.weight" in one.name]
    assert moments == [256 * 64 * 4] * 3
    sizes = [one.bytes for one in found.tensors]
    assert sizes == sorted(sizes, reverse=True)
    for moment in ("before_forward", "after_forward", "after_backward", "after_optimizer"):
        assert found.phases[f"{moment}_weights_gib"] > 0
    assert found.phases["after_forward_rest_gib"] > found.phases["before_forward_rest_gib"]


def write_after(run: Run) -> int:
    """Replace the nonsense by a stop; its sequence number."""
    run.directory.control.unlink()
    control = write_control(run.directory.control, Action.STOP)
    assert control.sequence == 1  # numbers start anew in a new file; an obeyed one is not repeated
    stop = control.model_copy(update={"sequence": 4})
    run.directory.control.write_text(stop.model_dump_json())
    return stop.sequence


def test_a_loss_that_is_not_a_number_ends_the_run_before_the_update(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    spec = make_spec(**ENDLESS, checkpoint__every_steps=1)
    run_plan = make_run_plan(spec, ranks=2, **ragged)
    run, started = warm.start_training(run_plan, tmp_path / "run", engine="PoisonedEngine")
    assert started.wait() == [ExitCode.DIVERGED] * 2, warm.said()
    for rank in (0, 1):
        error = warm.error(rank)
        assert error["type"] == "Diverged"
        assert error["message"].startswith(
            "step 3: the loss is nan on rank 1; the weights of step 2"
        )
    assert all(math.isfinite(loss) for loss in run.series("loss"))
    assert run.series("step")[-1] == 2
    assert run.result.reason == "diverged"
    assert run.result.step == 2
    newest = newest_checkpoint(run.directory.checkpoints)
    assert newest is not None
    assert newest.name == "step-000002"


def test_a_rank_that_raises_leaves_its_own_error_and_takes_the_others_down(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(make_spec(**ENDLESS), ranks=2, collective_timeout_s=20, **ragged)
    _, started = warm.start_training(run_plan, tmp_path / "run", engine="FailingEngine")
    codes = started.wait()
    assert codes[1] == ExitCode.USER_ERROR
    assert codes[0] not in (0, -9)
    error = warm.error(1)
    assert (error["type"], error["message"]) == ("ZeroDivisionError", "rank 1 was told to fail")
    assert "cases.py" in error["trace"]
    assert abs(error["t_ns"] / 1e9 - time.time()) < 300


@pytest.mark.slow  # test_collective_digest.py has one that sleeps
def test_a_rank_gives_up_on_one_that_hangs_after_the_timeout_it_was_given(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(make_spec(**ENDLESS), ranks=2, collective_timeout_s=2, **ragged)
    _, started = warm.start_training(run_plan, tmp_path / "run", engine="HangingEngine")
    assert started.wait()[0] == ExitCode.STALLED, warm.said()
    error = warm.error(0)
    assert error["type"] == "RanksMissing"  # before gloo's own timeout
    assert error["message"].startswith("rank 1 never entered ")


def test_running_out_of_memory_has_its_own_code(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(make_spec(**ENDLESS), ranks=2, **ragged)
    _, started = warm.start_training(run_plan, tmp_path / "run", engine="HungryEngine")
    assert started.wait() == [ExitCode.OUT_OF_MEMORY] * 2, warm.said()


@pytest.mark.parametrize(
    ("content", "form", "said"),
    [
        (b"", "text", "is empty (0 bytes)"),
        (b"x" * 97, "text", "has 97 bytes; sequence_length 48 needs at least 98"),
        (b'{"text": "a"}\n', "jsonl", "no document of at least 2 tokens; 1 are shorter"),
        (b'{"text": "ab"}\n\n{"txt": "ab"}\n', "jsonl", "line 3 is not an object"),
        (b'{"text": "ab"}\n{"text"\n', "jsonl", "line 2 is not JSON"),
        (b"[" * 100_000, "jsonl", "line 1 is not JSON"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_with_numbers(
    content: bytes, form: str, said: str, warm: WarmRanks, tmp_path: Path
) -> None:
    """By every rank: where nothing is in it, two are asked."""
    path = tmp_path / "bad"
    path.write_bytes(content)
    fields = {"dataset_path": str(path), "dataset_format": form}
    ranks = 1 if content else 2
    run_plan = make_run_plan(make_spec(**DDP if ranks > 1 else {}), ranks=ranks, **fields)
    _, started = warm.start_training(run_plan, tmp_path / "run")
    assert started.wait() == [ExitCode.BAD_DATA] * ranks, warm.said()
    assert said in warm.error(0)["message"]


def test_a_dataset_that_is_gone_and_a_wrong_number_of_ranks_are_told(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(make_spec(), dataset_path=str(tmp_path / "gone"))
    _, started = warm.start_training(run_plan, tmp_path / "run")
    assert started.wait() == [ExitCode.BAD_DATA]
    assert "gone" in warm.error(0)["message"]
    run = Run(tmp_path / "run")
    started = warm.start("train_run", ranks=2, run_dir=str(run.directory.path))
    assert started.wait() == [ExitCode.BAD_DATA] * 2
    run.directory.plan.write_text(make_run_plan(make_spec(), **ragged).model_dump_json())
    started = warm.start("train_run", ranks=2, run_dir=str(run.directory.path))
    assert started.wait() == [ExitCode.USER_ERROR] * 2
    assert "the plan is for 1 ranks, but WORLD_SIZE is 2" in warm.error(0)["message"]
