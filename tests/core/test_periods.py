"""Days and weeks as a clock on the wall has them."""

from datetime import UTC, date, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from core.leases.periods import HourSums, Per, Period, periods

NEW_YORK = ZoneInfo("America/New_York")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hours_of(cut: list[Period], start: datetime, end: datetime, gpus: int = 1) -> list[float]:
    sums = HourSums(cut)
    sums.add("ada", start, end, gpus)
    return [sums.of("ada", number) for number in range(len(cut))]


def test_a_day_has_23_or_25_hours_when_the_clocks_change() -> None:
    spring = list(
        periods(utc("2025-03-08T05:00"), utc("2025-03-11T04:00"), per=Per.DAY, zone=NEW_YORK)
    )
    assert hours_of(spring, spring[0].start, spring[-1].end) == [24, 23, 24]
    autumn = list(
        periods(utc("2025-11-02T04:00"), utc("2025-11-03T05:00"), per=Per.DAY, zone=NEW_YORK)
    )
    assert hours_of(autumn, autumn[0].start, autumn[-1].end) == [25]


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
    assert abs(sum(hours_of(cut, start, end, gpus=2)) - minutes / 30) < 1e-4 * len(cut)
    for before, after in pairwise(cut):
        assert before.end == after.start


def test_hours_outside_of_all_periods_do_not_count() -> None:
    cut = list(
        periods(utc("2026-11-23T00:00"), utc("2026-11-25T00:00"), per=Per.DAY, zone=ZoneInfo("UTC"))
    )
    assert hours_of(cut, utc("2026-11-22T20:00"), utc("2026-11-23T06:00"), gpus=4) == [24, 0]
    assert hours_of(cut, utc("2026-11-24T23:00"), utc("2026-11-25T06:00")) == [0, 1]
    assert hours_of(cut, utc("2026-11-24T00:00"), utc("2026-11-24T00:00")) == [0, 0]
    assert hours_of(cut, utc("2026-11-25T00:00"), utc("2026-11-26T00:00")) == [0, 0]
    assert HourSums(cut).names == set()
