"""How full days become: against sums worked out by hand."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from core.policy.forecast import FreeDay, forecast

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)


def days(*free: float) -> list[FreeDay]:
    return [FreeDay(MONDAY + timedelta(days=index), hours) for index, hours in enumerate(free)]


def test_what_is_left_is_spent_evenly() -> None:
    found = forecast(days(20, 20, 20), 30)
    assert [day.wanted_hours for day in found.days] == [10, 10, 10]
    assert (found.unmet_hours, found.free_hours, found.full_from) == (0, 60, None)


def test_what_finds_no_room_on_a_day_goes_on_to_the_next_ones() -> None:
    found = forecast(days(4, 20, 20), 30)
    assert [day.wanted_hours for day in found.days] == [4, 13, 13]
    assert found.unmet_hours == 0
    assert found.full_from is None, "the first day is full, the others are not"


def test_the_last_days_may_be_full_while_all_find_room() -> None:
    found = forecast(days(20, 10, 6), 30)
    assert [day.wanted_hours for day in found.days] == [10, 10, 6]
    assert found.unmet_hours == 4
    assert found.full_from == MONDAY + timedelta(days=1)


def test_nothing_is_wanted_of_days_without_quota_and_no_day_has_no_room() -> None:
    assert [day.wanted_hours for day in forecast(days(5, 5), 0).days] == [0, 0]
    assert forecast([], 12).unmet_hours == 12


@given(st.lists(st.floats(0, 1000), max_size=14), st.floats(0, 10_000))
def test_no_hour_is_lost_and_no_day_overbooked(free: list[float], unspent: float) -> None:
    found = forecast(days(*free), unspent)
    assert all(0 <= day.wanted_hours <= day.free_hours for day in found.days)
    spent = sum(day.wanted_hours for day in found.days)
    assert abs(spent + found.unmet_hours - unspent) < 1e-6 * max(1.0, unspent)
