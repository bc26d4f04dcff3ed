"""What starts the ranks of one attempt on this node. One contract, two launchers.

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

from worker.attempts import Attempt, Start
from worker.judge import RankError, RankEvidence, codes_in_report
from worker.process_tree import MARK, descendants, die_with_parent, is_running
from worker.resource_limits import ResourceLimits

MASTER = "127.0.0.1"
SHUTDOWN_TIMEOUT_S = 25  # of torchrun: its own 30 s would race our SIGKILL, 30 s after SIGTERM
LOWEST_PORT, HIGHEST_PORT = 15_000, 60_000
# What a rank may inherit. No TRAINYARD_*: a training has no business with the platform's secrets.
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
          "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")  # fmt: skip
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "MKL_", "KMP_")


class Launcher(Protocol):
    """Starts ranks once; the shim reaps every process and tells the launcher of its own."""

    hears_control: bool
    """Its ranks read control.json; else they are told to stop by SIGTERM alone."""
    breach: str
    """What they did that they may not, in a sentence without its end; empty where nothing."""

    def start(self) -> None:
        """Start all ranks."""

    def ended(self, pid: int, code: int) -> None:
        """A child of the shim has ended, perhaps one of this launcher's."""

    def watch(self) -> None:
        """Look after what needs looking after; called a few times a second."""

    def is_running(self) -> bool:
        """Whether what it started is still there."""

    def has_failed_rank(self) -> bool:
        """Whether a rank has ended that should not have."""

    def terminate(self) -> None:
        """SIGTERM, so that the ranks save and stop."""

    def kill_ranks(self) -> None:
        """SIGKILL to every rank that is left."""

    def evidence(self) -> list[RankEvidence]:
        """How each rank ended, as far as anybody saw it."""

    def failure(self) -> str:
        """Why there are no ranks; empty where there were some."""

    def code(self) -> int | None:
        """Of the launcher's own process, if it has one."""

    def conclude(self, *, stopped: bool) -> None:
        """After the last process has ended, before it is judged."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the processes of a training inherit of `environment`."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    # -P for every Python below: the run directory on the path would shadow modules.
    return {**kept, "PYTHONSAFEPATH": "1"}


def rank_environment(attempt: Attempt, start: Start) -> dict[str, str]:
    """What both launchers add."""
    environment = {
        MARK: str(attempt.path),
        "OMP_NUM_THREADS": str(start.threads),
        # Above all levels: torch's profiler prints a line whenever it starts or stops.
        "KINETO_LOG_LEVEL": "6",
    }
    if start.gpus:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts them
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, start.gpus))
    # A host name may lead anywhere: all ranks are on this machine, or behind this interface.
    interface = start.interface if start.rendezvous else "lo"
    if interface:
        environment["GLOO_SOCKET_IFNAME"] = interface
    if start.rendezvous and interface:
        environment["NCCL_SOCKET_IFNAME"] = f"={interface}"
    # What the administrator has set for the whole machine holds.
    set_here = {name: os.environ[name] for name in SOCKETS if name in os.environ}
    return {**environment, **set_here}


def meeting_point(start: Start) -> tuple[str, int]:
    """Address and port of the first node; on one node alone a port that is free now."""
    if start.rendezvous is None:
        return MASTER, free_port()
    return start.rendezvous.address, start.rendezvous.port


def trainer_arguments(attempt: Attempt) -> list[str]:
    """argv of the trainer's main."""
    return ["--plan", str(attempt.plan), "--run-dir", str(attempt.path)]


def free_port() -> int:
    """A port that nobody listens on now, outside the range that clients' connections come from.

    Somebody may take it before the ranks do: their start is then tried again with another.
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
    """First thing in a process forked from the shim: signals as usual, its limits, its leash."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    limits.enter()
    die_with_parent(parent_death)


def rank_of(pid: int) -> int | None:
    """RANK in the environment of a process; None where it has none, or is gone."""
    with contextlib.suppress(OSError, ValueError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                return int(variable.removeprefix(b"RANK="))
    return None


def read_error(path: Path) -> RankError | None:
    """error.json of a rank; None where there is none, or one that nobody can read.

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
    """`torchrun` as a child process; it starts each rank in a session of its own."""

    attempt: Attempt
    start_order: Start
    limits: ResourceLimits
    pid: int = 0
    exit_code: int | None = None
    all_ranks_seen: bool = False
    killed_by_us: set[int] = field(default_factory=set)
    hears_control: bool = True
    breach: str = ""
    report_from: int = 0
    """Where in the launcher's stderr.log the report of this start begins."""

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
        """torchrun's, with a static rendezvous."""
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
        """Give each rank's logs their usual name, as soon as torchrun has made its folders."""
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
            error = read_error(self.attempt.rank_logs(rank) / "error.json")
            code = 0 if self.exit_code == 0 else codes.get(rank)
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
        """Nothing: the ranks have left everything in its place."""

    def _ranks(self) -> set[int]:
        return {pid for pid in descendants(self.pid) if is_running(pid)}

    def _report(self) -> str:
        try:
            with (self.attempt.launcher_logs / "stderr.log").open("rb") as file:
                file.seek(self.report_from)
                return file.read().decode(errors="replace")
        except OSError:
            return ""
