"""Slurm: a controller, one node and munge, as Debian's `slurm-wlm` brings them.

Clients run `sbatch`, which is how people submit to it.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.platforms.platform import (
    SETTLES_S,
    AfterKill,
    Candidate,
    Rate,
    end,
    proportional_mib,
    rate_of,
)
from tests.running import own_port, wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "squeue", "sinfo")
TUNED = (
    "SchedulerParameters=batch_sched_delay=1,sched_interval=1,sched_min_interval=50000,defer\n"
    "SlurmctldDebug=error\nSlurmdDebug=error\n"
)
"""Settings of Slurm's guide to high throughput: to place is no part of a submission, and soon."""


class Slurm:
    """A controller and a node in a folder."""

    def __init__(self, folder: Path, tuning: str) -> None:
        self.folder, self.node = folder, socket.gethostname().partition(".")[0]
        self._configuration = folder / "slurm.conf"
        self._environment = {**os.environ, "SLURM_CONF": str(self._configuration)}
        for name in ("state", "spool", "log"):
            (folder / name).mkdir()
        munge = folder / "munge.socket"
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._configuration.write_text(
            f"ClusterName=beside\nSlurmctldHost={self.node}(127.0.0.1)\n"
            f"SlurmctldPort={own_port()}\nSlurmdPort={own_port()}\n"
            f"AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={munge}\n"
            "SlurmUser=root\nSlurmdUser=root\n"
            f"StateSaveLocation={folder / 'state'}\nSlurmdSpoolDir={folder / 'spool'}\n"
            f"SlurmctldPidFile={folder / 'ctld.pid'}\nSlurmdPidFile={folder / 'slurmd.pid'}\n"
            f"SlurmctldLogFile={folder / 'log' / 'ctld'}\nSlurmdLogFile={folder / 'log' / 'd'}\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            "SelectType=select/cons_tres\nMaxJobCount=1000000\nReturnToService=2\n"
            f"NodeName={self.node} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN\n"
            f"PartitionName=all Nodes={self.node} Default=YES State=UP\n{tuning}"
        )
        self._script = folder / "job.sh"
        self._script.write_text("#!/bin/sh\nexec date +%s.%N\n")
        munged = shutil.which("munged") or "munged"
        places = {
            **{"key-file": key, "socket": munge, "pid-file": folder / "munge.pid"},
            **{"log-file": folder / "log" / "munge", "seed-file": folder / "munge.seed"},
        }
        options = [f"--{name}={path}" for name, path in places.items()]
        self._munged = self._start([munged, "--foreground", "--force", *options])
        wait_for(munge.exists, what="munge's socket")
        self._controller = self._start(["slurmctld", "-D"])
        self._agent = self._start(["slurmd", "-D"])
        self._wait_for_node()

    def stop(self) -> None:
        """End all of it."""
        for process in (self._agent, self._controller, self._munged):
            end(process)

    def idle_mib(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        time.sleep(SETTLES_S)
        mine = (self._munged, self._controller, self._agent)
        return proportional_mib([psutil.Process(process.pid) for process in mine])

    def seconds_to_start(self) -> float:
        """Submit a job; return the seconds until its first line of code runs."""
        output = self.folder / f"started-{secrets.token_hex(4)}"
        began = time.time()
        self._run("sbatch", f"--output={output}", str(self._script))

        def written() -> str:
            return output.read_text() if output.exists() else ""

        wait_for(lambda: bool(written()), what="a start", every_s=0.02)
        return float(written()) - began

    def submissions(self, clients: int, seconds: float) -> Rate:
        """Submit jobs that can't start; return the acknowledged ones per second."""
        self._drain()
        rate, _ = rate_of(self._submit, clients, seconds)
        return rate

    def points(self, lines: int, clients: int, seconds: float) -> None:
        """Return nothing: it keeps no metrics."""

    def chart_ms(self, points: int) -> None:
        """Return nothing: it keeps no metrics."""

    def after_kill(self, clients: int, seconds: float) -> AfterKill:
        """Submit jobs, kill the server with SIGKILL, start it again, count what it knows."""
        self._drain()
        before = self._queued()
        _, acknowledged = rate_of(self._submit, clients, seconds)
        self._controller.kill()
        self._controller.wait()
        self._controller = self._start(["slurmctld", "-D"])
        wait_for(lambda: self._ask("scontrol", "ping").returncode == 0, what="Slurm's controller")
        return AfterKill(acknowledged, max(0, self._queued() - before))

    def _submit(self, _client: int) -> None:
        arguments = ["sbatch", "--parsable", "--output=/dev/null", str(self._script)]
        nothing = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)
        pid = os.posix_spawnp("sbatch", arguments, self._environment, file_actions=[nothing])
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "sbatch failed"

    def _drain(self) -> None:
        self._run("scontrol", "update", f"NodeName={self.node}", "State=DRAIN", "Reason=measured")

    def _queued(self) -> int:
        return len(self._run("squeue", "--noheader", "--format=%i").splitlines())

    def _wait_for_node(self) -> None:
        def idle() -> bool:
            said = self._ask("sinfo", "--noheader", "--format=%T")
            return said.returncode == 0 and said.stdout.strip() == b"idle"

        wait_for(idle, what="Slurm's node", every_s=0.05)

    def _run(self, *command: str) -> str:
        done = self._ask(*command)
        assert done.returncode == 0, f"{command}: {done.stderr!r}"
        return done.stdout.decode()

    def _ask(self, *command: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(command, env=self._environment, capture_output=True, check=False)

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / "log" / "out").open("ab") as output:
            return subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=output, cwd=self.folder
            )


@contextmanager
def running(folder: Path, tuning: str = "") -> Iterator[Slurm]:
    """Start Slurm; yield it once its node is idle; end it."""
    platform = Slurm(folder, tuning)
    try:
        yield platform
    finally:
        platform.stop()


def prepare() -> str:
    """Say what is missing; empty if nothing is."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "its node's daemon runs as root"


SLURM = Candidate("Slurm", prepare, running)
SLURM_TUNED = Candidate("Slurm, tuned", prepare, partial(running, tuning=TUNED))
