"""Bands of the day, such as the night, and the local days and weeks that quotas count by. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from core.policy.grid import HOUR
from core.policy.local_time import edge

DAY = timedelta(days=1)
NO_TIME = timedelta(0)
CACHED_DAYS = 4000


class Crossing(StrEnum):
    """Treatment of a lease that lies only in part in a band."""

    COUNTS_AS_DAY = "counts_as_day"
    PRORATE = "prorate"
    FORBID = "forbid"


@dataclass(frozen=True)
class LocalSpan:
    """A band by local clock time; it ends on the next day if `end` is not after `start`."""

    name: str
    start: time
    end: time
    weekdays: frozenset[int]
    """Weekdays on which it starts; Monday is 0."""


@dataclass(frozen=True)
class BandPosition:
    """Place of a hold in the day."""

    band: str | None
    """The band that it counts in."""
    night: date | None
    """The local date on which that band began; None by day."""
    outside: timedelta
    """Time of the hold that lies outside all local spans."""
    crosses: bool


class BandClock:
    """Finder of a hold's band, by local civil date. Days are cached."""

    def __init__(self, zone: ZoneInfo, spans: Sequence[LocalSpan], rest: str | None) -> None:
        self.zone = zone
        self._spans = tuple(spans)
        self._rest = rest
        self._days: dict[date, tuple[tuple[str, datetime, datetime], ...]] = {}
        self._places: dict[tuple[datetime, datetime], BandPosition] = {}

    def place(self, start: datetime, end: datetime) -> BandPosition:
        """Return the place of a hold: in a local span only if all of it is, else in the rest of the
        day."""
        if not self._spans:
            return BandPosition(self._rest, None, end - start, False)
        known = self._places.get((start, end))
        if known is None:
            if len(self._places) > CACHED_DAYS:
                self._places.clear()
            known = self._places[start, end] = self._look_for(start, end)
        return known

    def _look_for(self, start: datetime, end: datetime) -> BandPosition:
        inside = NO_TIME
        day = self.local_date(start) - DAY
        last = self.local_date(end)
        while day <= last:
            for name, opens, closes in self.spans_of(day):
                if opens <= start and end <= closes:
                    return BandPosition(name, day, NO_TIME, False)
                overlap = min(end, closes) - max(start, opens)
                if overlap > NO_TIME:
                    inside += overlap
            day += DAY
        return BandPosition(self._rest, None, end - start - inside, inside > NO_TIME)

    def spans_of(self, day: date) -> tuple[tuple[str, datetime, datetime], ...]:
        """Return name, start and end (UTC) of the spans that begin on a local date."""
        known = self._days.get(day)
        if known is None:
            if len(self._days) > CACHED_DAYS:
                self._days.clear()
            known = tuple(self._on(span, day) for span in self._spans if _falls(span, day))
            self._days[day] = known
        return known

    def touched(self, start: datetime, end: datetime) -> set[str]:
        """Return the names of the local spans that [start, end) overlaps; at most a fortnight of
        it."""
        found = set()
        day = self.local_date(start) - DAY
        last = min(self.local_date(end), day + 15 * DAY)
        while day <= last:
            found |= {name for name, a, b in self.spans_of(day) if a < end and b > start}
            day += DAY
        return found

    def local_date(self, moment: datetime) -> date:
        """Return the civil date in the policy's zone."""
        return moment.astimezone(self.zone).date()

    def week(self, moment: datetime) -> tuple[int, int]:
        """Return year and number of the ISO week, which begins on Monday."""
        year, week, _ = self.local_date(moment).isocalendar()
        return year, week

    def _on(self, span: LocalSpan, day: date) -> tuple[str, datetime, datetime]:
        last = day if span.end > span.start else day + DAY
        opens = edge(datetime.combine(day, span.start), self.zone)
        closes = edge(datetime.combine(last, span.end), self.zone)
        return span.name, opens, closes


def whole_hours(length: timedelta) -> int:
    """Return the number of hours, begun ones included."""
    return -(-length // HOUR)


def _falls(span: LocalSpan, day: date) -> bool:
    return day.weekday() in span.weekdays
