"""Leases into slots: against every assignment tried one by one."""

from datetime import UTC, datetime
from itertools import combinations, permutations

from hypothesis import given
from hypothesis import strategies as st

from core.policy.grid import HOUR
from core.policy.matching import ALL, CountedLease, Room, rooms_left

START = datetime(2025, 2, 21, tzinfo=UTC)
POOLS = ("long", "single", "second")
ROOMS = st.builds(
    Room,
    st.sampled_from([(ALL,), *((pool,) for pool in POOLS), *combinations(POOLS, 2)]),
    st.integers(1, 3),
)
LEASES = st.builds(
    lambda pools, hours, at: CountedLease(
        pools, hours, START + at * HOUR, START + (at + hours) * HOUR
    ),
    st.sampled_from([(), *((pool,) for pool in POOLS), *combinations(POOLS, 2)]),
    st.integers(1, 3),
    st.integers(0, 12),
)


def overlap(a: CountedLease, b: CountedLease) -> bool:
    return a.start < b.end and b.start < a.end


def fits(leases: list[CountedLease], rooms: list[Room], *, distinct_times: bool) -> bool:
    """By trying every assignment."""
    if distinct_times and any(overlap(a, b) for a, b in combinations(leases, 2)):
        return False
    return any(
        all(room.takes(lease) for lease, room in zip(leases, chosen, strict=True))
        for chosen in permutations(rooms, len(leases))
    )


@given(st.lists(LEASES, max_size=4), st.lists(ROOMS, max_size=5), st.booleans())
def test_the_matcher_agrees_with_every_assignment_tried(
    leases: list[CountedLease], rooms: list[Room], distinct_times: bool
) -> None:
    found = rooms_left(leases, rooms, distinct_times=distinct_times)
    assert (found is not None) is fits(leases, rooms, distinct_times=distinct_times)
    if found is not None:
        assert len(found) == len(rooms) - len(leases)
        taken = list(rooms)
        for room in found:
            taken.remove(room)
        assert fits(leases, taken, distinct_times=distinct_times)


@given(st.lists(LEASES, max_size=5), st.lists(ROOMS, max_size=3), st.integers(0, 3))
def test_an_exception_spares_the_best_choice_of_leases(
    leases: list[CountedLease], rooms: list[Room], extra: int
) -> None:
    found = rooms_left(leases, rooms, distinct_times=False, extra=extra)
    best = any(
        fits(list(housed), rooms, distinct_times=False)
        for spared in range(min(extra, len(leases)) + 1)
        for housed in combinations(leases, len(leases) - spared)
    )
    assert (found is not None) is best


def test_the_table_of_alternatives_holds() -> None:
    """Which sets of leases the course's main quota takes, as its author listed them."""
    one_long = [Room(("long",), 3)]
    two_short = [Room(("single",), 2), Room(("second",), 2)]

    def taken(*wanted: tuple[str, int]) -> bool:
        leases = [
            CountedLease((pool,), hours, START + at * 24 * HOUR, START + (at * 24 + hours) * HOUR)
            for at, (pool, hours) in enumerate(wanted)
        ]
        return any(
            rooms_left(leases, rooms, distinct_times=True) is not None
            for rooms in (one_long, two_short)
        )

    assert taken(("long", 3))
    assert taken(("second", 2))
    assert taken(("single", 2))
    assert taken(("single", 2), ("second", 2))
    assert not taken(("second", 2), ("second", 2))
    assert not taken(("long", 3), ("single", 2))
    assert not taken(("single", 2), ("single", 2))
