"""The table of a campaign: a row a fault."""

import statistics
from collections.abc import Sequence

from tests.chaos.campaign import Report


def table(reports: Sequence[Report]) -> str:
    """Markdown: faults, rounds, jobs, lost, doubled, time to recover."""
    lines = [
        "| fault | rounds | jobs | lost | doubled | recovered, median | longest |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    names = sorted({strike.fault for report in reports for strike in report.plan.strikes})
    lines += [
        _row(name, [r for r in reports if name in {s.fault for s in r.plan.strikes}])
        for name in names
    ]
    return "\n".join([*lines, _row("**all**", reports)])


def summary(reports: Sequence[Report], seed: int, took_s: float) -> str:
    """One sentence."""
    bad = sum(not report.is_good for report in reports)
    return (
        f"Seed {seed}: {len(reports)} rounds in {took_s / 60:.1f} min, "
        f"{sum(r.submitted for r in reports)} jobs, {sum(len(r.lost) for r in reports)} lost, "
        f"{sum(len(r.doubled) for r in reports)} doubled, {bad} rounds with a finding."
    )


def _row(name: str, reports: Sequence[Report]) -> str:
    times = [r.recovery_s for r in reports if r.recovery_s is not None]
    never = len(reports) - len(times)
    median = f"{statistics.median(times):.1f} s" if times else "-"
    longest = "never" if never else f"{max(times):.1f} s"
    cells = (
        name.replace("_", " "),
        len(reports),
        sum(r.submitted for r in reports),
        sum(len(r.lost) for r in reports),
        sum(len(r.doubled) for r in reports),
        median,
        longest,
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
