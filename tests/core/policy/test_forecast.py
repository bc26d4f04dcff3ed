"""How full days become: against sums worked out by hand."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.policy.forecast import Budget, Forecast, FreeDay, Spender
from core.policy.forecast import forecast as forecast_of

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)


def days(*free: float) -> list[FreeDay]:
    return [FreeDay(MONDAY + timedelta(days=index), hours) for index, hours in enumerate(free)]


def forecast(free: list[FreeDay], unspent: float) -> Forecast:
    """Of one quota for all days."""
    return forecast_of(free, [Spender(purses=[Budget(unspent, 0, len(free))])])


def wanted(free: list[FreeDay], *spenders: Spender) -> list[float]:
    return [day.wanted_hours for day in forecast_of(free, spenders).days]


def test_what_is_left_is_spent_evenly() -> None:
    found = forecast(days(20, 20, 20), 30)
    assert [day.wanted_hours for day in found.days] == [10, 10, 10]
    assert (found.unmet_hours, found.free_hours, found.full_from) == (0, 60, None)


def test_a_last_day_of_one_hour_leaves_nobody_without_room_while_others_are_free() -> None:
    found = forecast(days(24, 24, 1), 20)
    assert [day.wanted_hours for day in found.days] == pytest.approx([480 / 49, 480 / 49, 20 / 49])
    assert (round(found.unmet_hours, 9), found.full_from) == (0, None)


def test_what_finds_no_room_on_a_day_goes_on_to_the_next_ones() -> None:
    nights = Spender(purses=[Budget(10, 0, 1), Budget(12, 0, 3)])
    found = forecast_of(days(4, 20, 20), [nights])
    # The first night's 10 alone are too many for it: of the rest next to nothing is spent there.
    first, *later = (day.wanted_hours for day in found.days)
    assert first == 4
    assert later[0] == pytest.approx(later[1])
    assert later[0] > 12 * 20 / 44
    assert found.full_from is None, "the first day is full, the others are not"


def test_no_day_is_full_before_all_are() -> None:
    found = forecast(days(20, 10, 6), 30)
    assert [day.wanted_hours for day in found.days] == pytest.approx([50 / 3, 25 / 3, 5])
    assert (round(found.unmet_hours, 9), found.full_from) == (0, None)
    full = forecast(days(20, 10, 6), 40)
    assert [day.wanted_hours for day in full.days] == [20, 10, 6]
    assert (full.unmet_hours, full.full_from) == (4, MONDAY)


def test_nothing_is_wanted_of_days_without_quota_and_no_day_has_no_room() -> None:
    assert [day.wanted_hours for day in forecast(days(5, 5), 0).days] == [0, 0]
    assert forecast(days(0, 0), 12).unmet_hours == 12


def test_a_week_that_is_over_gives_nothing_to_the_next_one() -> None:
    weeks = Spender(caps=[Budget(10, 0, 2), Budget(10, 2, 4)])
    found = forecast_of(days(5, 1, 20, 20), [weeks])
    assert [day.wanted_hours for day in found.days] == [5, 1, 5, 5]
    assert (found.unspent_hours, found.unmet_hours) == (20, 4)


def test_a_quota_by_night_is_spent_beside_that_of_the_window() -> None:
    nights = [Budget(3, day, day + 1) for day in range(3)]
    both = Spender(purses=[Budget(6, 0, 3), *nights])
    assert wanted(days(20, 20, 20), both) == [5, 5, 5]
    # What found no room by day is spent later; of the night it is lost.
    kept = 6 - 2 * (6 * 2 / 42) / (6 * 2 / 42 + 3)
    assert wanted(days(2, 20, 20), both) == pytest.approx([2, kept / 2 + 3, kept / 2 + 3])


def test_a_cap_holds_for_all_purses_together_and_each_cap_holds() -> None:
    purses = [Budget(12, 0, 2), Budget(4, 0, 1), Budget(4, 1, 2)]
    assert wanted(days(50, 50), Spender(purses=purses)) == [10, 10]
    capped = Spender(purses=purses, caps=[Budget(30, 0, 2), Budget(3, 0, 1), Budget(8, 1, 2)])
    assert wanted(days(50, 50), capped) == [3, 8]


def test_labs_share_what_is_free_in_proportion_to_what_they_have() -> None:
    big, small = Spender(caps=[Budget(30, 0, 1)]), Spender(caps=[Budget(10, 0, 1)])
    found = forecast_of(days(20), [big, small, Spender()])
    assert [day.wanted_hours for day in found.days] == [20]
    assert (found.unspent_hours, found.unmet_hours) == (40, 20)


@example([5e-324], 1.5)  # hours of a day may be as little as a float can say
@example([1.0, 1.0, 0.0], 1.3871481907669843e-156)  # rounding leaves less than nothing
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=14), st.floats(0, 10_000))
def test_no_hour_is_lost_and_no_day_overbooked(free: list[float], unspent: float) -> None:
    found = forecast(days(*free), unspent)
    assert all(0 <= day.wanted_hours <= day.free_hours for day in found.days)
    spent = sum(day.wanted_hours for day in found.days)
    assert abs(spent + found.unmet_hours - unspent) < 1e-6 * max(1.0, unspent)
