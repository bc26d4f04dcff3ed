"""The hour grid. UTC has no daylight saving, and neither has the grid."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.grid import HOUR, hour_ceiling, hour_floor, usable_end, walk_in_end

ZONES = st.sampled_from(
    [UTC, *map(ZoneInfo, ("America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"))]
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=ZONES)
WALLS_S = st.integers(60, 14 * 24 * 3600)


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
