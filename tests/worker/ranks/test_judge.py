"""Who is blamed, with which outcome and which sentence."""

import signal
from typing import Any

import pytest

from core.states import Outcome
from strategies.plan.run_directory import RankMemory, Result
from worker.node.memory import GIB, MemoryUse
from worker.ranks.judge import (
    Evidence,
    PlannedMemory,
    RankError,
    RankEvidence,
    StopRequest,
    address_in_use,
    codes_in_report,
    judge,
)

PEER = RankError("RuntimeError", "[../gloo/tcp/pair.cc:547] Connection closed by peer [::1]:1", 1)
TIMEOUT = RankError("RuntimeError", "Timed out waiting 4000ms for recv operation to complete", 1)
TOLD = RankError(
    TIMEOUT.type,
    TIMEOUT.message,
    TIMEOUT.t_ns,
    missing=(1,),
    why="rank 1 never entered all_reduce 57 of all ranks; the last it entered is number 56",
)
OWN = RankError("KeyError", "'loss'", 2)

# As torch 2.13.0 printed it after kill -9 of rank 1.
REPORT = """
============================================================
strategies.train FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_14:00:01
  host      : vm
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4710)
  error_file: /x/error.json
  traceback : RuntimeError: Connection closed by peer
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_14:00:00
  host      : vm
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================
"""


def result(*, finished: bool, checkpoint: str | None = "step-000120") -> Result:
    return Result(
        finished=finished,
        step=120,
        loss_first=5.0,
        loss_last=2.0,
        eval_loss=None,
        tokens_per_s=1.0,
        wall_s=1.0,
        checkpoint=checkpoint,
        sample=None,
        reason="finished" if finished else "stopped",
    )


def evidence(*ranks: RankEvidence, **other: object) -> Evidence:
    return Evidence(**{"node": "n1", "ranks": ranks, "result": None, "step": 120, **other})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "outcome", "culprit", "sentence"),
    [
        (
            [RankEvidence(0, 1, PEER), RankEvidence(1, -9)],
            Outcome.KILLED,
            1,
            "Rank 1 on n1 was killed by signal 9 (SIGKILL) at step 120.",
        ),
        (
            [RankEvidence(0, 1, PEER), RankEvidence(1, -11)],
            Outcome.USER_ERROR,
            1,
            "Rank 1 on n1 crashed with signal 11 (SIGSEGV) at step 120.",
        ),
        (
            [RankEvidence(0, 1, PEER), RankEvidence(1, 1, OWN)],
            Outcome.USER_ERROR,
            1,
            "Rank 1 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
        ),
        (
            [RankEvidence(0, 1, OWN), RankEvidence(1, 1, RankError("E", "later", 3))],
            Outcome.USER_ERROR,
            0,
            "Rank 0 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
        ),
        (
            [RankEvidence(0, 7), RankEvidence(1, -9, killed_by_us=True)],
            Outcome.USER_ERROR,
            0,
            "Rank 0 on n1 failed with exit code 7 at step 120.",
        ),
        (
            [RankEvidence(0, None, PEER), RankEvidence(1, 65, RankError("BadData", "is empty", 5))],
            Outcome.BAD_DATA,
            1,
            "Rank 1 on n1: BadData: is empty",
        ),
        (
            [RankEvidence(0, 68, RankError("OutOfMemoryError", "no", 5)), RankEvidence(1, 1, PEER)],
            Outcome.OUT_OF_MEMORY,
            0,
            "Rank 0 on n1 ran out of memory at step 120: OutOfMemoryError: no",
        ),
        (
            [
                RankEvidence(0, 69, RankError("PreflightFailed", "preflight: rank 1 (x) hangs", 5)),
                RankEvidence(1, -9, killed_by_us=True),
            ],
            Outcome.START_FAILED,
            1,
            "The ranks on n1 cannot be trusted: preflight: rank 1 (x) hangs",
        ),
        (
            [RankEvidence(0, 70, RankError("NotEquipped", "here is no g++", 5))],
            Outcome.START_FAILED,
            None,
            "Something that the job needs is missing on n1: here is no g++",
        ),
        (
            [RankEvidence(0, 67, RankError("Diverged", "NaN", 5)), RankEvidence(1, 67)],
            Outcome.DIVERGED,
            1,
            "Rank 1 on n1 failed with exit code 67 at step 120.",
        ),
        (
            [RankEvidence(0, 1, TIMEOUT), RankEvidence(1, -9, killed_by_us=True)],
            Outcome.STALLED,
            1,
            "Rank 1 on n1 did not answer at step 120; rank 0 gave up waiting: "
            "Timed out waiting 4000ms for recv operation to complete",
        ),
        (
            [RankEvidence(0, -15), RankEvidence(1, 1, OWN)],
            Outcome.USER_ERROR,
            1,
            "Rank 1 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
        ),
    ],
)
def test_the_guilty_rank_is_named(
    ranks: list[RankEvidence], outcome: Outcome, culprit: int | None, sentence: str
) -> None:
    verdict = judge(evidence(*ranks))
    assert (verdict.outcome, verdict.culprit_rank, verdict.reason) == (outcome, culprit, sentence)


def test_sigkill_while_the_kernel_reports_no_memory_is_out_of_memory() -> None:
    verdict = judge(evidence(RankEvidence(0, -9), ran_out_of_memory=True, step=0))
    assert verdict.outcome is Outcome.OUT_OF_MEMORY
    assert verdict.signal == signal.SIGKILL
    assert verdict.reason == (
        "Rank 0 on n1 was killed by signal 9 (SIGKILL) before its first step: "
        "the machine ran out of memory."
    )


def test_what_was_used_stands_beside_the_bound_and_the_plan() -> None:
    use = MemoryUse(most_bytes=round(18.1 * GIB), bound_bytes=18 * GIB)
    ranks = [RankEvidence(0, 1, PEER), RankEvidence(1, -9)]
    verdict = judge(evidence(*ranks, memory=use, planned=PlannedMemory(9.5, 10.8)))
    assert (verdict.outcome, verdict.culprit_rank) == (Outcome.OUT_OF_MEMORY, 1)
    assert verdict.reason == (
        "The job ran out of memory on n1 at step 120: it used 18.1 of 18.0 GiB. The plan expected "
        "9.50 of 10.80 GiB for each rank. Use a smaller micro_batch_size, or split the model "
        "over more ranks."
    )
    full = judge(evidence(*ranks, memory=use._replace(most_bytes=9 * GIB), is_script=True))
    assert full.reason == (
        "The job ran out of memory on n1 at step 120: it used 9.0 of 18.0 GiB, and other "
        "processes used the rest of the machine's memory. Keep less in memory at a time, or "
        "use a node with more memory."
    )


@pytest.mark.parametrize(
    "error",
    [
        RankError("MemoryError", "", 5),
        RankError("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 8 EiB", 5),
        RankError("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", 5),
        RankError("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory", 5),
        RankError("OSError", "[Errno 12] Cannot allocate memory", 5),
    ],
)
@pytest.mark.parametrize("is_script", [True, False])
def test_memory_that_is_refused_is_out_of_memory(error: RankError, is_script: bool) -> None:
    verdict = judge(evidence(RankEvidence(0, 1, error), is_script=is_script))
    assert verdict.outcome is Outcome.OUT_OF_MEMORY


def test_a_finished_training_has_succeeded_even_if_a_stop_came_late() -> None:
    ranks = [RankEvidence(0, 0), RankEvidence(1, 0)]
    stop = StopRequest(Outcome.CANCELLED, killed=False)
    verdict = judge(evidence(*ranks, result=result(finished=True), stop=stop))
    assert verdict.outcome is Outcome.SUCCEEDED
    assert verdict.reason == "Trained 120 steps."


def test_a_rank_that_lingers_after_the_result_and_is_killed_by_us_spoils_nothing() -> None:
    ranks = [RankEvidence(0, 0), RankEvidence(1, -9, killed_by_us=True)]
    assert judge(evidence(*ranks, result=result(finished=True))).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("killed", "found", "step", "sentence"),
    [
        (False, result(finished=False), 120, "Paused after step 120, which is saved."),
        (
            True,
            None,
            120,
            "Paused at step 120; it did not stop in time and was killed, so it returns to its "
            "last checkpoint.",
        ),
        (False, None, 120, "Paused at step 120; no checkpoint was saved."),
        (False, None, 0, "Paused before its first step."),
    ],
)
def test_a_stop_says_what_became_of_the_work(
    killed: bool, found: Result | None, step: int, sentence: str
) -> None:
    stop = StopRequest(Outcome.PAUSED, killed=killed)
    verdict = judge(evidence(RankEvidence(0, 1, PEER), result=found, step=step, stop=stop))
    assert (verdict.outcome, verdict.reason) == (Outcome.PAUSED, sentence)


@pytest.mark.parametrize(
    ("code", "stop", "outcome", "sentence"),
    [
        (-9, None, Outcome.KILLED, "The workbench on n1 was killed by signal 9 (SIGKILL)."),
        (1, None, Outcome.USER_ERROR, "The workbench on n1 failed with exit code 1."),
        (
            -9,
            StopRequest(Outcome.LEASE_ENDED, killed=False),
            Outcome.LEASE_ENDED,
            "Stopped at the end of its lease.",
        ),
        (
            -9,
            StopRequest(Outcome.LEASE_ENDED, killed=True),
            Outcome.LEASE_ENDED,
            "Stopped at the end of its lease; it did not stop in time and was killed.",
        ),
    ],
)
def test_a_workbench_knows_neither_ranks_nor_steps_and_its_stop_counts_for_more_than_its_code(
    code: int, stop: StopRequest | None, outcome: Outcome, sentence: str
) -> None:
    ended = evidence(RankEvidence(0, code), stop=stop, step=0, is_script=True, is_workbench=True)
    verdict = judge(ended)
    assert (verdict.outcome, verdict.reason) == (outcome, sentence)


def test_ranks_that_somebody_else_asked_to_stop_were_killed() -> None:
    ranks = [RankEvidence(0, 0), RankEvidence(1, 0)]
    verdict = judge(evidence(*ranks, result=result(finished=False)))
    assert (verdict.outcome, verdict.signal) == (Outcome.KILLED, 15)


def test_a_launcher_that_could_start_nothing_says_why() -> None:
    verdict = judge(evidence(launcher_failure="torchrun ended with code 2: no such option"))
    assert verdict.outcome is Outcome.START_FAILED
    assert "no such option" in verdict.reason


def test_a_very_long_message_is_cut_to_one_line() -> None:
    error = RankError("ValueError", "a\nb" * 5000, 1)
    reason = judge(evidence(RankEvidence(0, 1, error))).reason
    assert len(reason) < 700
    assert "\n" not in reason


def test_exit_codes_are_read_from_torchruns_report() -> None:
    assert codes_in_report(REPORT) == {0: 1, 1: -9}
    assert codes_in_report("nothing here") == {}


def test_a_taken_port_is_recognised() -> None:
    assert address_in_use(["... (errno: 98 - Address already in use)."])
    assert address_in_use(["", "EADDRINUSE"])
    assert not address_in_use(["Connection refused"])


def test_what_the_ranks_found_out_together_is_the_verdict() -> None:
    ranks = [RankEvidence(0, 1, TOLD), RankEvidence(1, 1, PEER)]
    verdict = judge(Evidence(node="box", ranks=ranks, result=None, step=41))
    assert (verdict.outcome, verdict.culprit_rank) == (Outcome.STALLED, 1)
    assert verdict.reason == (
        "Rank 1 never entered all_reduce 57 of all ranks; the last it entered is number 56 at "
        "step 41, on box."
    )


def test_an_own_error_or_signal_outweighs_who_waited_for_whom() -> None:
    for other in (RankEvidence(1, 1, OWN), RankEvidence(1, -signal.SIGKILL)):
        ranks = [RankEvidence(0, 1, TOLD), other]
        verdict = judge(Evidence(node="box", ranks=ranks, result=None, step=41))
        assert verdict.culprit_rank == 1
        assert verdict.outcome is not Outcome.STALLED


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, "the run was cut off before it had written them"),
        ({"stop": StopRequest(Outcome.LEASE_ENDED, killed=True)}, "the run was cut off"),
        (
            {"ranks": [RankEvidence(0, 1, RankError("OSError", "no space left", 1))]},
            "OSError: no space left",
        ),
        ({"ranks": [RankEvidence(0, 0), RankEvidence(1, -6)]}, "the run was cut off"),
    ],
    ids=["lost", "stopped", "failed", "aborted"],
)
def test_a_training_that_is_finished_stays_so_and_names_what_is_missing(
    other: dict[str, Any], why: str
) -> None:
    found = result(finished=True).model_copy(update={"missing": ["sample.txt"]})
    verdict = judge(evidence(**{"result": found, **other}))
    assert verdict.outcome is Outcome.SUCCEEDED
    assert verdict.reason.startswith(f"Trained 120 steps. Missing: sample.txt ({why}")
    assert "The weights are safe in step-000120; docs/training.md" in verdict.reason


def told(rank: int, phase: Any, **used: float) -> RankMemory:
    planned = {"setup": 3.0, "forward": 7.0, "backward": 8.0, "optimizer": 4.0}
    return RankMemory.model_validate(
        {"rank": rank, "step": 1, "phase": phase, "planned_gib": planned, "used_gib": used}
    )


def test_a_job_that_ran_out_of_memory_is_told_rank_phase_and_plan() -> None:
    ranks = [RankEvidence(0, -9, killed_by_us=True), RankEvidence(1, 68, RankError("E", "no", 5))]
    memory = [told(0, "forward", setup=2.9, forward=6.0), told(1, "backward", backward=6.5)]
    found = judge(
        evidence(*ranks, told=memory, planned=PlannedMemory(needed_gib=8.4, capacity_gib=6.6))
    )
    assert (found.outcome, found.culprit_rank) == (Outcome.OUT_OF_MEMORY, 1)
    assert (
        "The plan expected 8.40 of 6.60 GiB for each rank. Rank 1 was last seen in phase backward "
        "of step 1 with 6.50 GiB, where the plan expected up to 8.00."
    ) in found.reason
    bound = judge(
        evidence(
            told=[told(0, "setup", setup=2.5)],
            memory=MemoryUse(3 * GIB, 3 * GIB),
            planned=PlannedMemory(needed_gib=8.4, capacity_gib=3.0),
        )
    )
    assert "Rank 0 was last seen in its set-up with 2.50 GiB" in bound.reason


def test_a_job_that_did_not_run_out_is_told_how_far_the_plan_was_off() -> None:
    found = judge(
        evidence(
            RankEvidence(0, 0),
            result=result(finished=True),
            told=[told(0, "optimizer", forward=4.0, backward=5.0)],
        )
    )
    assert found.outcome is Outcome.SUCCEEDED
    assert found.reason.endswith(
        "It did not run out of memory: rank 0 used 5.00 GiB, and the plan expected 8.00, 60% too "
        "much."
    )
