"""Days and weeks on the clock of a zone, and the share of a stretch of time in each. Pure."""

from collections.abc import Iterator
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

    def hours_of(self, start: datetime, end: datetime) -> float:
        """Return the hours of [start, end) inside it. Elapsed hours: a day may have 23 or 25."""
        inside = min(end, self.end) - max(start, self.start)
        return max(0.0, inside / timedelta(hours=1))


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
