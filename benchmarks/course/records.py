"""What everybody waited for, and what went wrong."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.ratios import percentile


@dataclass
class Records:
    """Seconds by what was waited for, and counts of everything that was no plain answer."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What no honest click should meet: 5xx, time-outs, lost connections."""

    def wait(self, what: str, seconds: float) -> None:
        """Somebody waited."""
        self.waits[what].append(seconds)

    def begin_anew(self) -> dict[str, list[float]]:
        """Forget the waits so far, and return them; what went wrong is kept."""
        before, self.waits = self.waits, defaultdict(list)
        return before

    def of(self, *names: str) -> list[float]:
        """All waits of these names together."""
        return [seconds for name in names for seconds in self.waits.get(name, [])]


def spread(seconds: Sequence[float], unit: str = "ms") -> str:
    """Median, 99th percentile and maximum."""
    if not seconds:
        return "-"
    times, digits = (1000, 0) if unit == "ms" else (1, 2)
    found = (statistics.median(seconds), percentile(seconds, 0.99), max(seconds))
    return " / ".join(f"{times * one:,.{digits}f}" for one in found)


def lines(records: Records) -> Iterator[tuple[str, str]]:
    """Every wait, as rows of a table."""
    for what, seconds in sorted(records.waits.items()):
        yield f"{what} ({len(seconds):,})", spread(seconds)
