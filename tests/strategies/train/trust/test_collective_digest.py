"""When a rank is waited for in vain, the others say whom they wait for, and in which collective."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from strategies.plan.layout import Layout
from strategies.plan.run_directory import ExitCode, RunPlan
from strategies.train.mesh import Mesh
from strategies.train.trust.collective_digest import (
    Digest,
    Inquiry,
    Position,
    blame,
    digest,
    positions,
)
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan, make_spec
from worker.ranks.judge import Evidence, RankEvidence, judge
from worker.ranks.launch import read_error

ENDLESS = {
    "training__steps": 100_000,
    "training__schedule": "constant",
    "parallelism__strategy": "ddp",
}
PATIENT_S = 6.0  # a third of it once steps follow each other


def at(group: str, *kinds: str, first: int = 55) -> Position:
    """Numbers 55, 56, ... of a group, the last of them just entered."""
    recent = dict(enumerate(kinds, start=first))
    return Position(group=group, entered=max(recent), recent=recent)


def found(*ranks: list[Position], silent: tuple[int, ...] = (), rank: int = 0) -> Digest:
    signed = {rank: its for rank, its in enumerate(ranks) if rank not in silent}
    digest = blame(signed, rank, frozenset(silent))
    assert digest is not None
    return digest


SUM, GATHER = "all_reduce of 5 numbers", "all_gather"


def test_the_rank_that_is_behind_never_entered() -> None:
    ranks = [at("all ranks", SUM, GATHER)], [at("all ranks", SUM)]
    for asking in (0, 1):
        digest = found(*ranks, rank=asking)
        assert digest.missing == [1]
        assert digest.why == (
            "rank 1 never entered all_gather (number 56 of all ranks); the last that it entered is "
            "number 55"
        )


def test_ranks_in_different_collectives_are_told_with_both() -> None:
    ranks = [at("all ranks", GATHER, SUM)], [at("all ranks", GATHER, "broadcast", SUM)]
    for asking in (0, 1):
        digest = found(*ranks, rank=asking)
        assert digest.missing == [1]
        assert digest.why == (
            "rank 1 came to broadcast (number 56 of all ranks) where rank 0 came to "
            "all_reduce of 5 numbers"
        )


def test_of_ranks_in_different_collectives_the_fewer_are_told() -> None:
    ranks = [at("all ranks", "broadcast")], [at("all ranks", SUM)], [at("all ranks", SUM)]
    for asking in range(3):
        digest = found(*ranks, rank=asking)
        assert digest.missing == [0]
        assert digest.why.startswith("rank 0 came to broadcast (number 55 of all ranks) where rank")


def test_a_rank_that_does_not_answer_is_named_with_what_is_waited_for() -> None:
    digest = found([at("tensor", GATHER)], [], [at("tensor", GATHER)], silent=(1,))
    assert digest.missing == [1]
    assert digest.why == (
        "rank 1 did not come to all_gather (number 55 of tensor), or not out of it, and does not "
        "answer"
    )
    assert set(digest.positions) == {0, 2}


def test_another_group_blames_nobody() -> None:
    digest = found([at("tensor", GATHER)], [at("shard", SUM)])
    assert digest.missing == []
    assert digest.why == "all ranks entered all_gather (number 55 of tensor), and it did not end"
    assert blame({0: []}, 0, frozenset()) is None


def test_positions_are_read_from_the_flight_recorder() -> None:
    def entry(group: str, number: int, kind: str, *sizes: list[int]) -> dict[str, Any]:
        return {
            "process_group": ["0" if group == "default_pg" else "1", group],
            "collective_seq_id": number,
            "profiling_name": f"gloo:{kind}",
            "input_sizes": list(sizes),
        }

    entries = [
        entry("default_pg", 1, "all_reduce", [2, 3], [4]),
        entry("tensor", 1, "all_gather", [7]),
        entry("default_pg", 2, "reduce_scatter", [8]),
    ]
    assert positions(entries) == [
        Position(
            group="all ranks",
            entered=2,
            recent={1: "all_reduce of 10 numbers", 2: "reduce_scatter"},
        ),
        Position(group="tensor", entered=1, recent={1: "all_gather"}),
    ]
    assert positions([]) == []


KEEPER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.gloo
def test_a_rank_that_fails_when_the_store_is_gone_tells_its_own_error_alone() -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with keeper:
        assert keeper.stdout is not None
        store = dist.TCPStore("127.0.0.1", int(keeper.stdout.readline()), is_master=False)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            inquiry = Inquiry(Mesh(Layout(), 0, torch.device("cpu")))
            keeper.kill()
            keeper.wait()
            for message in ("Connection closed by peer", "Timed out waiting 10ms for recv"):
                assert digest(RuntimeError(message), inquiry) is None
        finally:
            dist.destroy_process_group()


def judged(warm: WarmRanks, codes: dict[int, int | None], step: int) -> Any:
    """What the shim would make of it."""
    ranks = [
        RankEvidence(rank, code, read_error(warm.logs / f"rank-{rank}" / "error.json"))
        for rank, code in codes.items()
    ]
    return judge(Evidence(node="box", ranks=ranks, result=None, step=step))


def error_of(warm: WarmRanks, rank: int) -> Path:
    return warm.logs / f"rank-{rank}" / "error.json"


def trained_with_a_stopped_rank(
    warm: WarmRanks, run_plan: RunPlan, folder: Path, *, stopped: int
) -> tuple[Run, list[int]]:
    """Stop a rank of two after some steps, and kill it once the other has told its error; the run
    and the exit codes."""
    run, started = warm.start_training(run_plan, folder / "run", case="train_with_short_inquiry")
    until = time.monotonic() + 60
    while not run.directory.metrics.exists() or len(run.series("loss")) < 8:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(started.pids[stopped], signal.SIGSTOP)
    while not error_of(warm, 1 - stopped).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(started.pids[stopped], signal.SIGKILL)
    return run, started.wait()


@pytest.mark.gloo
def test_a_stopped_rank_is_named_with_the_collective(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(
        make_spec(**ENDLESS), ranks=2, collective_timeout_s=PATIENT_S, **ragged
    )
    run, codes = trained_with_a_stopped_rank(warm, run_plan, tmp_path, stopped=1)
    assert codes == [ExitCode.STALLED, -signal.SIGKILL]
    said = (warm.logs / "rank-0" / "stderr.log").read_text()
    assert "Thread 0x" in said  # the stacks of a rank that waits in a call of C++
    assert "loop.py" in said
    kept = json.loads(run.directory.collectives(0).read_text())
    assert kept["entries"][-1]["retired"] is False
    digest = json.loads(error_of(warm, 0).read_text())["digest"]
    assert digest["missing"] == [1]
    assert "rank 1 did not come to all_reduce of " in digest["why"]
    (mine,) = [one for one in digest["positions"]["0"] if one["group"] == "all ranks"]
    assert mine["entered"] > 2 * 8  # gradients and loss of every step
    step = int(run.series("step")[-1])
    verdict = judged(warm, {0: codes[0], 1: None}, step)
    assert (verdict.outcome, verdict.culprit_rank) == ("stalled", 1)
    assert verdict.reason.startswith("Rank 1 did not come to all_reduce")
    assert verdict.reason.endswith(f"at step {step:,}, on box.")


@pytest.mark.gloo
@pytest.mark.slow
def test_a_rank_that_sleeps_is_named_and_its_own_stack_is_kept(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(
        make_spec(**ENDLESS), ranks=2, collective_timeout_s=PATIENT_S, **ragged
    )
    _, started = warm.start_training(run_plan, tmp_path / "run", engine="SleepingEngine")
    codes = started.wait()
    assert codes == [ExitCode.STALLED] * 2, warm.said()
    verdict = judged(warm, dict(enumerate(codes)), 7)
    assert (verdict.outcome, verdict.culprit_rank) == ("stalled", 1)
    assert verdict.reason.startswith("Rank 1 never entered all_reduce of "), verdict
    assert "in clip" in (warm.logs / "rank-1" / "stderr.log").read_text()


@pytest.mark.gloo
@pytest.mark.slow
def test_a_stopped_rank_that_keeps_the_list_is_named(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(
        make_spec(**ENDLESS), ranks=2, collective_timeout_s=PATIENT_S, **ragged
    )
    _, codes = trained_with_a_stopped_rank(warm, run_plan, tmp_path, stopped=0)
    assert codes == [-signal.SIGKILL, ExitCode.STALLED]
    assert warm.error(1)["digest"]["missing"] == [0]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_rank_that_takes_another_collective_is_named_with_both(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(
        make_spec(**ENDLESS), ranks=2, collective_timeout_s=PATIENT_S, **ragged
    )
    run, started = warm.start_training(run_plan, tmp_path / "run", engine="SkippingEngine")
    codes = started.wait()
    assert all(codes), warm.said()
    step = int(run.series("step")[-1])
    assert step == 7
    verdict = judged(warm, dict(enumerate(codes)), step)
    assert verdict.outcome == "stalled", verdict
    assert "broadcast of 3 numbers (number " in verdict.reason, verdict
    assert "all_reduce of " in verdict.reason, verdict
    assert verdict.reason.endswith("at step 7, on box.")
