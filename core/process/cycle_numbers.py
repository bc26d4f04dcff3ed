"""Durations of the scheduler's cycles: counted in the scheduler, reported by every API.

Counts of one process, from its start on; the next leader begins anew, as counters may.
"""

from bisect import bisect_left
from datetime import datetime
from itertools import accumulate

from pydantic import BaseModel, Field

# 1.25: a quiet scheduler rests for a second and a little.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.25, 2.5, 5.0)


class Durations(BaseModel):
    """A histogram of seconds."""

    buckets_s: list[float] = list(BUCKETS_S)
    """Upper bounds of the buckets, sent with the counts: an API of another version reports them as
    they are."""
    counts: list[int] = Field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Number of durations in each bucket, and last of those above the last bound."""
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more duration."""
        self.counts[bisect_left(self.buckets_s, seconds)] += 1
        self.total_s += seconds

    def at_most(self) -> list[tuple[str, float]]:
        """Return the cumulative counts, each with its upper bound as Prometheus names buckets."""
        names = [*(str(seconds) for seconds in self.buckets_s), "+Inf"]
        return [(name, float(n)) for name, n in zip(names, accumulate(self.counts), strict=False)]


class CycleNumbers(BaseModel):
    """The cycles of one scheduler."""

    cycles: Durations = Field(default_factory=Durations)
    pauses: Durations = Field(default_factory=Durations)
    """Pauses from the end of a cycle to the start of the next."""
    ended_at: datetime | None = None
    """End of the last cycle."""
