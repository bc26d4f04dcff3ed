"""A process goes by the database's clock: not by its own, and not into a sudden leap."""

from datetime import UTC, datetime, timedelta

import pytest

from core.base import clock
from core.base.clock import DOUBTED_FOR_S, FollowingClock
from core.database.database import Database
from core.process.timekeeping import database_time

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class Boot:
    """A boot clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def boot() -> Boot:
    return Boot()


@pytest.fixture
def following(boot: Boot) -> FollowingClock:
    following = FollowingClock(boot)
    following.follow(NOON)
    return following


def test_the_first_reference_is_believed_and_time_goes_on_from_it(
    following: FollowingClock, boot: Boot
) -> None:
    assert following.now() == NOON
    boot.seconds += 90
    assert following.now() == NOON + timedelta(seconds=90)


def test_a_wall_clock_that_jumps_changes_nothing(
    following: FollowingClock, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall_clock", lambda: NOON + DAY)
    boot.seconds += 1
    assert following.now() == NOON + timedelta(seconds=1)


def test_small_steps_of_the_reference_are_followed_either_way(following: FollowingClock) -> None:
    for step in (30, -30):
        assert following.follow(NOON + timedelta(seconds=step)) == timedelta()
        assert following.now() == NOON + timedelta(seconds=step)


@pytest.mark.parametrize("leap", [DAY, -DAY])
def test_a_leap_is_doubted_until_it_has_lasted(
    following: FollowingClock, boot: Boot, leap: timedelta
) -> None:
    assert following.follow(NOON + leap) == leap
    assert following.now() == NOON
    boot.seconds += DOUBTED_FOR_S - 1
    late = NOON + timedelta(seconds=DOUBTED_FOR_S - 1)
    assert following.follow(late + leap) == leap
    boot.seconds += 1
    late = NOON + timedelta(seconds=DOUBTED_FOR_S)
    assert following.follow(late + leap) == timedelta()
    assert following.now() == late + leap


def test_a_leap_that_is_taken_back_is_forgotten(following: FollowingClock, boot: Boot) -> None:
    following.follow(NOON + DAY)
    boot.seconds += DOUBTED_FOR_S - 1
    following.follow(NOON + timedelta(seconds=DOUBTED_FOR_S - 1))
    boot.seconds += 2
    after = NOON + timedelta(seconds=DOUBTED_FOR_S + 1)
    assert following.follow(after + DAY) == DAY
    assert following.now() == after


def test_the_database_tells_its_time(database: Database) -> None:
    assert abs(database_time(database) - datetime.now(UTC)) < timedelta(seconds=5)
