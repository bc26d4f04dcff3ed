"""What holds where no policy is applied."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.document import DEFAULT, Policy
from core.policy.evaluate import evaluate
from core.policy.grid import HOUR
from core.policy.verdict import BookingRequest, LeaseFact, Member, NodeRef, Reason, Situation
from core.states import LeaseState

NOW = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
NODE = NodeRef("node_1", "north-01", "a100x4")
ANN = Member("user_ann")


def booked(number: int) -> LeaseFact:
    start = NOW.replace(minute=0) + timedelta(days=2, hours=number)
    return LeaseFact(
        id=f"lease_{number}",
        user_id=ANN.id,
        lab_id=None,
        node=NODE,
        start=start,
        end=start + HOUR,
        kind="booked",
        state=LeaseState.BOOKED,
        counts=True,
        created_at=NOW,
    )


def refusals(
    start: datetime, hours: int = 1, *, open_leases: int = 0, policy: Policy = DEFAULT
) -> tuple[Reason, ...]:
    own = tuple(booked(number) for number in range(open_leases))
    request = BookingRequest(ANN, NODE, start, start.astimezone(UTC) + hours * HOUR)
    verdict = evaluate(request, Situation(NOW, own=own), policy)
    assert verdict.ok is (not verdict.reasons)
    assert all(reason.message.endswith(".") and reason.param for reason in verdict.reasons)
    return verdict.reasons


def codes(start: datetime, hours: int = 1, *, open_leases: int = 0) -> list[str]:
    return [reason.code for reason in refusals(start, hours, open_leases=open_leases)]


def test_a_good_block_has_nothing_against_it() -> None:
    assert codes(datetime(2026, 11, 21, 13, tzinfo=UTC), 3) == []
    assert codes(datetime(2026, 11, 21, 12, tzinfo=UTC)) == []  # the hour that runs now
    half_past = datetime(2026, 11, 21, 18, 30, tzinfo=ZoneInfo("Asia/Kolkata"))
    assert codes(half_past) == []  # 13:00 UTC


@pytest.mark.parametrize(
    ("start", "hours", "expected"),
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
def test_every_broken_rule_is_named(start: datetime, hours: int, expected: list[str]) -> None:
    assert codes(start, hours) == expected


def test_the_number_of_open_leases_is_limited_and_told() -> None:
    start = NOW.replace(hour=13, minute=0)
    assert codes(start, open_leases=4) == []
    [reason] = refusals(start, open_leases=5)
    assert reason.code == "too_many_open"
    assert reason.numbers["used"] == 5
    assert reason.numbers["limit"] == 5
    assert "5 open leases" in reason.message


@given(
    st.integers(-100, 1000).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    st.integers(-2, 20),
    st.integers(0, 8),
)
def test_what_passes_is_on_the_grid_ahead_and_short_enough(
    start: datetime, hours: int, open_leases: int
) -> None:
    if codes(start, hours, open_leases=open_leases):
        return
    assert start.timestamp() % 3600 == 0
    assert start + HOUR > NOW
    assert 1 <= hours <= 12
    assert open_leases < 5
