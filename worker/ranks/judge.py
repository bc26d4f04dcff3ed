"""Judgement of an attempt's end: an outcome, a culprit and a sentence from the evidence. Pure.

torchrun exits with 1 for every failure, and the first failure it sees may be the victim of another;
so every rank's exit code and error file are examined.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from core.states import Outcome
from strategies.plan.faults import Cause, cause_of, is_of_collective
from strategies.plan.run_directory import ExitCode, RankMemory, Result
from worker.node.memory import MemoryUse

# Every rank reports a failed preflight alike, and the rank it names first need not be itself.
NAMED_BY_PREFLIGHT = re.compile(r"^preflight: rank (\d+)\b")
KILLERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LONGEST_MESSAGE = 600
GIB = 1 << 30
SCRIPT_ENDED = "The script ended with exit code 0."
# An entry of the table that torchrun prints when ranks have failed.
FAILURE = re.compile(
    r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+) \(pid: \d+\)"
)

OUTCOME_OF_CODE: dict[int | None, Outcome] = {
    ExitCode.BAD_DATA: Outcome.BAD_DATA,
    ExitCode.BAD_CHECKPOINT: Outcome.BAD_CHECKPOINT,
    ExitCode.DIVERGED: Outcome.DIVERGED,
    ExitCode.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    ExitCode.PREFLIGHT_FAILED: Outcome.START_FAILED,
    ExitCode.NOT_EQUIPPED: Outcome.START_FAILED,
}
OUTCOME_OF_CAUSE = {Cause.MEMORY: Outcome.OUT_OF_MEMORY, Cause.GPU: Outcome.GPU_FAILED}
NOT_THEIR_OWN = (-signal.SIGTERM, -signal.SIGABRT)  # launchers and NCCL's watchdog end survivors
STOPPED_SENTENCES = {
    Outcome.CANCELLED: "Cancelled",
    Outcome.PAUSED: "Paused",
    Outcome.PREEMPTED: "Stopped by the platform; it continues later",
    Outcome.LEASE_ENDED: "Stopped at the end of its lease",
    Outcome.TIME_LIMIT: "Stopped: its wall time is used up",
}


@dataclass(frozen=True)
class RankError:
    """Content of a rank's error.json."""

    type: str
    message: str
    t_ns: int
    missing: tuple[int, ...] = ()
    """Ranks that it waited for, as the ranks found out together."""
    why: str = ""
    """Sentence, without its full stop, about the collective that they never entered; empty if
    none."""
    remedy: str = ""
    """Sentence with the owner's remedy; empty if none is known."""

    @property
    def cause(self) -> Cause | None:
        """Cause that its text names."""
        return cause_of(self.type, self.message)


@dataclass(frozen=True)
class RankEvidence:
    """Evidence of one rank's end."""

    rank: int
    code: int | None
    """Exit code; None if nobody saw it; negative for a signal."""
    error: RankError | None = None
    killed_by_us: bool = False

    @property
    def failed(self) -> bool:
        """True if it ended by itself and not successfully."""
        return (self.code not in (0, None) or self.error is not None) and not self.killed_by_us

    @property
    def cause(self) -> Cause | None:
        """Cause that the rank's error names."""
        return None if self.error is None else self.error.cause

    @property
    def is_victim(self) -> bool:
        """True if it ended because of another rank."""
        waited = self.error is not None and bool(self.error.why)
        return waited or self.cause in (Cause.TIMEOUT, Cause.PEER)


@dataclass(frozen=True)
class StopRequest:
    """Request to stop the attempt."""

    reason: Outcome
    killed: bool
    """True if it had to be ended by SIGKILL."""


class PlannedMemory(NamedTuple):
    """Memory of one rank according to the plan."""

    needed_gib: float
    capacity_gib: float


@dataclass(frozen=True)
class Evidence:
    """All evidence that the shim has seen."""

    node: str
    ranks: Sequence[RankEvidence]
    result: Result | None
    step: int
    """Step of the last line of metrics; 0 for none."""
    stop: StopRequest | None = None
    ran_out_of_memory: bool = False
    """True if the kernel has meanwhile killed a process of this node for lack of memory."""
    memory: MemoryUse | None = None
    """Memory in use when the ranks were ended because of it."""
    planned: PlannedMemory | None = None
    """Planned memory; None for a script."""
    told: Sequence[RankMemory] = ()
    """Planned and used memory by phase, as ranks told it; empty if the plan said that it fits."""
    launcher_failure: str = ""
    """Reason why no rank could be started."""
    launcher_code: int | None = None
    """Exit code of torchrun itself; None if it was not used."""
    breach: str = ""
    """Forbidden action of the ranks, in a sentence without its full stop."""
    is_script: bool = False
    """True for a user's own script: exit codes mean nothing beyond 0, and it need not make
    steps."""
    is_workbench: bool = False
    """True for a workbench, which has one program, knows no ranks and makes no steps."""
    has_gpus: bool = False
    """True if the attempt was given GPUs."""
    gpu_faults: Mapping[int, str] = field(default_factory=dict)
    """Fault of its GPU that the kernel has reported since the start, by rank, in words."""


class ExitJudgement(NamedTuple):
    """Result of `judge`."""

    outcome: Outcome
    reason: str
    culprit_rank: int | None = None
    signal: int | None = None
    code: int | None = None
    guilt: int | None = None
    """Guilt of the culprit, compared with ranks on other nodes
    (`core.wire.messages.ExitRecord.guilt`)."""


def judge(evidence: Evidence) -> ExitJudgement:
    """Return the outcome of an attempt, with a sentence for its owner."""
    failed = [rank for rank in evidence.ranks if rank.failed]
    if evidence.breach:
        return ExitJudgement(Outcome.USER_ERROR, f"{evidence.breach}.")
    finished = evidence.result is not None and evidence.result.finished
    if finished:
        assert evidence.result is not None
        steps = f"{evidence.result.step:,} steps"
        ended = (
            f"The script ended with exit code 0, after {steps}."
            if evidence.result.step
            else SCRIPT_ENDED
        )
        sentence = ended if evidence.is_script else trained(evidence.result, failed)
        sentence += _error_of_plan(evidence.told)
        return ExitJudgement(Outcome.SUCCEEDED, sentence, code=0)
    if evidence.stop is not None:
        return ExitJudgement(evidence.stop.reason, _stopped_sentence(evidence))
    if evidence.memory is not None:
        return _used_up_its_memory(evidence, evidence.memory, failed)
    if evidence.launcher_failure:
        return ExitJudgement(
            Outcome.START_FAILED,
            f"The ranks could not be started on {evidence.node}: {evidence.launcher_failure}",
            guilt=0,
        )
    if not failed:
        return _nobody_failed(evidence)
    texts = [rank.error.message for rank in failed if rank.error is not None]
    if evidence.step == 0 and address_in_use(texts):
        return ExitJudgement(
            Outcome.START_FAILED,
            f"The ranks could not meet on {evidence.node}: another program has taken their port.",
            guilt=0,
        )
    culprit = min(failed, key=_guilt)
    verdict = _verdict_on(culprit, failed, evidence)
    if evidence.gpu_faults and _may_be_a_gpus(verdict, culprit):
        return _blamed_on_gpu(evidence)
    return verdict._replace(guilt=_guilt(culprit)[0])


def _may_be_a_gpus(verdict: ExitJudgement, culprit: RankEvidence) -> bool:
    """Return True if a broken GPU explains the failure: no own exception or lack of memory does."""
    if verdict.outcome in (Outcome.STALLED, Outcome.GPU_FAILED):
        return True
    crashed = verdict.outcome is Outcome.USER_ERROR and verdict.signal is not None
    return crashed or culprit.cause is Cause.KERNEL


def _blamed_on_gpu(evidence: Evidence) -> ExitJudgement:
    rank, fault = min(evidence.gpu_faults.items())
    code = next((one.code for one in evidence.ranks if one.rank == rank), None)
    sentence = (
        f"The GPU of rank {rank} on {evidence.node} failed{_where(evidence)}: the kernel reports "
        f"{fault}."
    )
    return ExitJudgement(Outcome.GPU_FAILED, sentence, rank, None, code, guilt=0)


def trained(result: Result, failed: Sequence[RankEvidence] = ()) -> str:
    """Return the sentence about a finished training, and about artifacts that it did not write."""
    done = f"Trained {result.step:,} steps."
    if not result.missing:
        return done
    error = next((rank.error for rank in failed if rank.error is not None), None)
    cut_off = "the run was cut off before it had written them"
    why = cut_off if error is None else f"{error.type}: {_short(error.message)}".rstrip(".")
    return (
        f"{done} Missing: {' and '.join(result.missing)} ({why}). The weights are safe in "
        f"{result.checkpoint or 'the checkpoint that the run started from'}; "
        'docs/training.md, "The end of a run", shows how to write the missing files from it.'
    )


def _used_up_its_memory(
    evidence: Evidence, memory: MemoryUse, failed: Sequence[RankEvidence]
) -> ExitJudgement:
    culprit = min(failed, key=_guilt, default=evidence.ranks[0] if evidence.ranks else None)
    rank = None if culprit is None else culprit.rank
    reached = memory.most_bytes >= 0.98 * memory.bound_bytes  # a page more would be too much
    beside = "" if reached else ", and other processes used the rest of the machine's memory"
    sentence = (
        f"The job ran out of memory on {evidence.node}{_where(evidence)}: it used "
        f"{used_of(memory.most_bytes, memory.bound_bytes)}{beside}. "
        f"{_advice(evidence, rank)}"
    ).rstrip()
    return ExitJudgement(Outcome.OUT_OF_MEMORY, sentence, rank, guilt=0)


def _error_of_plan(told: Sequence[RankMemory]) -> str:
    """Return a sentence on the memory that a job used although its plan said that it does not fit;
    empty if nothing was observed."""
    peaks = [(max(one.used_gib.values(), default=0.0), one) for one in told]
    used, fullest = max(peaks, key=lambda peak: peak[0], default=(0.0, None))
    if fullest is None or used == 0.0:
        return ""
    planned = max(fullest.planned_gib.values(), default=0.0)
    off = planned / used - 1
    return (
        f" It did not run out of memory: rank {fullest.rank} used {used:.2f} GiB, and the plan "
        f"expected {planned:.2f}, {abs(off):.0%} too {'much' if off > 0 else 'little'}."
    )


def _used_in_phase(told: Sequence[RankMemory], culprit: int | None) -> str:
    """Return a sentence on the phase in which a rank ran out of memory; empty if it told nothing.

    Of the rank that ran out, or else of the one that used most.
    """
    own = [one for one in told if one.rank == culprit] or told
    one = max(own, key=lambda each: max(each.used_gib.values(), default=0.0), default=None)
    if one is None:
        return ""
    in_step = f"in phase {one.phase} of step {one.step}"
    where = "in its set-up" if one.phase == "setup" else in_step
    return (
        f" Rank {one.rank} was last seen {where} with "
        f"{one.used_gib.get(one.phase, 0.0):.2f} GiB, where the plan expected up to "
        f"{one.planned_gib.get(one.phase, 0.0):.2f}."
    )


def _advice(evidence: Evidence, culprit: int | None) -> str:
    """Return advice about too little memory, with the plan's number."""
    if evidence.is_script:
        return "Keep less in memory at a time, or use a node with more memory."
    if evidence.planned is None:
        return ""
    needed, capacity = evidence.planned
    return (
        f"The plan expected {needed:.2f} of {capacity:.2f} GiB for each rank."
        f"{_used_in_phase(evidence.told, culprit)} Use a smaller micro_batch_size, or split the "
        "model over more ranks."
    )


def _verdict_on(
    culprit: RankEvidence, failed: Sequence[RankEvidence], evidence: Evidence
) -> ExitJudgement:
    if culprit.is_victim:
        told = next((rank.error for rank in failed if rank.error and rank.error.why), None)
        if told is not None:
            return ExitJudgement(
                Outcome.STALLED,
                f"{_short(told.why[0].upper() + told.why[1:])}{_where(evidence)}, on "
                f"{evidence.node}.",
                culprit_rank=told.missing[0] if told.missing else None,
            )
        silent = [rank for rank in evidence.ranks if not rank.failed and rank.code != 0]
        if silent and culprit.cause is not Cause.PEER and culprit.error is not None:
            return ExitJudgement(
                Outcome.STALLED,
                f"Rank {silent[0].rank} on {evidence.node} did not answer{_where(evidence)}; "
                f"rank {culprit.rank} gave up waiting: {_short(culprit.error.message)}",
                culprit_rank=silent[0].rank,
            )
        if _lost_each_other(culprit, evidence):
            assert culprit.error is not None
            return ExitJudgement(
                Outcome.STALLED,
                f"The ranks on {evidence.node} lost each other{_where(evidence)}, and none of them "
                f"failed by itself. Rank {culprit.rank} reports: {_short(culprit.error.message)}",
            )
    return _blamed(culprit, evidence)


def _lost_each_other(culprit: RankEvidence, evidence: Evidence) -> bool:
    """Return True if the communication between ranks broke and no rank has left on its own.

    A script's ranks that leave early, or its connection to something else, are its own affair.
    """
    error = culprit.error
    if error is None or len(evidence.ranks) < 2 or any(r.code == 0 for r in evidence.ranks):
        return False
    return is_of_collective(error.type, error.message)


def _guilt(rank: RankEvidence) -> tuple[int, int, int]:
    """Return a sort key; a smaller one is more guilty.

    First come ranks with a signal or exit code of their own, or without memory or a working GPU;
    then those with an exception of their own, then the victims of others; among equals the earlier
    one. An error's text says more than the exit code: a rank that ran out of memory may hang
    afterwards and be killed.
    """
    t_ns = 0 if rank.error is None else rank.error.t_ns
    if rank.code in OUTCOME_OF_CODE or rank.cause in OUTCOME_OF_CAUSE:
        return 0, t_ns, rank.rank
    if rank.is_victim:
        return 3, t_ns, rank.rank
    if rank.error is None:
        return (2 if rank.code in NOT_THEIR_OWN else 0), 0, rank.rank
    return 1, t_ns, rank.rank


def _blamed(culprit: RankEvidence, evidence: Evidence) -> ExitJudgement:
    who = _who(culprit, evidence)
    code, error = culprit.code, culprit.error
    said = "" if error is None else f": {_short(f'{error.type}: {error.message}')}"
    outcome = _outcome_of(culprit, evidence)
    if code is not None and code < 0 and error is None:
        return _ended_by_signal(culprit, evidence)
    if outcome in (Outcome.BAD_DATA, Outcome.BAD_CHECKPOINT, Outcome.DIVERGED) and error:
        return ExitJudgement(outcome, f"{who}{said}", culprit.rank, None, code)
    if code == ExitCode.PREFLIGHT_FAILED and error and not evidence.is_script:
        named = NAMED_BY_PREFLIGHT.match(error.message)
        rank = None if named is None else int(named[1])
        sentence = f"The ranks on {evidence.node} cannot be trusted: {_short(error.message)}"
        return ExitJudgement(outcome, sentence, rank, None, code)
    if code == ExitCode.NOT_EQUIPPED and error and not evidence.is_script:
        sentence = (
            f"Something that the job needs is missing on {evidence.node}: {_short(error.message)}"
        )
        return ExitJudgement(outcome, sentence, None, None, code)
    if outcome is Outcome.GPU_FAILED:
        sentence = f"The GPU of rank {culprit.rank} on {evidence.node} failed{_where(evidence)}"
        return ExitJudgement(outcome, f"{sentence}{said}", culprit.rank, None, code)
    if outcome is Outcome.OUT_OF_MEMORY:
        sentence, advice = (
            f"{who} ran out of memory{_where(evidence)}{said}",
            _advice(evidence, culprit.rank),
        )
        if advice:
            sentence = f"{sentence.rstrip('.')}. {advice}"
        return ExitJudgement(outcome, sentence, culprit.rank, None, code)
    ended = "failed" if code is None or code < 0 else f"failed with exit code {code}"
    sentence = f"{who} {ended}{_where(evidence)}{said or '.'}"
    if error is not None and error.remedy:
        sentence = f"{sentence.rstrip('.')}. {error.remedy}"
    return ExitJudgement(outcome, sentence, culprit.rank, None, code)


def _ended_by_signal(culprit: RankEvidence, evidence: Evidence) -> ExitJudgement:
    """Return the verdict on a rank that a signal ended before it could write an error."""
    assert culprit.code is not None
    number = -culprit.code
    killed = number in KILLERS
    outcome = Outcome.KILLED if killed else Outcome.USER_ERROR
    why = ""
    if number == signal.SIGKILL and evidence.ran_out_of_memory:
        outcome, why = Outcome.OUT_OF_MEMORY, ": the machine ran out of memory"
    sentence = (
        f"{_who(culprit, evidence)} {'was killed by' if killed else 'crashed with'} "
        f"signal {number} ({signal_name(number)}){_where(evidence)}{why}."
    )
    return ExitJudgement(outcome, sentence, culprit.rank, number, culprit.code)


def _outcome_of(culprit: RankEvidence, evidence: Evidence) -> Outcome:
    cause = culprit.cause
    if cause is Cause.MEMORY:
        return Outcome.OUT_OF_MEMORY
    if cause is Cause.GPU and evidence.has_gpus:
        return Outcome.GPU_FAILED
    if evidence.is_script:
        return Outcome.USER_ERROR
    if culprit.code in OUTCOME_OF_CODE:
        return OUTCOME_OF_CODE[culprit.code]
    # The owner of a recipe wrote no kernel: the GPU is suspected, and another one is tried.
    return Outcome.GPU_FAILED if cause is Cause.KERNEL else Outcome.USER_ERROR


def _nobody_failed(evidence: Evidence) -> ExitJudgement:
    """Return the verdict if the ranks are gone, none with an error, and the training is
    unfinished."""
    if evidence.result is not None:
        return ExitJudgement(
            Outcome.KILLED,
            f"The ranks on {evidence.node} were asked to stop{_where(evidence)}, but not by "
            "Trainyard, and they stopped.",
            signal=int(signal.SIGTERM),
        )
    killed = next((rank for rank in evidence.ranks if rank.killed_by_us), None)
    if killed is not None:
        return ExitJudgement(
            Outcome.STALLED,
            f"Rank {killed.rank} on {evidence.node} did not end with the others"
            f"{_where(evidence)} and was killed.",
            culprit_rank=killed.rank,
            guilt=2,
        )
    code = evidence.launcher_code or 0
    how = f"was killed by signal {-code} ({signal_name(-code)})" if code < 0 else "ended"
    return ExitJudgement(
        Outcome.KILLED,
        f"The launcher on {evidence.node} {how}{_where(evidence)}, and its ranks with it.",
        signal=-code if code < 0 else None,
        code=code,
        guilt=0,
    )


def _stopped_sentence(evidence: Evidence) -> str:
    assert evidence.stop is not None
    why = STOPPED_SENTENCES.get(evidence.stop.reason, f"Stopped ({evidence.stop.reason})")
    result = evidence.result
    if evidence.stop.killed:
        saved = "; it did not stop in time and was killed"
        if not evidence.is_workbench:
            saved += ", so it returns to its last checkpoint"
    elif result is not None and result.checkpoint is not None:
        return f"{why} after step {result.step:,}, which is saved."
    elif evidence.step:
        saved = "; no checkpoint was saved"
    else:
        return f"{why}{_where(evidence)}."
    return f"{why}{_where(evidence)}{saved}."


def used_of(used: int, bound: int) -> str:
    """Return `18.1 of 18.0 GiB`; below 1 GiB in MiB."""
    unit, name = (GIB, "GiB") if bound >= GIB else (1 << 20, "MiB")
    return f"{used / unit:,.1f} of {bound / unit:,.1f} {name}"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _who(rank: RankEvidence, evidence: Evidence) -> str:
    return f"{'The workbench' if evidence.is_workbench else f'Rank {rank.rank}'} on {evidence.node}"


def _where(evidence: Evidence) -> str:
    if evidence.is_workbench:
        return ""
    return f" at step {evidence.step:,}" if evidence.step else " before its first step"


def _short(text: str) -> str:
    """Return one line of at most LONGEST_MESSAGE characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."


def codes_in_report(report: str) -> dict[int, int]:
    """Return exit codes by rank, from the table that torchrun prints when a rank has failed."""
    return {int(rank): int(code) for rank, code in FAILURE.findall(report)}


def address_in_use(texts: Sequence[str]) -> bool:
    """Return True if the ranks could not meet because another program took the port first."""
    return any(re.search(r"EADDRINUSE|[Aa]ddress already in use", text) for text in texts)
