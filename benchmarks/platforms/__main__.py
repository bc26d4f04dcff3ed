"""`make bench-platforms`: Trainyard, Slurm, Ray Jobs and MLflow in turn, on this machine.

Each round starts every platform anew in an empty folder, asks the same of each, and ends it. One
that is not installed is left out, with a line that says what to install; the Python ones get
environments of their own. Writes docs/benchmarks-platforms.md.
"""

import argparse
import os
import platform as machine
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from benchmarks.platforms.mlflow_server import MLFLOW
from benchmarks.platforms.platform import Candidate, Platform
from benchmarks.platforms.ray_jobs import RAY_JOBS
from benchmarks.platforms.slurm import SLURM, SLURM_TUNED
from benchmarks.platforms.trainyard import TRAINYARD

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-platforms.md"
CANDIDATES = (TRAINYARD, SLURM, SLURM_TUNED, RAY_JOBS, MLFLOW)
CLIENTS = 8
STARTS = 3
CHART_POINTS = 100_000
NOTES = """
- Memory is weighed eight seconds after the start. Trainyard's has a launcher that has imported
  torch, for the next training to start at once; it rests after ten idle minutes, and
  [benchmarks.md](benchmarks.md) weighs what is left. MLflow runs without its own job runner.
- The job that is started is `date` for Slurm and Ray, for Trainyard a Python program in a sandbox.
- Submissions are jobs that wait. Trainyard answers after its fsync. SIGKILL: after two seconds of
  submissions by eight clients the server is killed at once, started again, and its jobs are
  counted. Slurm writes its state every few seconds; Ray keeps its jobs in memory, unless it is
  given a Redis that stores them.
"""
Measured = dict[str, float]


def main() -> None:
    """Measure in rounds and write the page."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--rounds", type=int, default=3, help="3 if not given")
    arguments.add_argument(
        "--seconds", type=float, default=5.0, help="of each rate; 5 if not given"
    )
    arguments.add_argument("--only", nargs="*", help="names of platforms; prints only")
    chosen = arguments.parse_args()
    found: list[Candidate] = []
    for candidate in CANDIDATES:
        if chosen.only and candidate.name not in chosen.only:
            continue
        if reason := candidate.prepare():
            sys.stderr.write(f"{candidate.name} is left out: {reason}\n")
        else:
            found.append(candidate)
    measured: dict[str, list[Measured]] = defaultdict(list)
    loads = []
    for number in range(chosen.rounds):
        for candidate in found:
            sys.stderr.write(f"round {number + 1} of {chosen.rounds}: {candidate.name}\n")
            loads.append(os.getloadavg()[0])
            measured[candidate.name].append(measure(candidate, chosen.seconds))
    page = as_page(measured, loads)
    sys.stdout.write(page)
    if not chosen.only:
        PAGE.write_text(page)


def measure(candidate: Candidate, seconds: float) -> Measured:
    """Start the platform, ask it everything, end it; return what it has by name."""
    with tempfile.TemporaryDirectory(prefix="beside-", dir="/tmp") as name:
        began = time.monotonic()
        with candidate.running(Path(name)) as running:
            ready = time.monotonic() - began
            return {"start to ready, s": ready, **ask(running, seconds)}


def ask(running: Platform, seconds: float) -> Measured:
    """Ask a platform that runs for everything; what it can't do is left out."""
    measured: Measured = {"idle memory (PSS), MiB": running.idle_mib()}
    starts = [start for _ in range(STARTS) if (start := running.seconds_to_start()) is not None]
    if starts:
        measured["submit to start, s"] = statistics.median(starts)
    for lines in (6, 120):
        points = running.points(lines, CLIENTS, seconds)
        if points is not None:
            measured[f"metric points/s, {CLIENTS} clients, {lines * 8} a call"] = points
    chart_ms = running.chart_ms(CHART_POINTS)
    if chart_ms is not None:
        measured[f"chart of {CHART_POINTS:,} points, ms"] = chart_ms
    for clients in (1, CLIENTS):
        rate = running.submissions(clients, seconds)
        if rate is not None:
            measured[f"submissions/s, clients: {clients}"] = rate.per_s
            measured[f"the same: p99 of a call, ms (clients: {clients})"] = rate.p99_ms
    killed = running.after_kill(CLIENTS, 2.0)
    if killed is not None:
        lost = killed.acknowledged - killed.known
        measured["acknowledged jobs lost by SIGKILL, %"] = 100 * lost / killed.acknowledged
    return measured


def as_page(measured: Mapping[str, Sequence[Measured]], loads: Sequence[float]) -> str:
    """Return the Markdown of docs/benchmarks-platforms.md."""
    names = list(measured)
    what = list(dict.fromkeys(key for rounds in measured.values() for one in rounds for key in one))
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for key in what:
        cells = [_cell([one[key] for one in measured[name] if key in one]) for name in names]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    rounds = max(len(one) for one in measured.values())
    return (
        "# Trainyard beside Slurm, Ray Jobs and MLflow\n\n"
        f"Written by `make bench-platforms` on {date.today().isoformat()}: {os.cpu_count()} cores, "
        f"{machine.machine()}, Python {machine.python_version()}; load before a platform was "
        f"started {min(loads):.1f} to {max(loads):.1f}. Medians of {rounds} rounds (lowest to "
        "highest), in turn in one run, each time on an empty folder; clients and servers share the "
        "cores. `benchmarks/platforms/` says how each is asked.\n\n"
        + "\n".join(lines)
        + f"\n{NOTES}"
    )


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    return f"**{_number(middle)}** ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
