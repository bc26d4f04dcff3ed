"""Days as people name them, against a calendar."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from trainyard.days import Days, read_days

TODAY = date(2026, 11, 26)  # a Thursday


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("today", "2026-11-26", "2026-11-26"),
        (" Yesterday ", "2026-11-25", "2026-11-25"),
        ("this week", "2026-11-23", "2026-11-29"),
        ("last week", "2026-11-16", "2026-11-22"),
        ("last 7 days", "2026-11-20", "2026-11-26"),
        ("last month", "2026-10-01", "2026-10-31"),
        ("2026-02", "2026-02-01", "2026-02-28"),
        ("2026-11-20", "2026-11-20", "2026-11-20"),
        ("from 2026-11-18 to 2026-11-20", "2026-11-18", "2026-11-20"),
        ("2026-11-18..2026-11-20", "2026-11-18", "2026-11-20"),
        ("last week to yesterday", "2026-11-16", "2026-11-25"),
        ("2026-11-18 ..", "2026-11-18", "2026-11-26"),
        (".. 2026-11-18", "0001-01-01", "2026-11-18"),
    ],
)
def test_named_days_are_those_of_the_calendar(text: str, first: str, last: str) -> None:
    wanted = Days(date.fromisoformat(first), date.fromisoformat(last))
    assert read_days(text, today=TODAY) == wanted


@pytest.mark.parametrize("text", ["", "gpt", "2026-02-30", "2026-13", "monday", "0000-00"])
def test_other_texts_are_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(ValueError, match="last week"):
        read_days(text, today=TODAY)


def test_days_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        read_days("2026-11-20 to 2026-11-18", today=TODAY)


def test_a_day_on_which_clocks_change_has_25_hours() -> None:
    begin, end = read_days("2026-10-25", today=TODAY).span(ZoneInfo("Europe/Berlin"))
    assert begin.astimezone(UTC) == datetime(2026, 10, 24, 22, tzinfo=UTC)
    assert end.astimezone(UTC) == datetime(2026, 10, 25, 23, tzinfo=UTC)


def test_all_days_until_one_have_a_moment_in_every_zone() -> None:
    begin, _ = read_days(".. 2026-11-18", today=TODAY).span(ZoneInfo("Pacific/Auckland"))
    assert begin.astimezone(UTC).year < 3
