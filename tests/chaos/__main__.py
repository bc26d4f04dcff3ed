"""`python -m tests.chaos`: rounds of faults against a whole platform, and the table of what came.

The exit code is the number of rounds, at most 99, in which something was lost, doubled or broken.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from tests.chaos.campaign import Report, plan_round, play
from tests.chaos.counting import Finding
from tests.chaos.faults import Fault, faults_for
from tests.chaos.fleet import running_fleet
from tests.chaos.table import summary, table
from tests.chaos.workbenches import FAULTS, PEOPLE, SLOTS, play_workbenches
from worker.scripts.sandbox import find_level


def main() -> int:
    """Play the rounds that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier campaign, to replay")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    arguments = parser.parse_args()
    seed = random.randrange(10_000) if arguments.seed is None else arguments.seed
    faults = faults_for(arguments.database, is_root=os.geteuid() == 0)
    if arguments.only:
        faults = {name: faults[name] for name in arguments.only.split(",")}
    say(f"seed {seed}, {arguments.rounds} rounds, {len(faults)} faults, {arguments.database}")
    began, reports = time.monotonic(), []
    with running_fleet(arguments.database) as fleet:
        say(f"The platform is up after {time.monotonic() - began:.0f} s.")
        for number in range(arguments.first, arguments.first + arguments.rounds):
            report = play(fleet, plan_round(seed, number, sorted(faults)), faults)
            reports.append(report)
            tell(report)
        bad = sum(not report.is_good for report in reports)
        if bad:
            say(f"{bad} bad rounds: the logs stay in {fleet.keep_logs()}")
    lost = workbenches(seed, faults, arguments.database)
    if reports:
        say("", table(reports), "", summary(reports, seed, time.monotonic() - began))
    return min(99, bad + len(lost))


def workbenches(seed: int, faults: Mapping[str, Fault], database: str) -> Sequence[Finding]:
    """Sit in front of workbenches on a platform of their own; return what they have lost."""
    if why := find_level().reason:
        say(f"No workbenches: no sandbox can be built here: {why}")
        return []
    with running_fleet(database, slots=SLOTS) as fleet:
        lost = play_workbenches(fleet, faults, seed)
    struck = sum(name in faults for name in FAULTS)
    say(f"Workbenches of {PEOPLE} people, {struck} faults: {len(lost)} shells lost", *lost)
    return lost


def tell(report: Report) -> None:
    """One line a round, and one for everything that is wrong."""
    recovered = "never" if report.recovery_s is None else f"{report.recovery_s:.1f} s"
    mark = "ok " if report.is_good else "BAD"
    say(
        f"{mark} round {report.plan.number:4} {report.submitted} jobs, recovered {recovered}, "
        f"{report.took_s:.1f} s: {report.plan.fault_names}"
    )
    for finding in (*report.lost, *report.doubled, *report.broken):
        say(f"      {finding}")


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
