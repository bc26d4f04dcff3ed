"""Lanes of free nodes, against a slow look at every second."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.queue.masks import ClassLane, FreeNodes, bits, lowest

NODES = 5
ALL = (1 << NODES) - 1
TAKEN = st.lists(st.tuples(st.integers(1, ALL), st.integers(0, 20), st.integers(1, 6)), max_size=9)


def lane_of(taken: list[tuple[int, int, int]]) -> ClassLane:
    lane = ClassLane(ALL, 0.0)
    for nodes, start, seconds in taken:
        lane.take(nodes, start, start + seconds)
    return lane


@given(TAKEN, st.integers(1, NODES), st.integers(1, 9))
def test_the_earliest_room_is_the_first_second_at_which_enough_are_free_for_long_enough(
    taken: list[tuple[int, int, int]], num_nodes: int, seconds: int
) -> None:
    lane = lane_of(taken)

    def free(start: int) -> int:
        busy = 0
        for nodes, begin, length in taken:
            if begin < start + seconds and start < begin + length:
                busy |= nodes
        return ALL & ~busy

    start = next(second for second in range(40) if free(second).bit_count() >= num_nodes)
    found = lane.earliest(num_nodes, seconds)
    assert found == FreeNodes(start, start + seconds, free(start))


@given(TAKEN, st.integers(1, NODES), st.integers(1, 9), st.integers(0, 40))
def test_a_room_that_begins_too_late_is_none(
    taken: list[tuple[int, int, int]], num_nodes: int, seconds: int, before: int
) -> None:
    lane = lane_of(taken)
    room = lane.earliest(num_nodes, seconds)
    assert room is not None
    wanted = room if room.start < before else None
    assert lane.earliest(num_nodes, seconds, before=before) == wanted


@given(TAKEN, st.integers(1, ALL), st.integers(0, 20), st.integers(1, 9))
def test_what_is_given_back_is_as_free_as_before(
    taken: list[tuple[int, int, int]], nodes: int, start: int, seconds: int
) -> None:
    lane = lane_of(taken)
    before = [lane.at(second) for second in range(40)]
    mine = nodes & lane.free(start, start + seconds)
    lane.take(mine, start, start + seconds)
    assert lane.free(start, start + seconds) & mine == 0
    lane.give(mine, start, start + seconds)
    assert [lane.at(second) for second in range(40)] == before


@given(TAKEN, st.integers(0, 25))
def test_the_past_is_forgotten_and_the_future_is_not(
    taken: list[tuple[int, int, int]], now: int
) -> None:
    lane = lane_of(taken)
    future = [lane.at(second) for second in range(now, 40)]
    lane.pass_to(now)
    assert lane.now == now
    assert [lane.at(second) for second in range(now, 40)] == future


@given(TAKEN, st.sampled_from([2.0, 3.0, 7.0]))
def test_even_steps_never_call_free_what_is_taken(
    taken: list[tuple[int, int, int]], step: float
) -> None:
    lane = lane_of(taken)
    coarse = lane.coarse(step)
    assert all(time % step == 0 for time in coarse.times)
    for second in range(40):
        assert coarse.at(second) & ~lane.at(second) == 0
    assert coarse.at(1000) == ALL


def test_the_room_now_ends_where_too_few_are_left() -> None:
    lane = lane_of([(0b00011, 5, 5), (0b00100, 8, 5)])
    assert lane.room_now(4) == FreeNodes(0.0, 5.0, ALL)
    assert lane.room_now(3) == FreeNodes(0.0, 8.0, 0b11100)
    assert lane_of([(0b11, 0, 5)]).room_now(4) is None


def test_who_starts_now_takes_what_is_taken_soonest_afterwards() -> None:
    lane = lane_of([(0b00001, 30, 5), (0b00110, 20, 5)])
    room = FreeNodes(0.0, 10.0, ALL)
    assert lane.snuggest(room, 1) == 0b00010
    assert lane.snuggest(room, 3) == 0b00111
    assert lane.snuggest(room, 4) == 0b01111


def test_who_starts_later_leaves_those_that_are_free_now() -> None:
    lane = lane_of([(0b00011, 0, 10), (0b00100, 0, 5)])
    room = lane.earliest(4, 3)
    assert room == FreeNodes(5.0, 8.0, 0b11100) or room == FreeNodes(10.0, 13.0, ALL)
    later = FreeNodes(10.0, 13.0, ALL)
    assert lane.last_freed(later, 2) == 0b00011
    assert lane.last_freed(later, 3) == 0b00111


def test_bits_are_numbered_from_the_right() -> None:
    assert bits(0b10110) == [1, 2, 4]
    assert lowest(0b10110, 2) == 0b00110
    assert lowest(0b10110, 9) == 0b10110
