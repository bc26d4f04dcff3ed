"""Waits with one, two, three and ten reservations, on made-up labs and recorded months.

`python -m benchmarks.reservations [FOLDER]`: FOLDER is Haizea's `traces/blue`, with 15, 30 and 60
days of SDSC Blue Horizon (144 nodes) and leases to add; without it only made-up labs are replayed.
Each number is relative to EASY backfilling on the same workload. Prints the table of
docs/scheduling.md.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scheduler.queue.backfill import EASY, QueueRules
from simulation.simulation import JobRun, Simulation, quantile
from simulation.synthetic import lab, with_leases, with_longer_wall_times
from simulation.traces import BadTrace, Workload, read_workload

COUNTS = (1, 2, 3, 10)
LABS = range(1, 9)
MONTHS = ("15days", "30days", "60days")
NODES = 144
LEASES = "work_30-dur_2h-size_1small.lwf"  # 30 % of the nodes' time, for two hours each
NARROW = 8  # most nodes of a narrow job
LONGER = 5.0  # times that users ask for at most, where they overestimate
DRAWS = range(1, 9)  # of the longer wall times of a month: a single one has p95 from -25 to +6 %

Workloads = Mapping[str, Callable[[], Sequence[Workload]]]


class WaitHours(NamedTuple):
    """Waits of all jobs and of narrow ones, in hours."""

    mean: float
    p95: float
    narrow: float
    narrow_p95: float


def main() -> int:
    """Replay and print the table; return 2 if a trace can't be read."""
    parser = argparse.ArgumentParser("python -m benchmarks.reservations", description=main.__doc__)
    parser.add_argument("traces", type=Path, nargs="?", help="Haizea's traces/blue")
    try:
        folder = parser.parse_args().traces
        for row in rows(labs() | (months(folder) if folder else {})):
            sys.stdout.write(row)
            sys.stdout.flush()
    except BadTrace as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def labs() -> dict[str, Callable[[], Sequence[Workload]]]:
    """Return the made-up workloads: eight labs, taken together."""
    return {
        "8 labs": lambda: [lab(seed) for seed in LABS],
        "8 labs, 30 % leases": lambda: [with_leases(lab(s, load=0.6), 0.3) for s in LABS],
        "8 labs, wall times up to x 5": lambda: [
            with_longer_wall_times(lab(seed), LONGER) for seed in LABS
        ],
    }


def months(folder: Path) -> dict[str, Callable[[], Sequence[Workload]]]:
    """Return the recorded workloads, alone, with leases, and with longer wall times."""
    found: dict[str, Callable[[], Sequence[Workload]]] = {}
    for month in MONTHS:
        path, leases = folder / f"{month}.swf", folder / "injected_leases" / month / LEASES
        found[month] = partial(recorded, path)
        found[f"{month}, 30 % leases"] = partial(recorded, path, leases=leases)
        found[f"{month}, wall times up to x 5"] = partial(recorded, path, longer=LONGER)
    return found


def recorded(path: Path, *, leases: Path | None = None, longer: float = 1.0) -> list[Workload]:
    """Read a recorded workload, with leases added; with wall times up to so many times as long,
    once for each draw of them."""
    workload = read_workload(path, num_nodes=NODES, leases=leases)
    if longer == 1.0:
        return [workload]
    return [with_longer_wall_times(workload, longer, seed=seed) for seed in DRAWS]


def rows(workloads: Workloads) -> Iterator[str]:
    """Yield the lines of the table: EASY's waits in hours, and the changes with each number."""
    yield "| workload | rules | mean wait | p95 | mean of narrow jobs | their p95 |\n"
    yield "|---|---|---|---|---|---|\n"
    for name, make in workloads.items():
        found = make()
        easy = waits([Simulation(each, EASY) for each in found])
        yield f"| {name} | EASY | " + " | ".join(f"{hours:.2f} h" for hours in easy) + " |\n"
        for count in COUNTS:
            rules = QueueRules(reservations=count)
            ours = waits([Simulation(each, rules, fair=True) for each in found])
            changes = (f"{own / its - 1:+.0%}" for own, its in zip(ours, easy, strict=True))
            yield f"| | ours, {count} | " + " | ".join(changes) + " |\n"


def waits(simulations: Sequence[Simulation]) -> WaitHours:
    """Run simulations and return the waits of all their jobs together."""
    runs: list[JobRun] = []
    for simulation in simulations:
        simulation.run()
        runs += simulation.runs
    every = sorted(run.wait_h for run in runs)
    narrow = sorted(run.wait_h for run in runs if run.job.num_nodes <= NARROW)
    return WaitHours(
        statistics.fmean(every),
        quantile(every, 0.95),
        statistics.fmean(narrow),
        quantile(narrow, 0.95),
    )


if __name__ == "__main__":
    sys.exit(main())
