"""The hour grid and the booking rules. UTC has no daylight saving, and neither has the grid."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy import (
    HOUR,
    Policy,
    evaluate_booking,
    hour_ceiling,
    hour_floor,
    usable_end,
    walk_in_end,
)

ZONES = st.sampled_from(
    [UTC, *map(ZoneInfo, ("America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"))]
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=ZONES)
WALLS_S = st.integers(60, 14 * 24 * 3600)
NOW = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)


@given(MOMENTS)
def test_every_moment_lies_in_one_hour_of_utc(moment: datetime) -> None:
    floor, ceiling = hour_floor(moment), hour_ceiling(moment)
    assert floor.utcoffset() == timedelta(0)
    assert floor.timestamp() % 3600 == 0
    assert ceiling.timestamp() % 3600 == 0
    assert floor <= moment.astimezone(UTC) <= ceiling
    assert ceiling - floor in (timedelta(0), HOUR)
    assert (ceiling == floor) is (moment.timestamp() % 3600 == 0)


@given(MOMENTS, WALLS_S, st.sampled_from([0, 300, 600]))
def test_a_walk_in_holds_to_the_first_full_hour_that_leaves_wall_time_and_grace(
    now: datetime, wall_s: int, grace_s: int
) -> None:
    end = walk_in_end(now, wall_s, grace_s)
    needed = now.astimezone(UTC) + timedelta(seconds=wall_s + grace_s)
    assert end.timestamp() % 3600 == 0
    assert needed <= end < needed + HOUR
    assert usable_end(end, grace_s) >= now.astimezone(UTC) + timedelta(seconds=wall_s)


@given(MOMENTS, WALLS_S, WALLS_S)
def test_a_longer_wall_time_never_holds_shorter(now: datetime, one_s: int, other_s: int) -> None:
    short, long = sorted((one_s, other_s))
    assert walk_in_end(now, short, 300) <= walk_in_end(now, long, 300)


@pytest.mark.parametrize(
    ("zone", "day", "length_h"),
    [
        ("America/New_York", datetime(2026, 3, 8), 23),
        ("America/New_York", datetime(2026, 11, 1), 25),
        ("Europe/Berlin", datetime(2026, 3, 29), 23),
        ("Europe/Berlin", datetime(2026, 10, 25), 25),
    ],
)
def test_a_day_with_a_clock_change_has_its_true_number_of_blocks(
    zone: str, day: datetime, length_h: int
) -> None:
    start = hour_floor(day.replace(tzinfo=ZoneInfo(zone)))
    end = hour_floor((day + timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)))
    assert (end - start) / HOUR == length_h
    blocks = {start + number * HOUR for number in range(length_h)}
    assert len({block.astimezone(ZoneInfo(zone)).isoformat() for block in blocks}) == length_h


def reasons(
    start: datetime, hours: int = 1, *, open_leases: int = 0, policy: Policy | None = None
) -> list[str]:
    found = evaluate_booking(
        start, hours, now=NOW, open_leases=open_leases, policy=policy or Policy()
    )
    assert all(reason.message.endswith(".") and reason.param for reason in found)
    return [reason.code for reason in found]


def test_a_good_block_has_nothing_against_it() -> None:
    assert reasons(datetime(2026, 11, 21, 13, tzinfo=UTC), 3) == []
    assert reasons(datetime(2026, 11, 21, 12, tzinfo=UTC)) == []  # the hour that runs now
    half_past = datetime(2026, 11, 21, 18, 30, tzinfo=ZoneInfo("Asia/Kolkata"))
    assert reasons(half_past) == []  # 13:00 UTC


@pytest.mark.parametrize(
    ("start", "hours", "codes"),
    [
        (NOW, 1, ["off_grid"]),
        (NOW.replace(minute=0, second=1), 1, ["off_grid"]),
        (NOW.replace(hour=11, minute=0), 1, ["in_the_past"]),
        (NOW.replace(minute=0) + timedelta(days=22), 1, ["outside_horizon"]),
        (NOW.replace(hour=13, minute=0), 0, ["bad_block_length"]),
        (NOW.replace(hour=13, minute=0), 13, ["bad_block_length"]),
        (NOW.replace(hour=13, minute=0), -4, ["bad_block_length"]),
        (NOW.replace(year=2020), 99, ["off_grid", "bad_block_length", "in_the_past"]),
    ],
)
def test_every_broken_rule_is_named(start: datetime, hours: int, codes: list[str]) -> None:
    assert reasons(start, hours) == codes


def test_the_number_of_open_leases_is_limited_and_told() -> None:
    start = NOW.replace(hour=13, minute=0)
    assert reasons(start, open_leases=4) == []
    assert reasons(start, open_leases=5) == ["too_many_open"]
    [reason] = evaluate_booking(start, 1, now=NOW, open_leases=2, policy=Policy(max_open_leases=2))
    assert "2 open leases" in reason.message


@given(
    st.integers(-100, 1000).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    st.integers(-2, 20),
    st.integers(0, 8),
)
def test_what_passes_is_on_the_grid_ahead_and_short_enough(
    start: datetime, hours: int, open_leases: int
) -> None:
    if reasons(start, hours, open_leases=open_leases):
        return
    assert start.timestamp() % 3600 == 0
    assert start + HOUR > NOW
    assert 1 <= hours <= 12
    assert open_leases < 5
