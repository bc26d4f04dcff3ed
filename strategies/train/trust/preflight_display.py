"""Report of a preflight for people: progress, a table, a bar chart, sentences."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from strategies.plan.trust.preflight_report import Report, Timing, Verdict, size_text

BAR_WIDTH = 44
MARGIN = 22  # width of the longest name of a collective, with its operation
PLAIN_WIDTH = 100  # if the output is not a terminal
HEADLINES = {
    Verdict.HEALTHY: "healthy",
    Verdict.WRONG_VALUES: "WRONG VALUES",
    Verdict.SLOW_RANK: "SLOW RANK",
    Verdict.RANKS_MISSING: "RANKS MISSING",
}


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; yield the function to call with the number of completed checks."""
    bar = Progress(
        TextColumn("preflight"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        transient=True,
        disable=not sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task("preflight", total=total)
        yield lambda done: bar.update(task, completed=done)


def show(report: Report, console: Console | None = None) -> None:
    """Print the table, the chart, and the findings."""
    console = console or new_console()
    if report.timings:
        console.print(table(report))
        console.print(chart(report))
    healthy = report.verdict is Verdict.HEALTHY
    seconds = f"{len(report.timings)} checks in {report.seconds:.1f} s"
    ranks = f"{len(report.ranks)} ranks, {report.device}, {report.backend}, torch {report.torch}"
    headline = f"{HEADLINES[report.verdict]}: {ranks}, {seconds}"
    console.print(Text(headline, style="bold green" if healthy else "bold red"))
    if report.transport is not None:
        console.print(Text(f"transport: {report.transport}"), soft_wrap=True)
    for sentence in (*report.findings, *(f"Note: {warning}" for warning in report.warnings)):
        console.print(Text(sentence), soft_wrap=True)


def new_console() -> Console:
    """Return a console as wide as the terminal, or PLAIN_WIDTH without one."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)


def table(report: Report) -> Table:
    """Return a table with a row per check."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("collective", "operation", "dtype"):
        found.add_column(name)
    for name in ("size", "ok", "p50 ms", "p95 ms", "bus GB/s", "slowest rank"):
        found.add_column(name, justify="right")
    for row in report.timings:
        found.add_row(
            row.check.collective,
            row.check.operation or "",
            row.check.dtype,
            size_text(row.check.size_bytes),
            Text("yes") if row.right else Text("NO", style="bold red"),
            f"{row.p50_ms:.3f}",
            f"{row.p95_ms:.3f}",
            f"{row.bus_gb_per_s:.3g}",
            str(row.slowest_rank),
        )
    return found


def chart(report: Report) -> Text:
    """Return bars of the bus bandwidth of every collective at the largest size of float32."""
    rows = largest_sums(report)
    widest = max((row.bus_gb_per_s for row in rows), default=0.0)
    lines = []
    for row in rows:
        bar = "█" * max(1, round(BAR_WIDTH * row.bus_gb_per_s / widest))
        lines.append(f"{name_of(row):<{MARGIN}} {bar} {row.bus_gb_per_s:.3g}")
    size = size_text(max((row.check.size_bytes for row in rows), default=0))
    return Text("\n".join(["", f"bus bandwidth in GB/s, float32, {size}", *lines, ""]))


def largest_sums(report: Report) -> list[Timing]:
    """Return the rows of float32 at the largest checked size."""
    rows = [row for row in report.timings if row.check.dtype == "float32"]
    largest = max((row.check.size_bytes for row in rows), default=0)
    return [row for row in rows if row.check.size_bytes == largest]


def name_of(row: Timing) -> str:
    """Return `all_reduce sum`."""
    return f"{row.check.collective} {row.check.operation or ''}".rstrip()
