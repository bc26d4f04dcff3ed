"""What people read: short, with names and numbers, in minutes that do not flicker."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.base.words import clock
from scheduler.queue.sentences import rounded_up
from tests.scheduler.world import at

NOW = at(10, 57)
MOMENTS = st.integers(0, 30 * 24 * 3600).map(lambda s: NOW + timedelta(seconds=s))


@given(MOMENTS)
def test_a_prediction_is_rounded_up_to_full_minutes_and_not_by_much(moment: datetime) -> None:
    told = rounded_up(moment, NOW)
    assert told.second == told.microsecond == 0
    assert moment <= told
    assert told - moment < max(timedelta(minutes=1), (moment - NOW) / 10)


@pytest.mark.parametrize(
    ("moment", "told"),
    [
        (at(11, 17, 1), at(11, 18)),
        (at(11, 18), at(11, 18)),
        (at(14, 1), at(14, 5)),
        (at(14, 1) + timedelta(days=1), at(14, 15) + timedelta(days=1)),
        (at(14, 1) + timedelta(days=3), at(15) + timedelta(days=3)),
    ],
)
def test_the_further_away_the_coarser(moment: datetime, told: datetime) -> None:
    assert rounded_up(moment, NOW) == told


def test_a_prediction_far_away_changes_a_few_times_a_day_and_not_every_minute() -> None:
    start = at(11) + timedelta(days=5)
    told = {rounded_up(start + timedelta(seconds=s), NOW) for s in range(0, 3600, 60)}
    assert len(told) <= 2


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (at(15), "15:00 UTC"),
        (at(9) + timedelta(days=1), "Sun 22 Nov 09:00 UTC"),
        (at(23, 59), "23:59 UTC"),
    ],
)
def test_a_moment_of_another_day_says_which(moment: datetime, said: str) -> None:
    assert clock(moment, NOW) == said
