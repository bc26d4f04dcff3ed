"""Warm launcher: ranks forked from a process that has imported the modules they need.

Nothing here imports torch: the process that forks (`worker.warm`) has done so through the trainer.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import NoReturn

from strategies.plan.durable_files import write_atomically
from worker.node.attempts import Attempt, StartFile
from worker.node.resource_limits import ResourceLimits
from worker.ranks.judge import RankEvidence
from worker.ranks.launch import (
    error_of,
    in_child,
    meeting_point,
    rank_environment,
    trainer_arguments,
)


@dataclass
class ForkedRank:
    """One rank of `ForkLauncher`."""

    rank: int
    pid: int
    code: int | None = None
    killed_by_us: bool = False


@dataclass
class ForkLauncher:
    """Launcher of ranks forked from this process, which has imported the modules they need."""

    attempt: Attempt
    start_order: StartFile
    limits: ResourceLimits
    lock: int
    """Descriptor of the shim's lock: a rank must not keep it."""
    ranks: list[ForkedRank] = field(default_factory=list)
    hears_control: bool = True
    watch_every_s: float = 1.0
    breach: str = ""

    def start(self) -> None:
        self.ranks = []
        address, port = meeting_point(self.start_order)
        for rank in self.start_order.global_ranks:
            folder = self.attempt.rank_logs(rank)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "error.json").unlink(missing_ok=True)
            pid = os.fork()
            if pid == 0:
                self._become_rank(rank, address, port)
            self.ranks.append(ForkedRank(rank, pid))

    def _become_rank(self, rank: int, address: str, port: int) -> NoReturn:
        in_child(self.limits, signal.SIGKILL)
        os.close(self.lock)
        run_rank(self.attempt, self.start_order, rank=rank, address=address, port=port)

    def ended(self, pid: int, code: int) -> None:
        for rank in self.ranks:
            if rank.pid == pid:
                rank.code = code

    def watch(self) -> None:
        """Do nothing: every rank is a child of the shim."""

    def is_running(self) -> bool:
        return any(rank.code is None for rank in self.ranks)

    def has_failed_rank(self) -> bool:
        return any(rank.code not in (None, 0) for rank in self.ranks)

    def terminate(self) -> None:
        self._signal_all(signal.SIGTERM)

    def kill_ranks(self) -> None:
        for rank in self.ranks:
            rank.killed_by_us |= rank.code is None
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            if rank.code is None:
                os.kill(rank.pid, number)  # not reaped yet, so the pid is still the rank's

    def evidence(self) -> list[RankEvidence]:
        return [
            RankEvidence(
                rank.rank,
                rank.code,
                error_of(self.attempt.rank_logs(rank.rank), rank.code),
                killed_by_us=rank.killed_by_us and rank.code == -signal.SIGKILL,
            )
            for rank in self.ranks
        ]

    def failure(self) -> str:
        return "" if self.ranks else "no rank was forked"

    def code(self) -> int | None:
        return None

    def conclude(self, *, stopped: bool) -> None:
        """Do nothing: the ranks have written everything to its place."""


def run_rank(attempt: Attempt, start: StartFile, *, rank: int, address: str, port: int) -> NoReturn:
    """Become rank `rank` of all, with the environment, logs and error file that torchrun gives."""
    code = 1
    folder = attempt.rank_logs(rank)
    try:
        os.setsid()
        _write_output_to(folder / "stdout.log", descriptor=1)
        _write_output_to(folder / "stderr.log", descriptor=2)
        os.environ.update(
            rank_environment(attempt, start),
            RANK=str(rank),
            LOCAL_RANK=str(rank - start.global_ranks[0]),
            GROUP_RANK=str(start.position),
            ROLE_RANK=str(rank),
            WORLD_SIZE=str(start.nodes * start.ranks),
            LOCAL_WORLD_SIZE=str(start.ranks),
            MASTER_ADDR=address,
            MASTER_PORT=str(port),
            TORCHELASTIC_RUN_ID=attempt.path.name,
            TORCHELASTIC_RESTART_COUNT="0",
            TORCHELASTIC_ERROR_FILE=str(folder / "error.json"),
        )
        code = importlib.import_module(start.trainer).main(trainer_arguments(attempt))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as error:  # the edge of the process: record, then end
        traceback.print_exc()
        if not (folder / "error.json").exists():
            record = {
                "type": type(error).__name__,
                "message": str(error),
                "t_ns": time.time_ns(),
                "trace": traceback.format_exc(),
            }
            write_atomically(folder / "error.json", json.dumps(record).encode())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # Not sys.exit: tearing torch down can hang after a successful run.
        os._exit(code)
    raise AssertionError  # not reached


def _write_output_to(path: "os.PathLike[str]", *, descriptor: int) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(opened, descriptor)
    os.close(opened)
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
