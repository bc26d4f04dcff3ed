"""Questions that each platform is asked, and the watch over its processes.

A platform that has no such thing (MLflow runs no jobs, Slurm keeps no curves) answers None.
"""

import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.lean import LeanConnection
from benchmarks.ratios import percentile

SETTLES_S = 8.0
"""Seconds that an idle platform gets before it is weighed."""
KEYS = tuple(f"key{number}" for number in range(8))


@dataclass(frozen=True)
class Rate:
    """Calls per second, and the slowest hundredth of the answers."""

    per_s: float
    p99_ms: float


@dataclass(frozen=True)
class AfterKill:
    """Jobs that were acknowledged before the server was killed, and those it still knew."""

    acknowledged: int
    known: int


class Platform(Protocol):
    """One platform that runs, with nothing to do."""

    def idle_mib(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        ...

    def seconds_to_start(self) -> float | None:
        """Submit a job; return the seconds until its first line of code runs."""
        ...

    def submissions(self, clients: int, seconds: float) -> Rate | None:
        """Submit jobs that can't start; return the acknowledged ones per second."""
        ...

    def points(self, lines: int, clients: int, seconds: float) -> float | None:
        """Store metrics, `lines` of 8 keys a call; return the points per second."""
        ...

    def chart_ms(self, points: int) -> float | None:
        """Store a curve; return the milliseconds to read it, reduced to 1,000 points."""
        ...

    def after_kill(self, clients: int, seconds: float) -> AfterKill | None:
        """Submit jobs, kill the server with SIGKILL, start it again, count what it knows."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A platform that may be measured."""

    name: str
    prepare: Callable[[], str]
    """Installs what it can; says what is missing, empty if nothing is."""
    running: Callable[[Path], AbstractContextManager[Platform]]
    """Starts it in an empty folder and yields it once it would take a job."""


def proportional_mib(processes: Sequence[psutil.Process]) -> float:
    """Return the proportional set size of the processes and all their descendants, in MiB."""
    found = {p for one in processes for p in (one, *one.children(recursive=True))}
    size = 0
    for process in found:
        try:
            size += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return size / (1 << 20)


def rate_of(call: Callable[[int], None], clients: int, seconds: float) -> tuple[Rate, int]:
    """Let `clients` threads call for some seconds; return the rate, and how many calls there were.

    `call` gets the number of its client.
    """

    def client(number: int) -> list[float]:
        latencies, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            call(number)
            latencies.append(time.perf_counter() - began)
        return latencies

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        latencies = [one for part in pool.map(client, range(clients)) for one in part]
    took = time.monotonic() - began
    rate = Rate(len(latencies) / took, 1000 * percentile(latencies, 0.99))
    return rate, len(latencies)


def median_ms(call: Callable[[], None], times: int = 9) -> float:
    """Return the median time of a call, in ms."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


@contextmanager
def connections(port: int, count: int) -> Iterator[list[LeanConnection]]:
    """Open kept connections to a server of this machine that asks for no token."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(LeanConnection("127.0.0.1", port, "none")))
            for _ in range(count)
        ]


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and all its descendants, and wait until they are gone."""
    found = [process, *process.children(recursive=True)]
    for one in found:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(found, timeout=30)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process with all its descendants, if it still runs."""
    if process.poll() is None:
        kill_tree(psutil.Process(process.pid))
    process.wait()
