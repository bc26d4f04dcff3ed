"""Days that a viewer names in a search, `last week`, as moments in the zone of the browser."""

from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trainyard.days import read_days

MOST_WORDS = 12  # of a search that are read for days


@dataclass(frozen=True)
class Span:
    """Time from one moment to just before another."""

    since: datetime
    until: datetime

    def query(self) -> dict[str, str]:
        """The same for the API."""
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


def zone_of(*names: str) -> ZoneInfo:
    """Return the first of these zones that is known, or UTC."""
    for name in names:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return ZoneInfo("UTC")


def span_of(text: str, zone: ZoneInfo, *, now: datetime) -> Span:
    """Return the time that named days cover. Raises ValueError if the text names none."""
    days = read_days(text, today=now.astimezone(zone).date())
    return Span(*days.span(zone))


def split_days(text: str, zone: ZoneInfo, *, now: datetime) -> tuple[str, str]:
    """Split `gpt last week` into other words and those that name days, as many as can be."""
    words = text.split()[:MOST_WORDS]
    for begin, end in sorted(combinations(range(len(words) + 1), 2), key=lambda at: at[0] - at[1]):
        days = " ".join(words[begin:end])
        try:
            span_of(days, zone, now=now)
        except ValueError:
            continue
        return " ".join(words[:begin] + text.split()[end:]), days
    return text, ""
