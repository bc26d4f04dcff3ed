"""Days and weeks as a clock on the wall has them."""

from datetime import UTC, date, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from core.leases.periods import Per, periods

NEW_YORK = ZoneInfo("America/New_York")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_day_has_23_or_25_hours_when_the_clocks_change() -> None:
    spring = list(
        periods(utc("2025-03-08T05:00"), utc("2025-03-11T04:00"), per=Per.DAY, zone=NEW_YORK)
    )
    assert [one.hours_of(one.start, one.end) for one in spring] == [24, 23, 24]
    autumn = list(
        periods(utc("2025-11-02T04:00"), utc("2025-11-03T05:00"), per=Per.DAY, zone=NEW_YORK)
    )
    assert [one.hours_of(one.start, one.end) for one in autumn] == [25]


def test_weeks_begin_on_monday() -> None:
    weeks = list(
        periods(utc("2026-11-20T12:00"), utc("2026-11-24T12:00"), per=Per.WEEK, zone=NEW_YORK)
    )
    assert [one.first for one in weeks] == [date(2026, 11, 16), date(2026, 11, 23)]


@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)),
    st.integers(1, 40 * 24 * 60),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"]),
    st.sampled_from(list(Per)),
)
def test_every_minute_lies_in_one_period(
    start: datetime, minutes: int, zone: str, per: Per
) -> None:
    end = datetime.fromtimestamp(start.timestamp() + 60 * minutes, UTC)
    cut = list(periods(start, end, per=per, zone=ZoneInfo(zone)))
    assert abs(sum(one.hours_of(start, end) for one in cut) - minutes / 60) < 1e-6
    for before, after in pairwise(cut):
        assert before.end == after.start
