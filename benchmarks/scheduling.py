"""`make bench-scheduler`: our queue against first come, first served, EASY and conservative.

A month of SDSC Blue Horizon (144 nodes) is replayed, alone and with leases that book 10, 20 and 30
per cent of it a day ahead; then the planner's speed is measured. Writes
docs/benchmarks-scheduling.md.
"""

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from benchmarks import placement
from scheduler.queue.masks import ClassLane
from simulation.simulate import POLICIES, Bar
from simulation.simulation import ReplayResult
from simulation.traces import BadTrace, read_workload

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks-scheduling.md"
NODES = 144
MONTH = "sdsc-blue/30days.swf"
LEASES: Mapping[str, str | None] = {
    "none": None,
    "10 %, 2 h, narrow": "sdsc-blue/work_10-dur_2h-size_1small.lwf",
    "10 %, 3 h, wider": "sdsc-blue/work_10-dur_3h-size_2medium.lwf",
    "20 %, 2 h, narrow": "sdsc-blue/work_20-dur_2h-size_1small.lwf",
    "20 %, 3 h, wider": "sdsc-blue/work_20-dur_3h-size_2medium.lwf",
    "30 %, 2 h, narrow": "sdsc-blue/work_30-dur_2h-size_1small.lwf",
    "30 %, 3 h, narrow": "sdsc-blue/work_30-dur_3h-size_1small.lwf",
}
KNOWN = {"fcfs": (9.40, 291.0), "easy": (1.19, 17.8), "conservative": (1.20, 17.1)}
DAYS, BOOKED, HOUR_S = 7, 100_000, 3600.0
Runs = Mapping[str, Mapping[str, ReplayResult]]
Row = tuple[str, str, str]


def main() -> int:
    """Measure and write the page; return 2 if a trace can't be read."""
    parser = argparse.ArgumentParser("make bench-scheduler", description=main.__doc__)
    parser.add_argument("traces", type=Path, help=f"the folder in which {MONTH} lies")
    try:
        runs = replay(parser.parse_args().traces)
    except BadTrace as error:
        sys.stderr.write(f"{error}\n")
        return 2
    page = as_page(runs, [*goals(runs), *placement.rows(), *availability_rows()])
    sys.stdout.write(page)
    PAGE.write_text(page)
    return 0


def replay(traces: Path) -> Runs:
    """Replay every policy under every load of leases; return the results by load and policy."""
    runs: dict[str, dict[str, ReplayResult]] = {}
    for load, file in LEASES.items():
        leases = traces / file if file else None
        workload = read_workload(traces / MONTH, num_nodes=NODES, leases=leases)
        runs[load] = {}
        for name, simulation in POLICIES.items():
            sys.stderr.write(f"measuring: {name}, leases {load}\n")
            with Bar(name) as bar:
                runs[load][name] = simulation(workload).run(bar.show)
    return runs


def goals(runs: Runs) -> Iterator[Row]:
    """Yield rows that compare the results on the traces with their goals."""
    alone = runs["none"]
    for name, (wait_h, slowdown) in KNOWN.items():
        yield (
            f"{name} without leases: mean wait / bounded slowdown (10 s)",
            f"{alone[name].mean_wait_h:.2f} h / {alone[name].bounded_slowdown_10:.1f}",
            f"{wait_h:.2f} h / {slowdown:.1f}, within 5 %",
        )
    change = alone["ours"].mean_wait_h / alone["easy"].mean_wait_h - 1
    yield "ours against EASY without leases, mean wait", f"{change:+.1%}", "<= +2 %"
    heavy = [found for load, found in runs.items() if load.startswith(("20", "30"))]
    ours = sum(found["ours"].mean_wait_h for found in heavy)
    easy = sum(found["easy"].mean_wait_h for found in heavy)
    worst = max(found["ours"].mean_wait_h / found["easy"].mean_wait_h - 1 for found in heavy)
    yield (
        "the same with 20 and 30 % leases, the four together",
        f"{ours / easy - 1:+.1%}",
        "<= -20 %",
    )
    yield "the worst of the four", f"{worst:+.1%}", "<= +5 %"


def availability_rows() -> list[Row]:
    """Measure bit masks: the free nodes in each of the next hours, and in blocks of 3 hours."""
    nodes = placement.NODES
    lane, built_s = booked_lane(nodes)
    times = []
    for _ in range(200):
        begun = time.process_time()
        hours = [lane.at(hour * HOUR_S) for hour in range(DAYS * 24)]
        blocks = [lane.free(hour * HOUR_S, (hour + 3) * HOUR_S) for hour in range(DAYS * 24)]
        times.append(time.process_time() - begun)
        assert len(hours) == len(blocks)
    p99 = statistics.quantiles(times, n=100)[-1]
    return [
        (
            f"free nodes of {nodes:,} in every hour of {DAYS} days and in every block of 3 hours, "
            f"{BOOKED:,} leases",
            f"p99 {1000 * p99:.2f} ms of a core; masks built in {built_s:.2f} s",
            "< 5 ms",
        )
    ]


def booked_lane(nodes: int, seed: int = 1) -> tuple[ClassLane, float]:
    """Return a lane with BOOKED leases of an hour, and the seconds that it took to build."""
    rng = random.Random(seed)
    hours = DAYS * 24
    cells = rng.sample(range(nodes * hours), BOOKED)
    begun = time.perf_counter()
    lane = ClassLane((1 << nodes) - 1, 0.0)
    taken = [0] * hours
    for cell in cells:
        taken[cell % hours] |= 1 << cell // hours
    for hour, mask in enumerate(taken):
        lane.take(mask, hour * HOUR_S, (hour + 1) * HOUR_S)
    return lane, time.perf_counter() - begun


def as_page(runs: Runs, rows: Sequence[Row]) -> str:
    """Return the Markdown of docs/benchmarks-scheduling.md."""
    table = "\n".join(f"| {what} | {value} | {goal} |" for what, value, goal in rows)
    return (
        "# Benchmarks of the scheduler\n\n"
        f"Written by `make bench-scheduler TRACES=...` on {date.today().isoformat()}: "
        f"{os.cpu_count()} shared cores, {platform.machine()}, Python "
        f"{platform.python_version()}.\n\n"
        f"| what | measured | goal |\n|---|---|---|\n{table}\n\n"
        "## A month of SDSC Blue Horizon\n\n"
        f"{next(iter(runs['none'].values())).jobs:,} jobs on {NODES} nodes (Parallel Workloads "
        "Archive, the 30 days that the Haizea lease manager ships), alone and with Haizea's leases "
        "on top, which book so many per cent of the nodes' time a day ahead. All four run through "
        "the placement code of the live scheduler. EASY and conservative never start a job that "
        "does not end before the next lease, and serve in order of submission; ours has one "
        "reservation, as EASY, starts jobs that save checkpoints in gaps of half an hour or more, "
        "and serves by age, fair share and length. Such a job keeps what it saved every 10 "
        "minutes and pays 2 minutes for its next start; its wait counts all of the time in which "
        "it did not advance. Times in hours; used counts leases and kept work.\n\n"
        f"{replay_table(runs)}\n\n"
        "Equal runs have equal hashes. These are single runs of one month of one machine; another "
        "workload may order the rules otherwise.\n"
    )


def replay_table(runs: Runs) -> str:
    """Return a Markdown table with a line for each run."""
    head = (
        "| leases | rules | mean wait | median | p95 | slowdown (10 s) | (600 s) | used | fairness "
        "| accepted | cuts | lost node h | hash |\n|" + "---|" * 13
    )
    lines = [
        f"| {load} | {name} | {m.mean_wait_h:.2f} | {m.median_wait_h:.2f} | {m.p95_wait_h:.1f} "
        f"| {m.bounded_slowdown_10:.1f} | {m.bounded_slowdown_600:.2f} | {m.utilisation:.3f} "
        f"| {m.fairness:.3f} | {f'{m.accepted:.1%}' if m.leases else ''} | {m.cuts} "
        f"| {m.lost_node_h:.0f} | `{m.hash}` |"
        for load, found in runs.items()
        for name, m in found.items()
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    sys.exit(main())
