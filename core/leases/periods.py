"""Days and weeks on the clock of a zone, and the share of a stretch of time in each. Pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo


class Per(StrEnum):
    """Length of a period."""

    DAY = "day"
    WEEK = "week"
    """Seven days from Monday."""


@dataclass(frozen=True)
class Period:
    """A day or week, named by its `first` day; [start, end) in UTC."""

    first: date
    start: datetime
    end: datetime


class HourSums:
    """Hours of GPUs or CPU slots in each of some periods in a row, by name."""

    def __init__(self, cut: Sequence[Period]) -> None:
        """Begin with no hours in any of these periods."""
        self._starts, self._ends = [one.start for one in cut], [one.end for one in cut]
        self._sums: defaultdict[tuple[str, int], timedelta] = defaultdict(timedelta)

    def add(self, name: str, start: datetime, end: datetime, gpus: int) -> None:
        """Add so many GPUs, held or at work from start to end."""
        for number in range(bisect_right(self._ends, start), len(self._ends)):
            if self._starts[number] >= end:
                break
            inside = min(end, self._ends[number]) - max(start, self._starts[number])
            self._sums[name, number] += inside * gpus

    def of(self, name: str, number: int) -> float:
        """Return the hours in a period. They have passed: a day may have 23 or 25."""
        return round(self._sums.get((name, number), timedelta()) / timedelta(hours=1), 4)

    @property
    def names(self) -> set[str]:
        """Names that have hours."""
        return {name for name, _ in self._sums}


def periods(start: datetime, end: datetime, *, per: Per, zone: ZoneInfo) -> Iterator[Period]:
    """Yield all periods that [start, end) touches, clipped to it."""
    day = start.astimezone(zone).date()
    if per is Per.WEEK:
        day -= timedelta(days=day.weekday())
    step = timedelta(days=7 if per is Per.WEEK else 1)
    while _midnight(day, zone) < end:
        following = day + step
        yield Period(day, max(start, _midnight(day, zone)), min(end, _midnight(following, zone)))
        day = following


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)
