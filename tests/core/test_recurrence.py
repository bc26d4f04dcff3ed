"""Recurring hours keep their clock time, whatever the clocks do."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from core.base.errors import BadRequest
from core.leases.recurrence import occurrences

NEW_YORK = ZoneInfo("America/New_York")


def local(rule: str | None, first: str) -> list[str]:
    start = datetime.fromisoformat(first).replace(tzinfo=NEW_YORK)
    found = occurrences(rule, start, NEW_YORK)
    assert all(moment.tzinfo is UTC for moment in found)
    return [moment.astimezone(NEW_YORK).isoformat(timespec="minutes") for moment in found]


def test_sundays_at_five_stay_at_five_over_both_changes_of_the_clock() -> None:
    spring = local("FREQ=WEEKLY;BYDAY=SU;COUNT=2", "2026-03-01T05:00")
    assert spring == ["2026-03-01T05:00-05:00", "2026-03-08T05:00-04:00"]
    autumn = local("RRULE:FREQ=WEEKLY;BYDAY=SU;UNTIL=20261108T235959Z", "2026-10-25T05:00")
    assert autumn == ["2026-10-25T05:00-04:00", "2026-11-01T05:00-05:00", "2026-11-08T05:00-05:00"]


def test_a_clock_time_that_is_skipped_moves_to_the_end_of_the_gap() -> None:
    days = local("FREQ=DAILY;COUNT=3", "2026-03-07T02:00")
    assert days == ["2026-03-07T02:00-05:00", "2026-03-08T03:00-04:00", "2026-03-09T02:00-04:00"]


def test_without_a_rule_it_happens_once() -> None:
    assert local(None, "2026-03-07T02:00") == ["2026-03-07T02:00-05:00"]


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("FREQ=WEEKLY", "COUNT or UNTIL"),
        ("FREQ=HOURLY;COUNT=3", "FREQ"),
        ("FREQ=DAILY;COUNT=401", "more than 400"),
        ("FREQ=DAILY;COUNT=x", "FREQ=WEEKLY"),
        ("FREQ=DAILY;UNTIL=20200101", "no occurrences"),
        ("nonsense", "FREQ"),
        ("", "FREQ"),
    ],
)
def test_a_bad_rule_says_what_is_wrong(rule: str, word: str) -> None:
    with pytest.raises(BadRequest, match=word) as caught:
        local(rule, "2026-03-07T02:00")
    assert caught.value.param == "rule"
