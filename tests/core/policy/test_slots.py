"""Free slots of a node over time, and the rule by which a lease chooses its node."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from core.policy.slots import Breakage, breakage, free_slots, full_times
from core.policy.verdict import Span

START = datetime(2026, 2, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(hour: float) -> datetime:
    return START + hour * HOUR


def span(start: float, end: float, num_slots: int | None = None) -> Span:
    return Span(at(start), at(end), f"lease_{start}_{end}_{num_slots}", num_slots)


HOLDS = st.lists(
    st.builds(
        lambda start, hours, num_slots: span(start, start + hours, num_slots),
        st.integers(0, 20),
        st.integers(1, 6),
        st.sampled_from([None, 1, 2, 3]),
    ),
    max_size=6,
)


@given(HOLDS, st.integers(0, 20), st.integers(1, 6), st.integers(1, 4))
def test_free_slots_and_full_times_agree_with_a_count_of_every_hour(
    holds: list[Span], first: int, hours: int, size: int
) -> None:
    by_hour = {
        hour: max(
            0,
            4
            - sum(
                4 if one.num_slots is None else one.num_slots
                for one in holds
                if one.start <= at(hour) < one.end
            ),
        )
        for hour in range(first, first + hours)
    }
    start, end = at(first), at(first + hours)
    assert free_slots(holds, of=4, start=start, end=end) == min(by_hour.values())
    full = full_times(holds, of=4, size=size, start=start, end=end)
    assert full == sorted(full)
    assert all(a[1] < b[0] for a, b in pairwise(full))  # joined where they touch
    counted = {hour for hour in by_hour if any(a <= at(hour) < b for a, b in full)}
    assert counted == {hour for hour, free in by_hour.items() if free < size}


def test_a_hold_without_a_number_holds_the_whole_node() -> None:
    holds = [span(0, 3), span(3, 6, 1), span(4, 5, 2)]
    assert free_slots(holds, of=4, start=at(2), end=at(4)) == 0
    assert free_slots(holds, of=4, start=at(3), end=at(6)) == 1
    assert free_slots(holds, of=4, start=at(5), end=at(9)) == 3
    assert free_slots([span(0, 3, 3), span(1, 2, 3)], of=4, start=at(0), end=at(3)) == 0


def test_a_lease_breaks_up_wholly_free_hours_or_fills_hours_that_are_broken_already() -> None:
    def cost(*holds: Span, of: int = 4, size: int = 1) -> Breakage:
        return breakage(holds, of=of, size=size, start=at(3), end=at(6))

    assert cost() == Breakage(broken_h=12, left_h=9)
    assert cost(span(0, 9, 1)) == Breakage(broken_h=0, left_h=6)
    assert cost(span(0, 4, 1)) == Breakage(broken_h=8, left_h=8)
    nodes = {
        "wholly free": cost(),
        "free for two of the hours": cost(span(0, 4, 1)),
        "one taken": cost(span(0, 9, 1)),
        "three taken": cost(span(0, 9, 3)),
        "of one slot": cost(of=1),
    }
    assert sorted(nodes, key=nodes.__getitem__) == [
        "three taken",
        "one taken",
        "of one slot",
        "free for two of the hours",
        "wholly free",
    ]
