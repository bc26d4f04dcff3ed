"""Records of all waits and errors."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.ratios import percentile


@dataclass
class Records:
    """Waits in seconds, by name, and counts of all answers other than a success."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Counts of errors that no proper click should cause: 5xx, time-outs, lost connections."""

    def wait(self, what: str, seconds: float) -> None:
        """Record one wait."""
        self.waits[what].append(seconds)

    def begin_anew(self) -> dict[str, list[float]]:
        """Forget the waits so far, and return them; counts and errors are kept."""
        before, self.waits = self.waits, defaultdict(list)
        return before

    def of(self, *names: str) -> list[float]:
        """Return all waits of these names together."""
        return [seconds for name in names for seconds in self.waits.get(name, [])]


def spread(seconds: Sequence[float], unit: str = "ms") -> str:
    """Return median, 99th percentile and maximum, in `unit`: ms, or s with two digits."""
    if not seconds:
        return "-"
    times, digits = (1000, 0) if unit == "ms" else (1, 2)
    found = (statistics.median(seconds), percentile(seconds, 0.99), max(seconds))
    return " / ".join(f"{times * one:,.{digits}f}" for one in found)


def lines(records: Records) -> Iterator[tuple[str, str]]:
    """Yield a row of a table for each name: name with number of waits, and their spread."""
    for what, seconds in sorted(records.waits.items()):
        yield f"{what} ({len(seconds):,})", spread(seconds)
