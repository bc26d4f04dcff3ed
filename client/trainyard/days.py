"""Days as people name them, `yesterday` or `2026-11-20`, and the span of time that each covers."""

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

EXAMPLES = ("today", "yesterday", "this week", "last week", "last 7 days", "2026-11-20", "2026-11")
SEPARATOR = re.compile(r"\s*\.\.\s*|\s+(?:to|until)\s+")
LAST = re.compile(r"last (\d{1,3}) days?")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
MONTH = re.compile(r"(\d{4})-(\d{2})")


@dataclass(frozen=True)
class Days:
    """Whole days in a row."""

    first: date
    last: date

    def span(self, zone: tzinfo | None) -> tuple[datetime, datetime]:
        """Return the first moment of these days and the first one after them. A zone of None is
        that of this machine."""
        return _midnight(self.first, zone), _midnight(self.last + timedelta(days=1), zone)


def read_days(text: str, *, today: date) -> Days:
    """Return the days that a text names: one of EXAMPLES, or `2026-11-18 to 2026-11-20`.

    One side of `to` may be left out (`2026-11-18 ..`). Raises ValueError for other texts.
    """
    words = " ".join(text.lower().replace("\u2013", " to ").split())
    if words.startswith("from "):
        words = words.removeprefix("from ")
    first, *rest = SEPARATOR.split(words, maxsplit=1)
    if not rest:
        return _named(words, text, today)
    if not first and not rest[0]:
        raise _refusal(text)
    begin = _named(first, text, today).first if first else date.min
    end = _named(rest[0], text, today).last if rest[0] else today
    if end < begin:
        raise ValueError(f"{text!r} ends before it begins; write the earlier day first")
    return Days(begin, end)


def _named(words: str, text: str, today: date) -> Days:
    week = today - timedelta(days=today.weekday())
    named = {
        "today": Days(today, today),
        "yesterday": Days(today - timedelta(days=1), today - timedelta(days=1)),
        "this week": Days(week, week + timedelta(days=6)),
        "last week": Days(week - timedelta(days=7), week - timedelta(days=1)),
        "this month": _month(today.year, today.month),
        "last month": _month(*_before(today)),
    }
    if words in named:
        return named[words]
    try:
        if days := LAST.fullmatch(words):
            return Days(today - timedelta(days=max(1, int(days[1])) - 1), today)
        if DAY.fullmatch(words):
            return Days(date.fromisoformat(words), date.fromisoformat(words))
        if month := MONTH.fullmatch(words):
            return _month(int(month[1]), int(month[2]))
    except ValueError as error:
        raise _refusal(text) from error
    raise _refusal(text)


def _refusal(text: str) -> ValueError:
    return ValueError(
        f"{text!r} does not name days; write {', '.join(EXAMPLES)}, or 2026-11-18 to 2026-11-20"
    )


def _before(day: date) -> tuple[int, int]:
    last = day.replace(day=1) - timedelta(days=1)
    return last.year, last.month


def _month(year: int, month: int) -> Days:
    first = date(year, month, 1)
    following = (first + timedelta(days=31)).replace(day=1)
    return Days(first, following - timedelta(days=1))


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    # A day before the year 2 has no moment in UTC in every zone; nothing was submitted then.
    at = datetime.combine(max(day, date(2, 1, 1)), time(), tzinfo=zone)
    return at.astimezone() if zone is None else at
