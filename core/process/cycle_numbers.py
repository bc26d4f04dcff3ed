"""How long the scheduler's cycles take: counted where they run, told by every API.

Counts of one process, from its start on; whoever leads next begins anew, as counters may.
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
    """Told with the counts: an API of another version tells them as they are."""
    counts: list[int] = Field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """One a bucket, and what is above the last one."""
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.buckets_s, seconds)] += 1
        self.total_s += seconds

    def at_most(self) -> list[tuple[str, float]]:
        """How many took at most so long, as Prometheus names buckets."""
        names = [*(str(seconds) for seconds in self.buckets_s), "+Inf"]
        return [(name, float(n)) for name, n in zip(names, accumulate(self.counts), strict=False)]


class CycleNumbers(BaseModel):
    """The cycles of one scheduler."""

    cycles: Durations = Field(default_factory=Durations)
    pauses: Durations = Field(default_factory=Durations)
    """From the end of a cycle to the start of the next."""
    ended_at: datetime | None = None
    """The last one."""
