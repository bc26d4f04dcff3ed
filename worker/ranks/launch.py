"""Launchers that start the ranks of one attempt on this node: one contract, two implementations.

Contract: torchrun's environment variables, logs/rank-N/{stdout.log,stderr.log,error.json}, the run
directory as working directory. The trainer is a module with `main(argv) -> exit code`; a forked
rank (`worker.warm`) and `python -m` see the same arguments.
"""

import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

from core.process.parent_death import die_with_parent
from worker.node.attempts import Attempt, StartFile
from worker.node.process_tree import MARK, descendants, is_running
from worker.node.resource_limits import ResourceLimits
from worker.ranks.judge import RankError, RankEvidence, codes_in_report
from worker.ranks.tracebacks import abort_error

MASTER = "127.0.0.1"
SHUTDOWN_TIMEOUT_S = 25  # torchrun's default of 30 s would race our SIGKILL, 30 s after SIGTERM
LOWEST_PORT, HIGHEST_PORT = 15_000, 60_000
# Variables that a rank may inherit. No TRAINYARD_*: a training must not see the platform's secrets.
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
          "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")  # fmt: skip
NETWORK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "MKL_", "KMP_")
TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"


class RankLauncher(Protocol):
    """Launcher of one attempt's ranks; the shim reaps every process and tells the launcher."""

    hears_control: bool
    """True if its ranks read control.json; else they are told to stop by SIGTERM alone."""
    watch_every_s: float
    """Seconds between two calls of `watch`, if nothing else wakes the shim."""
    breach: str
    """Forbidden action of the ranks, in a sentence without its full stop; empty if there was
    none."""

    def start(self) -> None:
        """Start all ranks."""

    def ended(self, pid: int, code: int) -> None:
        """Record that a child of the shim has ended, perhaps one of this launcher's."""

    def watch(self) -> None:
        """Do the launcher's periodic work."""

    def is_running(self) -> bool:
        """Return True if the processes that it started are still there."""

    def has_failed_rank(self) -> bool:
        """Return True if a rank has ended that should not have."""

    def terminate(self) -> None:
        """Send SIGTERM, so that the ranks save and stop."""

    def kill_ranks(self) -> None:
        """Send SIGKILL to every remaining rank."""

    def evidence(self) -> list[RankEvidence]:
        """Return the known facts about the end of each rank."""

    def failure(self) -> str:
        """Return the reason why there are no ranks; empty if there were some."""

    def code(self) -> int | None:
        """Return the exit code of the launcher's own process, if it has one."""

    def conclude(self, *, stopped: bool) -> None:
        """Finish up after the last process has ended, before the attempt is judged."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that the processes of a training inherit."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    # -P for every Python below: the run directory on the path would shadow modules.
    return {**kept, "PYTHONSAFEPATH": "1"}


def rank_environment(attempt: Attempt, start: StartFile) -> dict[str, str]:
    """Return the variables that both launchers add."""
    environment = {
        MARK: str(attempt.path),
        "OMP_NUM_THREADS": str(start.threads),
        **huge_pages(),
        # Above all levels: otherwise torch's profiler prints a line at each start and stop.
        "KINETO_LOG_LEVEL": "6",
        # One cache for all attempts on the node: a second start finds its kernels compiled.
        "TORCHINDUCTOR_CACHE_DIR": str(attempt.kernels / "inductor"),
        "TRITON_CACHE_DIR": str(attempt.kernels / "triton"),
        # Without GPUs of their own the ranks see none, on a node with GPUs too.
        "CUDA_VISIBLE_DEVICES": ",".join(start.gpus),
    }
    return {**environment, **fabric_variables(start)}


def huge_pages() -> dict[str, str]:
    """Return the variable that lets glibc ask the kernel for huge pages (2 MiB).

    glibc reads it when a process starts, from 2.35 on. Where the kernel gives huge pages to those
    who ask (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled), steps on CPUs take 4 to 13 %
    less time. Tunables that the administrator has set for the worker take precedence.
    """
    return {TUNABLES: os.environ.get(TUNABLES, HUGE_PAGES)}


def fabric_variables(start: StartFile) -> dict[str, str]:
    """Return the variables that lead gloo and NCCL to the other ranks.

    A host name may lead anywhere: all ranks are on this machine, or behind one interface.
    Variables that the administrator has set for the whole machine take precedence.
    """
    if start.rendezvous is None:
        found = {"GLOO_SOCKET_IFNAME": "lo"}
    else:
        adapters = start.rendezvous.fabric.adapters
        found = {
            **({"GLOO_SOCKET_IFNAME": start.interface} if start.interface else {}),
            **({"NCCL_SOCKET_IFNAME": f"={start.interface}"} if start.interface else {}),
            **({"NCCL_IB_HCA": f"={adapters}"} if adapters else {}),
        }
    return found | {name: os.environ[name] for name in NETWORK if name in os.environ}


def meeting_point(start: StartFile) -> tuple[str, int]:
    """Return address and port of the first node; for a single node a port that is free now."""
    if start.rendezvous is None:
        return MASTER, free_port()
    return start.rendezvous.address, start.rendezvous.port


def trainer_arguments(attempt: Attempt) -> list[str]:
    """Return argv of the trainer's main."""
    return ["--plan", str(attempt.plan), "--run-dir", str(attempt.path)]


def free_port() -> int:
    """Return a port that is free now, outside the range of clients' connections.

    Another program may take it before the ranks do: their start is then tried again with another.
    Raises OSError if 200 tried ports are taken.
    """
    low, high = 32768, 60999
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        low, high = (int(number) for number in text.split())
    outside = [p for p in range(LOWEST_PORT, HIGHEST_PORT) if not low <= p <= high]
    for port in random.sample(outside, k=min(200, len(outside))):
        with closing(socket.socket()) as probe:
            try:
                probe.bind((MASTER, port))
            except OSError:
                continue
            return port
    raise OSError(f"none of 200 ports between {LOWEST_PORT} and {HIGHEST_PORT} is free")


def in_child(limits: ResourceLimits, parent_death: signal.Signals) -> None:
    """Set up a process forked from the shim: default signals, its limits, its parent-death
    signal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    limits.enter()
    die_with_parent(parent_death)


def rank_of(pid: int) -> int | None:
    """Return RANK from the environment of a process; None if it has none, or is gone."""
    with contextlib.suppress(OSError, ValueError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                return int(variable.removeprefix(b"RANK="))
    return None


def error_of(logs: Path, code: int | None) -> RankError | None:
    """Return the error that ended a rank: the one it reported, else the one it aborted with."""
    aborted = code == -signal.SIGABRT
    return read_error(logs / "error.json") or (
        abort_error(logs / "stderr.log") if aborted else None
    )


def read_error(path: Path) -> RankError | None:
    """Return the error in a rank's error.json; None if it is missing or unreadable.

    torchrun's own has message, extraInfo and timestamp nested one level deeper.
    """
    try:
        record = json.loads(path.read_bytes())
        if isinstance(record.get("message"), dict):
            nested = record["message"]
            extra = nested.get("extraInfo", {})
            seconds = int(extra.get("timestamp", 0))
            return RankError("Error", str(nested.get("message", "")), seconds * 1_000_000_000)
        digest = record.get("digest") or {}
        return RankError(
            str(record.get("type", "Error")),
            str(record.get("message", "")),
            int(record.get("t_ns", 0)),
            missing=tuple(int(rank) for rank in digest.get("missing", ())),
            why=str(digest.get("why", "")),
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return None


@dataclass
class TorchrunLauncher:
    """Launcher that runs `torchrun` as a child process, which starts each rank in its own
    session."""

    attempt: Attempt
    start_order: StartFile
    limits: ResourceLimits
    pid: int = 0
    exit_code: int | None = None
    all_ranks_seen: bool = False
    killed_by_us: set[int] = field(default_factory=set)
    hears_control: bool = True
    watch_every_s: float = 0.5
    breach: str = ""
    report_from: int = 0
    """Offset in the launcher's stderr.log at which the report of this start begins."""

    def start(self) -> None:
        self.exit_code, self.all_ranks_seen = None, False
        with contextlib.suppress(OSError):
            self.report_from = (self.attempt.launcher_logs / "stderr.log").stat().st_size
        for rank in self.start_order.global_ranks:
            with contextlib.suppress(FileNotFoundError):
                self.attempt.rank_logs(rank).unlink()
        command = self.command(*meeting_point(self.start_order))
        environment = {
            **clean_environment(os.environ),
            **rank_environment(self.attempt, self.start_order),
        }
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, environment)

    def command(self, address: str, port: int) -> list[str]:
        """Return torchrun's command, with a static rendezvous."""
        start = self.start_order
        return [
            sys.executable, "-m", "torch.distributed.run",
            "--nnodes", str(start.nodes), "--node-rank", str(start.position),
            "--nproc-per-node", str(start.ranks),
            "--master-addr", address, "--master-port", str(port), "--max-restarts", "0",
            "--redirects", "3", "--log-dir", str(self.log_folder),
            "--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S),
            "-m", start.trainer, *trainer_arguments(self.attempt),
        ]  # fmt: skip

    @property
    def log_folder(self) -> Path:
        return self.attempt.path / "torchrun"

    def _become(self, command: list[str], environment: dict[str, str]) -> NoReturn:
        try:
            # SIGTERM, not SIGKILL: torchrun then takes its ranks along.
            in_child(self.limits, signal.SIGTERM)
            os.execve(command[0], command, environment)
        except OSError as error:
            sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(127)
        raise AssertionError  # not reached

    def ended(self, pid: int, code: int) -> None:
        if pid == self.pid:
            self.exit_code = code

    def watch(self) -> None:
        """Give each rank's logs their usual name, once torchrun has created its folders."""
        if len(self._ranks()) >= self.start_order.ranks:
            self.all_ranks_seen = True
        for local_rank, rank in enumerate(self.start_order.global_ranks):
            link = self.attempt.rank_logs(rank)
            if link.is_symlink():
                continue
            folders = sorted(
                self.log_folder.glob(f"*/attempt_0/{local_rank}"),
                key=lambda f: f.stat().st_mtime_ns,
            )
            if folders:
                link.symlink_to(os.path.relpath(folders[-1], link.parent))

    def is_running(self) -> bool:
        return self.exit_code is None

    def has_failed_rank(self) -> bool:
        if self.all_ranks_seen and len(self._ranks()) < self.start_order.ranks:
            return True
        return any(
            (self.attempt.rank_logs(rank) / "error.json").exists()
            for rank in self.start_order.global_ranks
        )

    def terminate(self) -> None:
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)

    def kill_ranks(self) -> None:
        for pid in descendants(self.pid):
            rank = rank_of(pid)
            if rank is not None:
                self.killed_by_us.add(rank)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def evidence(self) -> list[RankEvidence]:
        self.watch()
        codes = codes_in_report(self._report())
        found = []
        for rank in self.start_order.global_ranks:
            code = 0 if self.exit_code == 0 else codes.get(rank)
            error = error_of(self.attempt.rank_logs(rank), code)
            ours = rank in self.killed_by_us and code in (None, -signal.SIGKILL)
            found.append(RankEvidence(rank, code, error, killed_by_us=ours and error is None))
        return found

    def failure(self) -> str:
        self.watch()
        if (
            self.exit_code == 0
            or self.all_ranks_seen
            or self.attempt.rank_logs(self.start_order.global_ranks[0]).exists()
        ):
            return ""
        if self.exit_code is not None and self.exit_code < 0:
            return ""
        lines = [line for line in self._report().splitlines() if line.strip()]
        return f"torchrun ended with code {self.exit_code}: {' '.join(lines[-3:])[-500:]}"

    def code(self) -> int | None:
        return self.exit_code

    def conclude(self, *, stopped: bool) -> None:
        """Do nothing: the ranks have written everything to its place."""

    def _ranks(self) -> set[int]:
        return {pid for pid in descendants(self.pid) if is_running(pid)}

    def _report(self) -> str:
        try:
            with (self.attempt.launcher_logs / "stderr.log").open("rb") as file:
                file.seek(self.report_from)
                return file.read().decode(errors="replace")
        except OSError:
            return ""
