"""Days and weeks on the clock of a zone, and how much of a stretch of time lies in each. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo


class Per(StrEnum):
    """How time is cut."""

    DAY = "day"
    WEEK = "week"
    """From Monday."""


@dataclass(frozen=True)
class Period:
    """A day or week: `first` names it, [start, end) is what it is in UTC."""

    first: date
    start: datetime
    end: datetime

    def hours_of(self, start: datetime, end: datetime) -> float:
        """Hours of [start, end) that lie in it. Elapsed ones: a day may have 23 or 25."""
        inside = min(end, self.end) - max(start, self.start)
        return max(0.0, inside / timedelta(hours=1))


def periods(start: datetime, end: datetime, *, per: Per, zone: ZoneInfo) -> Iterator[Period]:
    """All that [start, end) touches, cut off at its ends."""
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
