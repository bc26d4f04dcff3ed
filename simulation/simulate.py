"""`python -m simulation TRACE`: replay a workload and print the figures of each policy."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from core.base.errors import ServiceError as TrainyardError
from core.policy.document import Policy, load
from scheduler.queue.backfill import CONSERVATIVE, EASY, FIRST_COME, QueueRules
from simulation.simulated_labs import LabResult, dealt, equal_shares, require_labs
from simulation.simulation import ReplayResult, Simulation
from simulation.traces import BadTrace, Workload, read_workload

POLICIES = {
    "fcfs": partial(Simulation, rules=FIRST_COME),
    "easy": partial(Simulation, rules=EASY),
    "conservative": partial(Simulation, rules=CONSERVATIVE),
    "ours": partial(Simulation, rules=QueueRules(), fair=True),
}
LENDING = "shares"
"""Name of the live scheduler's rules with the shares that the policy promises labs."""
BAR = 30  # characters
COLUMNS: Sequence[tuple[str, Callable[[ReplayResult], str]]] = (
    ("wait h", lambda m: f"{m.mean_wait_h:.2f}"),
    ("median", lambda m: f"{m.median_wait_h:.2f}"),
    ("p95", lambda m: f"{m.p95_wait_h:.2f}"),
    ("slowdown 10 s", lambda m: f"{m.bounded_slowdown_10:.1f}"),
    ("600 s", lambda m: f"{m.bounded_slowdown_600:.2f}"),
    ("used", lambda m: f"{m.utilisation:.3f}"),
    ("fairness", lambda m: f"{m.fairness:.3f}"),
    ("accepted", lambda m: f"{m.accepted:.1%}" if m.leases else "-"),
    ("cuts", lambda m: str(m.cuts)),
    ("lost node h", lambda m: f"{m.lost_node_h:.0f}"),
    ("makespan h", lambda m: f"{m.makespan_h:.1f}"),
    ("hash", lambda m: m.hash),
)
LAB_COLUMNS: Sequence[tuple[str, Callable[[LabResult], str]]] = (
    ("share", lambda m: str(m.share)),
    ("jobs", lambda m: f"{m.jobs:,}"),
    ("node h", lambda m: f"{m.node_h:,.0f}"),
    ("borrowed h", lambda m: f"{m.borrowed_h:,.0f}"),
    ("wait h", lambda m: f"{m.mean_wait_h:.2f}"),
    ("preempted", lambda m: str(m.preempted)),
)


def main() -> int:
    """Replay and print a line for each policy; exit with 2 if the trace can't be read."""
    arguments = parse()
    try:
        workload = read_workload(
            arguments.trace, num_nodes=arguments.nodes, leases=arguments.leases
        )
        workload, policy = with_labs(workload, arguments)
    except (BadTrace, OSError, TrainyardError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    measured = {}
    for name in arguments.policy or [*POLICIES, *([LENDING] if policy else [])]:
        with Bar(name) as bar:
            simulation = POLICIES["ours" if name == LENDING else name]
            replay = simulation(workload, policy=policy, lends=name == LENDING)
            measured[name] = replay.run(bar.show)
    if arguments.json:
        found = {name: asdict(m) for name, m in measured.items()}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(as_table(measured))
        if policy:
            sys.stdout.write(as_table_of_labs(measured))
    return 0


def with_labs(workload: Workload, arguments: argparse.Namespace) -> tuple[Workload, Policy | None]:
    """Return the workload with its users in labs, and the policy that promises the labs shares.

    The policy is None if neither --labs nor --shares is given. Raises BadTrace.
    """
    if arguments.labs:
        workload = dealt(workload, arguments.labs)
    if arguments.shares:
        policy = load(arguments.shares.read_text())
        require_labs(workload, policy)
        return workload, policy
    if arguments.labs:
        return workload, equal_shares(workload)
    if LENDING in (arguments.policy or ()):
        raise BadTrace(f"--policy {LENDING} needs labs: give them --shares, or deal some, --labs 4")
    return workload, None


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("python -m simulation", description=main.__doc__)
    parser.add_argument("trace", type=Path, help="a .swf, .lwf or Alibaba .csv file")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, where the file is silent")
    parser.add_argument("--leases", type=Path, help="a .lwf file of leases to add")
    parser.add_argument(
        "--shares",
        type=Path,
        metavar="POLICY",
        help="a policy (.yaml) whose scheduling.shares, in nodes, the trace's groups have as labs",
    )
    parser.add_argument(
        "--labs",
        type=at_least_one,
        metavar="N",
        help="deal the trace's users into lab-1 to lab-N; without --shares these are equal",
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[*POLICIES, LENDING],
        help=f"one of them; repeatable; default: all, {LENDING} where labs have some",
    )
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    return parser.parse_args()


def at_least_one(text: str) -> int:
    """Return a number of labs; raises ValueError if it is less than 1."""
    if int(text) < 1:
        raise ValueError("less than 1")
    return int(text)


class Bar:
    """A progress bar on a terminal; silence elsewhere."""

    def __init__(self, name: str) -> None:
        self._name, self._shown = name, -1
        self._is_seen = sys.stderr.isatty()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_seen:
            sys.stderr.write("\r\033[K")

    def show(self, share: float) -> None:
        """Redraw the bar if `share` (0 to 1) has reached another per cent."""
        percent = int(share * 100)
        if self._is_seen and percent != self._shown:
            self._shown = percent
            full = "#" * (BAR * percent // 100)
            sys.stderr.write(f"\r{self._name:>12} [{full:<{BAR}}] {percent:3} %")
            sys.stderr.flush()


def as_table(measured: dict[str, ReplayResult]) -> str:
    """Return a table with a line for each policy, below the workload's name and size."""
    rows = [["", *(title for title, _ in COLUMNS)]]
    rows += [[name, *(show(m) for _, show in COLUMNS)] for name, m in measured.items()]
    one = next(iter(measured.values()))
    return f"{one.workload}: {one.jobs:,} jobs, {one.leases:,} leases\n{_aligned(rows)}"


def as_table_of_labs(measured: dict[str, ReplayResult]) -> str:
    """Return a table with a line for each lab under each policy."""
    rows = [["", "lab", *(title for title, _ in LAB_COLUMNS)]]
    for name, of_policy in measured.items():
        for lab, m in of_policy.labs.items():
            rows.append([name, lab or "(no lab)", *(show(m) for _, show in LAB_COLUMNS)])
    return f"\n{_aligned(rows)}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
