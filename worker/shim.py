"""Shim: the small process that owns one attempt's ranks, from their start to exit.json.

It is forked by `worker.spawner` or `worker.warm`, outlives both and the worker, and depends on none
of them: deadlines run here, on the boot clock. It has no parent-death signal, a session of its own,
and is the subreaper of everything below it.
"""

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from core.base.clock import boot_s
from core.spec.spec import Launcher as LauncherName
from core.states import Outcome
from core.wire.messages import ExitRecord, RankExit
from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import Action, RankMemory, Result, RunPlan, write_control
from worker.gpus.slots import SlotsFile
from worker.gpus.xids import by_rank, hardware_xids, kernel_log
from worker.node.attempts import (
    Attempt,
    DeadlinesFile,
    HeldFile,
    NodeFolder,
    ShimState,
    StartFile,
    read_model,
)
from worker.node.boot import boot_id
from worker.node.memory import WHOLE, MemoryWatch, machine
from worker.node.process_tree import (
    Cgroup,
    ProcessTree,
    adopt_orphans,
    descendants,
    join_cgroup,
)
from worker.node.proven import note_end
from worker.node.resource_limits import ResourceLimits
from worker.ranks.deadlines import DueAction, due, stop_past
from worker.ranks.fork_launch import ForkLauncher
from worker.ranks.judge import (
    Evidence,
    ExitJudgement,
    PlannedMemory,
    RankEvidence,
    StopRequest,
    address_in_use,
    judge,
)
from worker.ranks.launch import RankLauncher, TorchrunLauncher
from worker.ranks.log_cap import LogCap
from worker.scripts.script_launch import ScriptLauncher
from worker.scripts.script_run import masks_of
from worker.workbench.launch import HeldLauncher, WorkbenchLauncher

KILL_EVERY_S = 0.5
FAIL_GRACE_S = 5.0  # for the other ranks to report what they saw, after the first has failed
EXIT_GRACE_S = 20.0  # for all ranks to exit once all is written; a teardown may hang (torch bug)
REPORT_GRACE_S = 5.0  # for torchrun to print its table once its ranks are gone
GONE_WITHIN_S = 30.0
PORTS_TRIED = 3
LAST_LINES = 50
HELD_OUTCOMES = (Outcome.USER_ERROR, Outcome.OUT_OF_MEMORY)  # of scripts: others are retried
SHELLS_LEAVE_WITHIN_S = 8.0  # after SIGTERM to a porter, which gives them 3 s
FAR = float("inf")


def run(path: Path) -> int:
    """Be the shim of the attempt in `path`. Returns its exit code; the caller ends the process."""
    attempt = Attempt(path)
    os.setsid()
    os.chdir(path)
    lock = attempt.take_lock()
    if lock is None:
        return 0  # this spawn was a duplicate
    start = attempt.start()
    if start is None or attempt.exit.exists():
        return 0
    cgroup = join_cgroup(attempt.path)
    state = ShimState(
        pid=os.getpid(),
        boot_id=boot_id(),
        launcher=start.launcher,
        began_s=boot_s(),
        cgroup=None if cgroup is None else str(cgroup.path),
    )
    try:
        with attempt.shim_file.open("xb") as file:
            file.write(json_bytes(state))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return 0  # a shim ran before and was lost; the agent reports it
    write_output_to(attempt.launcher_logs)
    Shim(attempt, start, state, cgroup, lock).run()
    return 0


class Shim:
    """Supervision of one attempt while it runs."""

    def __init__(
        self, attempt: Attempt, start: StartFile, state: ShimState, cgroup: Cgroup | None, lock: int
    ) -> None:
        self.attempt, self.start, self.state = attempt, start, state
        self.cgroup = cgroup
        self.tree = ProcessTree(attempt.path, self.cgroup)
        here = machine()
        share = start.share
        self.limits = ResourceLimits(
            attempt.path,
            cgroup,
            here.bound(start.memory_bytes, WHOLE if share is None else share.part),
            here.for_jobs,
            cpus=() if share is None else share.cpus,
        )
        self.launcher: RankLauncher
        if start.workbench:
            self.launcher = WorkbenchLauncher(attempt, start, self.limits)
        elif start.script:
            self.launcher = ScriptLauncher(attempt, start, self.limits)
        elif start.launcher is LauncherName.WARM:
            self.launcher = ForkLauncher(attempt, start, self.limits, lock)
        else:
            self.launcher = TorchrunLauncher(attempt, start, self.limits)
        self.logs = LogCap(attempt.launcher_logs.parent, start.log_bytes, tell=say)
        self.schedule: DeadlinesFile | None = None
        self.schedule_seen: tuple[int, int] | None = None
        self.done = DueAction.NOTHING
        self.stop_reason: Outcome | None = None
        self.killed = False
        self.out_of_memory = False
        """True once the ranks were killed for that."""
        self.kill_ranks_at = FAR
        self.kill_tree_at = FAR
        self.told_to_leave = False
        self.obeyed = 0
        """Number of the last request that was passed on."""
        self.held_until = FAR
        """End of the hold of the sandbox; FAR while it is not held."""

    def run(self) -> None:
        """Start the ranks, watch them to their end, and write exit.json."""
        adopt_orphans()
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not end a wait
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        self.limits.set()
        self.memory = self._watch_memory()
        say(
            f"Memory: {self.limits.memory_bytes / 2**30:.2f} GiB at most. Limited by cgroups: "
            f"{', '.join(self.limits.bounded) or 'nothing'}."
        )
        if self.start.share is not None:
            share = self.start.share
            say(
                f"The node is shared: {share.slots} of {share.slots_of_node} slots, processors "
                f"{', '.join(map(str, share.cpus))}."
            )
        if self.start.launcher_reason:
            say(f"torchrun starts the ranks: {self.start.launcher_reason}.")
        failure = ""
        evidence: list[RankEvidence] = []
        for _ in range(PORTS_TRIED):
            try:
                self.limits.keep_apart(strictly=self.start.script)
                self.launcher.start()
            except OSError as error:
                failure = f"the operating system refused: {error}"
                break
            self.watch_to_the_end()
            evidence, failure = self.launcher.evidence(), self.launcher.failure()
            if self.stop_reason is not None or not self._lost_its_port(evidence, failure):
                break
        gone = self.tree.kill(within_s=GONE_WITHIN_S, spare=os.getpid(), reap=self.reap)
        self.memory.look()
        if self.start.workbench and self.stop_reason is None:
            # It was ending by itself when its time came, so nobody was asked to stop.
            self._read_schedule()
            self.stop_reason = stop_past(self.schedule, now=boot_s(), boot_id=self.state.boot_id)
        was_stopped, held = self.stop_reason is not None, None
        if gone and not was_stopped and isinstance(self.launcher, ScriptLauncher):
            held = self.judge_for_hold(self.launcher, evidence, failure)
            if held is not None:
                gone = self.hold(self.launcher, held)
        self.launcher.conclude(stopped=was_stopped)
        self.write_exit(held or self.judge_end(evidence, failure), evidence, gone=gone)
        self.limits.remove()
        if self.cgroup is not None:
            with contextlib.suppress(OSError):
                self.cgroup.leave()
            self.cgroup.remove()

    def watch_to_the_end(self) -> None:
        """Watch until the launcher and its ranks have ended, by themselves or by a deadline."""
        self.kill_ranks_at = self.kill_tree_at = FAR
        while True:
            self.reap()
            self.launcher.watch()
            with contextlib.suppress(OSError):  # torchrun may just have replaced a log
                self.logs.trim()
            if not self.launcher.is_running():
                return
            self.obey_deadlines()
            self.end_hold()
            self.keep_ranks_together()
            self.keep_within_memory()
            # The end of a child wakes it, and so does the agent when it has written something.
            pause_s = min(self.launcher.watch_every_s, self.memory.pause_s)
            signal.sigtimedwait([signal.SIGCHLD], pause_s)

    def reap(self) -> None:
        """Reap every child that has ended, adopted ones too, and tell the launcher."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.launcher.ended(pid, os.waitstatus_to_exitcode(status))

    def obey_deadlines(self) -> None:
        """Do everything that has become due, each action once."""
        self._read_schedule()
        now = boot_s()
        if self.told_to_leave and self.stop_reason is None:
            self._ask_to_stop(Outcome.PREEMPTED)
        if self.schedule is None or self.schedule.boot_id != self.state.boot_id:
            return
        self._obey_request()
        what = due(self.schedule, now)
        if what >= DueAction.STOP and self.stop_reason is None:
            self._ask_to_stop(self.schedule.reason)
        elif what is DueAction.CHECKPOINT and self.done < what and self.stop_reason is None:
            self._ask_for_checkpoint()
        if what >= DueAction.TERM and self.done < DueAction.TERM:
            say(f"The ranks did not stop within their grace: SIGTERM ({self.stop_reason}).")
            self.launcher.terminate()
        if what >= DueAction.KILL and self.done < DueAction.KILL:
            say("The ranks are still running at their deadline: SIGKILL.")
            self.killed = True
            self.launcher.kill_ranks()
            self.kill_tree_at = now
        self.done = max(self.done, what)

    def keep_ranks_together(self) -> None:
        """End the remaining ranks some time after one has failed or everything is written."""
        now = boot_s()
        if self.kill_ranks_at == FAR:
            result = read_model(self.attempt.result, Result)
            if result is not None and not result.missing:
                self.kill_ranks_at = now + EXIT_GRACE_S
            elif self.launcher.has_failed_rank() and self.stop_reason is None:
                self.kill_ranks_at = now + FAIL_GRACE_S
        if now >= self.kill_ranks_at and self.kill_tree_at == FAR:
            say("A rank has failed, or the training has ended: SIGKILL to the remaining ranks.")
            self.launcher.kill_ranks()
            self.kill_tree_at = now + REPORT_GRACE_S
        if now >= self.kill_tree_at:
            self.tree.kill(within_s=KILL_EVERY_S, spare=os.getpid(), reap=self.reap)

    def keep_within_memory(self) -> None:
        """End all ranks when they have used up their memory, or the machine's."""
        self.memory.look()
        if self.memory.exceeded and not self.out_of_memory:
            self.out_of_memory = True
            say("The memory is used up: SIGKILL to all ranks.")
            self.launcher.kill_ranks()
            self.kill_tree_at = boot_s()

    def judge_for_hold(
        self, program: ScriptLauncher, evidence: list[RankEvidence], failure: str
    ) -> ExitJudgement | None:
        """Return the judgement of a script whose sandbox is to be held; None if it is not."""
        if program.script_run.hold_on_failure_s is None or program.code() == 0 or program.breach:
            return None
        verdict = self.judge_end(evidence, failure)
        return verdict if verdict.outcome in HELD_OUTCOMES else None

    def hold(self, program: ScriptLauncher, verdict: ExitJudgement) -> bool:
        """Hold the sandbox of a script that has failed, with a porter in it, for as long as its
        owner asked, or until it is released or a deadline comes. Return True once nothing runs."""
        hold_s = program.script_run.hold_on_failure_s
        assert hold_s is not None
        self.held_until = boot_s() + hold_s
        held = HeldLauncher(
            self.attempt,
            self.start,
            self.limits,
            pid=program.pid,
            user=program.user,
            proxy_user=program.proxy_user,
        )
        mask = masks_of(self.attempt).apply
        verdict = verdict._replace(reason=mask(verdict.reason))
        lines = [mask(line) for line in last_lines(self.attempt, verdict.culprit_rank)]
        held.greet(greeting(verdict, lines))
        self.memory, self.out_of_memory, self.killed = self._watch_memory(), False, False
        say(f"The script has failed; its sandbox is held for {hold_s:,} s at most.")
        try:
            held.start()
        except OSError as error:
            say(f"The sandbox cannot be held: the operating system refused: {error}")
            held.conclude(stopped=True)
            return True
        self.attempt.write_held(HeldFile(until=self.held_until, **verdict._asdict()))
        self.launcher = held
        self.watch_to_the_end()
        gone = self.tree.kill(within_s=GONE_WITHIN_S, spare=os.getpid(), reap=self.reap)
        held.conclude(stopped=True)
        self.launcher = program
        return gone

    def end_hold(self) -> None:
        """End the porter of a held sandbox once its time is over: the shells are hung up."""
        if boot_s() >= self.held_until and self.kill_tree_at == FAR:
            say("The sandbox is not held any longer.")
            self.launcher.terminate()
            self.kill_tree_at = boot_s() + SHELLS_LEAVE_WITHIN_S

    def judge_end(self, evidence: list[RankEvidence], failure: str) -> ExitJudgement:
        """Judge the end of the ranks."""
        stop = (
            None if self.stop_reason is None else StopRequest(self.stop_reason, killed=self.killed)
        )
        told = self.attempt.memory() if not self.start.script else []
        return judge(
            Evidence(
                node=self.start.node,
                ranks=evidence,
                result=read_model(self.attempt.result, Result),
                step=self.attempt.last_step(),
                stop=stop,
                memory=self.memory.use(),
                ran_out_of_memory=self.memory.others_were_killed(),
                planned=planned(self.attempt) if not self.start.script else None,
                told=told,
                launcher_failure=failure,
                launcher_code=self.launcher.code(),
                breach=self.launcher.breach,
                is_script=self.start.script,
                is_workbench=self.start.workbench,
                has_gpus=bool(self.start.gpus),
                gpu_faults=self._gpu_faults(),
            )
        )

    def write_exit(
        self, verdict: ExitJudgement, evidence: list[RankEvidence], *, gone: bool
    ) -> None:
        """Write exit.json: from then on the attempt is over."""
        reason = verdict.reason
        if not gone:
            reason += " Some of its processes could not be killed; an administrator must check."
        try:
            note_end(
                self.attempt,
                verdict.outcome,
                began_s=self.state.began_s,
                boot_id=self.state.boot_id,
            )
        except OSError as error:
            say(f"The result of the preflight cannot be recorded: {error}")
        self.attempt.write_exit(
            exit_record(
                self.attempt,
                verdict._replace(reason=reason),
                boot=self.state.boot_id,
                evidence=evidence,
                duration_s=boot_s() - self.state.began_s,
                result=read_model(self.attempt.result, Result),
                memory=self.attempt.memory() if not self.start.script else [],
            )
        )

    def _watch_memory(self) -> MemoryWatch:
        return MemoryWatch(
            self.limits.memory_bytes,
            self.limits.bounded.get("memory"),
            processes=lambda: descendants(os.getpid()),
            has_neighbours=self.start.share is not None,
        )

    def _gpu_faults(self) -> dict[int, str]:
        """Return what the kernel's log says of this attempt's GPUs since its start, by rank."""
        if not self.start.gpus:
            return {}
        known = read_model(NodeFolder(self.attempt.path.parents[1]).gpus, SlotsFile)
        places = {gpu.uuid: gpu.pci_address for gpu in known.gpus} if known is not None else {}
        by_uuid = zip(self.start.global_ranks, self.start.gpus, strict=False)
        addresses = {rank: places[uuid] for rank, uuid in by_uuid if uuid in places}
        return by_rank(hardware_xids(kernel_log(), since_s=self.state.began_s), addresses)

    def _lost_its_port(self, evidence: list[RankEvidence], failure: str) -> bool:
        if self.attempt.last_step() or self.start.rendezvous is not None:
            return False  # other nodes' ranks use that port: only a new attempt gets another
        return address_in_use([failure, *(r.error.message for r in evidence if r.error)])

    def _read_schedule(self) -> None:
        try:
            found = os.stat(self.attempt.schedule_file)
        except FileNotFoundError:
            return
        version = (found.st_mtime_ns, found.st_ino)
        if version == self.schedule_seen:
            return
        self.schedule_seen = version
        # A damaged file changes nothing: the deadlines known so far hold.
        self.schedule = self.attempt.schedule() or self.schedule

    def _obey_request(self) -> None:
        """Pass the owner's newest request on, once; a stop is never overwritten."""
        request = self.attempt.request()
        if request is None or request.number <= self.obeyed or self.stop_reason is not None:
            return
        self.obeyed = request.number
        if request.action == "release":
            if self.held_until != FAR:
                self.held_until = boot_s()
        else:
            self._ask(Action(request.action))

    def _ask_for_checkpoint(self) -> None:
        if self.launcher.hears_control:
            self._ask(Action.CHECKPOINT)

    def _ask_to_stop(self, reason: Outcome) -> None:
        self.stop_reason = reason
        if not self.launcher.hears_control:
            say(f"SIGTERM: the script is to save and stop ({reason}).")
            self.launcher.terminate()
        elif self.attempt.result.exists():
            say(f"SIGTERM: the training is over ({reason}).")
            self.launcher.terminate()
        elif not self._ask(Action.STOP):
            say("SIGTERM instead.")
            self.launcher.terminate()

    def _ask(self, action: Action) -> bool:
        """Write control.json; a damaged one is replaced."""
        try:
            try:
                write_control(self.attempt.control, action)
            except ValidationError:
                self.attempt.control.unlink(missing_ok=True)
                write_control(self.attempt.control, action)
        except OSError as error:
            say(f"control.json cannot be written: {error}")
            return False
        return True

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.told_to_leave = True


def exit_record(
    attempt: Attempt,
    verdict: ExitJudgement,
    *,
    boot: str,
    evidence: list[RankEvidence],
    duration_s: float,
    result: Result | None = None,
    memory: Sequence[RankMemory] = (),
) -> ExitRecord:
    """Return the content of exit.json."""
    mask = masks_of(attempt).apply
    ranks = [
        RankExit(
            rank=rank.rank,
            code=rank.code,
            error=mask(f"{rank.error.type}: {rank.error.message}")[:2000] if rank.error else "",
        )
        for rank in evidence
    ]
    lines: list[str] = []
    if verdict.outcome is not Outcome.SUCCEEDED:
        lines = [mask(line) for line in last_lines(attempt, verdict.culprit_rank)]
    return ExitRecord(
        job_id=attempt.key.job_id,
        epoch=attempt.key.epoch,
        boot_id=boot,
        outcome=verdict.outcome,
        reason=mask(verdict.reason),
        culprit_rank=verdict.culprit_rank,
        signal=verdict.signal,
        code=verdict.code,
        guilt=verdict.guilt,
        ranks=ranks,
        last_lines=lines,
        duration_s=max(0.0, duration_s),
        result=result,
        memory=list(memory),
    )


def greeting(verdict: ExitJudgement, lines: Sequence[str]) -> str:
    """Return what the shells of a held sandbox show above: the last lines, and the failure."""
    whose = "" if verdict.culprit_rank is None else f" of rank {verdict.culprit_rank}"
    shown = "".join(f"{line}\n" for line in lines)
    return f"Last lines{whose}:\n\n{shown}\n{verdict.reason}\n\n"


def planned(attempt: Attempt) -> PlannedMemory | None:
    """Return the memory that a training's plan expected."""
    run = read_model(attempt.plan, RunPlan)
    return None if run is None else PlannedMemory(run.plan.needed_gib, run.plan.capacity_gib)


def last_lines(attempt: Attempt, rank: int | None) -> list[str]:
    """Return the last lines of stdout, then stderr, of the culprit or else of the launcher."""
    folder = attempt.launcher_logs if rank is None else attempt.rank_logs(rank)
    lines: deque[str] = deque(maxlen=LAST_LINES)
    for name in ("stdout.log", "stderr.log"):
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64_000))
            text = (
                file.read(64_000)
                .decode(errors="replace")
                .replace("\0", "\N{REPLACEMENT CHARACTER}")
            )
            lines.extend(line[:500] for line in text.splitlines())
    return list(lines)


def write_output_to(folder: Path) -> None:
    """Redirect this process: no standard input, stdout.log and stderr.log in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


def say(text: str) -> None:
    """Write a line to the launcher's log, which the job's owner can read."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
