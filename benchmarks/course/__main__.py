"""`make bench-course`: a course's busiest hours on two cores; writes docs/benchmarks-course.md."""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path

import uvloop

from benchmarks.course import lab_hour, last_evening, opening, sign_ins
from benchmarks.course.houses import House, standing
from benchmarks.course.outcomes import Outcome
from benchmarks.course.storm import STUDENTS, Scale

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-course.md"
Scenario = Callable[[House, Scale], Awaitable[Outcome]]
SCENARIOS: dict[str, Scenario] = {
    "opening": opening.run,
    "lab-hour": lab_hour.run,
    "last-evening": last_evening.run,
    "sign-ins": sign_ins.run,
}
KINDS = ("sqlite", "postgresql")
HOW = """\
The whole platform, and everybody who uses it, on the same cores: on SQLite as `trainyard up`
starts it, on PostgreSQL with two APIs on one socket and two schedulers. Seven nodes speak the node
protocol and report curves and logs twice a second; the rules are those of
`examples/policies/course.yaml`, the windows moved to today. 191 students, signed in from one
address, have simulated browsers, in one process with the nodes: what they ask, in which order, over
at most six connections, when they ask again and when they wait is what the scripts of the pages do.
In the opening minute pages of a real Chromium may be there beside them (`--chromium 10`).

Waits are what a person feels: from the click, the browser's own queue included, until the whole
answer is there; a click that is asked again because the server was away counts from the first time.
What a page reads by itself may be put off by the server (503 with Retry-After): that is counted,
and is no error.
"""


def main() -> int:
    """Play the scenarios and write the page; parts of them are only printed."""
    parser = argparse.ArgumentParser("make bench-course", description=main.__doc__)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="one scenario")
    parser.add_argument("--database", choices=KINDS, action="append")
    parser.add_argument("--seconds", type=float, default=100.0, help="of clicking; 100")
    parser.add_argument("--students", type=int, default=STUDENTS)
    parser.add_argument("--chromium", type=int, default=0, help="real pages in the opening minute")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # nothing is left over
    scale = Scale(students=asked.students, seconds=asked.seconds, chromium=asked.chromium)
    outcomes = []
    for name in asked.only or SCENARIOS:
        for kind in asked.database or KINDS:
            sys.stderr.write(f"measuring: {name}, {kind}\n")
            with standing(kind) as house:
                outcomes.append(uvloop.run(_played(SCENARIOS[name](house, scale))))
            sys.stdout.write(f"{outcomes[-1].as_markdown()}\n")
            sys.stdout.flush()
    if not asked.only and not asked.database and scale == Scale(chromium=asked.chromium):
        PAGE.write_text(as_page(outcomes))
    return 0


async def _played(playing: Awaitable[Outcome]) -> Outcome:
    return await playing


def as_page(outcomes: list[Outcome]) -> str:
    """Return the Markdown of docs/benchmarks-course.md."""
    sections = "\n".join(outcome.as_markdown() for outcome in outcomes)
    return (
        "# Benchmarks of a course\n\n"
        f"Written by `make bench-course` on {date.today().isoformat()}: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}.\n\n{HOW}\n{sections}"
    )


if __name__ == "__main__":
    sys.exit(main())
