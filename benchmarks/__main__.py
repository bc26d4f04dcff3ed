"""`make bench`: measure everything and write docs/benchmarks.md, in half an hour."""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from benchmarks import (
    booking,
    pages,
    placement,
    plans,
    service,
    training,
    usage,
    watching,
    workbenches,
)
from benchmarks.ratios import ratio

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


Row = tuple[str, str, str]


def main() -> None:
    """Measure and write the page."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repeats, prints only")
    arguments.add_argument(
        "--only", action="append", choices=[*sections(quick=True)], help="one part, prints only"
    )
    asked = arguments.parse_args()
    parts = sections(quick=asked.quick)
    rows: list[Row] = []
    for name in asked.only or parts:
        rows += (found := parts[name]())
        sys.stderr.write(as_lines(found))  # what fails later does not take it away
    page = as_page(rows)
    sys.stdout.write(page)
    if not (asked.quick or asked.only):
        PAGE.write_text(page)


def sections(*, quick: bool) -> dict[str, Callable[[], list[Row]]]:
    """Return the parts of the page by name, in their order."""
    return {
        "launch": lambda: launch_rows(pairs=2 if quick else 5),
        # A round takes a little more than a minute.
        "steps": lambda: step_rows(rounds=2 if quick else 30),
        "service": lambda: service_rows(seconds=2 if quick else 10),
        "streams": lambda: watching_rows(
            streams=100 if quick else 1000, seconds=3 if quick else 10
        ),
        "bookings": lambda: booking_rows(rounds=2 if quick else 30),
        "usage": usage_rows,
        "memory": memory_rows,
        "placement": placement_rows,
        "plans": plan_rows,
        "pages": lambda: page_rows(pairs=3 if quick else 10),
        "workbenches": lambda: workbench_rows(keys=50 if quick else 400, starts=2 if quick else 5),
    }


def launch_rows(*, pairs: int) -> list[Row]:
    """Measure the time from submission to the first step."""
    tell("submit to first step")
    warm, torchrun, by_hand = training.first_step(pairs)
    goal = "ratio <= 0.10"
    by_warm, by_torchrun = ratio(warm, by_hand), ratio(torchrun, by_hand)
    hand = f"{statistics.median(by_hand):.2f} s"
    return [
        (
            "submit over HTTP to first step, warm launcher / plain torchrun by hand",
            f"{by_warm}; {statistics.median(warm):.2f} s / {hand}",
            goal,
        ),
        (
            "the same, torchrun started by the platform / by hand",
            f"{by_torchrun}; {statistics.median(torchrun):.2f} s / {hand}",
            "",
        ),
    ]


def step_rows(*, rounds: int) -> list[Row]:
    """Measure the step time."""
    tell("step time")
    found = training.step_time(rounds)
    return [
        (
            "step time under the platform, of a job that nobody watches, on cores that it shares / "
            "plain torchrun, while the platform stands still",
            f"{found.medians}; of mean steps {found.means}",
            "ratio <= 1.005",
        ),
        (
            "the same, torchrun being told to use huge pages as a job's ranks are",
            str(found.alike),
            "",
        ),
        (
            "the same, by nothing but the time that the ranks wait for a core",
            str(found.waits),
            "ratio <= 1.005",
        ),
    ]


def service_rows(*, seconds: float) -> list[Row]:
    """Measure submissions, metric points and a long chart, on both databases."""
    rows = []
    for kind, points_goal in (("sqlite", 150_000), ("postgresql", 150_000)):
        tell(f"API on {kind}")
        with service.serving(kind) as served:
            attempt = service.running_attempt(served)
            points, few_points = (
                service.metric_points(served, seconds, attempt, lines=lines, first_rank=first)
                for lines, first in ((120, 0), (6, service.CLIENTS))
            )
            chart_ms = service.long_chart(served, attempt)
            service.drain(served)
            rate, p99_ms, _ = service.submissions(served, seconds)
        rows += [
            (
                f"submissions per second, {kind}",
                f"{rate:.0f}/s, p99 {p99_ms:.0f} ms",
                ">= 600/s, p99 < 100 ms" if kind == "sqlite" else ">= 500/s, p99 < 100 ms",
            ),
            (
                f"metric points per second, 8 clients, {kind}",
                f"{points:,.0f}",
                f">= {points_goal:,}",
            ),
            (
                f"metric points per second, 48 a call, 8 clients, {kind}",
                f"{few_points:,.0f}",
                ">= 40,000",
            ),
            (f"chart of 1,000,000 points, {kind}", f"{chart_ms:.0f} ms", "< 50 ms"),
        ]
    return rows


def watching_rows(*, streams: int, seconds: float) -> list[Row]:
    """Measure live streams."""
    tell("watching")
    return watching.rows(streams=streams, seconds=seconds)


def booking_rows(*, rounds: int) -> list[Row]:
    """Measure a race for one hour."""
    tell("booking")
    return booking.rows(rounds)


def usage_rows() -> list[Row]:
    """Measure a sum of use on both databases."""
    tell("use of four weeks")
    return usage.rows()


def memory_rows() -> list[Row]:
    """Measure the memory of an idle platform."""
    tell("idle memory")
    sizes = service.idle_memory()
    parts = ", ".join(
        f"{name} {size:.0f}" for name, size in sorted(sizes.items(), key=lambda item: -item[1])
    )
    what = "idle memory (PSS) of everything that `trainyard up` starts"
    return [(what, f"{sum(sizes.values()):.0f} MiB ({parts})", "<= 250 MiB")]


def placement_rows() -> list[Row]:
    """Measure the planning of a long queue."""
    tell("placement")
    return placement.rows()


def plan_rows() -> list[Row]:
    """Measure plans, cold and from the cache."""
    tell("plans")
    return plans.rows()


def page_rows(*, pairs: int) -> list[Row]:
    """Measure the time until a job's page is painted."""
    tell("pages")
    return pages.rows(pairs=pairs)


def workbench_rows(*, keys: int, starts: int) -> list[Row]:
    """Measure the echo and the start of workbenches."""
    tell("workbenches")
    return workbenches.rows(keys, starts)


def as_page(rows: list[Row]) -> str:
    """Return the Markdown of docs/benchmarks.md."""
    return (
        "# Benchmarks\n\n"
        f"Written by `make bench` on {date.today().isoformat()}: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}. Medians. Ratios are of "
        "measurements taken in turn in one run, with the 95 % interval of the median. Everything "
        "runs on the whole platform as `trainyard up` starts it; clients and database share the "
        f"machine. Load of the last 15 minutes: {os.getloadavg()[2]:.1f}.\n\n"
        f"| what | measured | goal |\n|---|---|---|\n{as_lines(rows)}"
    )


def as_lines(rows: list[Row]) -> str:
    """Return the lines of a table."""
    return "".join(f"| {what} | {value} | {goal} |\n" for what, value, goal in rows)


def tell(what: str) -> None:
    """Print the name of the present measurement on standard error."""
    sys.stderr.write(f"measuring: {what}\n")


if __name__ == "__main__":
    main()
