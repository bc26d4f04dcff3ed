"""Ratios of measurements taken in turn: A B A B ..., so that a drifting machine affects both."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """Median of the pairwise ratios, with a 95 % bootstrap interval of that median."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return ours / theirs, pair by pair."""
    quotients = [a / b for a, b in zip(ours, theirs, strict=True)]
    draw = random.Random(1)
    medians = sorted(
        statistics.median(draw.choices(quotients, k=len(quotients))) for _ in range(RESAMPLES)
    )
    return Ratio(
        median=statistics.median(quotients),
        low=medians[int(0.025 * RESAMPLES)],
        high=medians[int(0.975 * RESAMPLES)],
        pairs=len(quotients),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
