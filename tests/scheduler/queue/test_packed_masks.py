"""Lanes of nodes with several slots, against plain counts of the slots taken at every second."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from scheduler.queue.masks import ClassLane, FreeNodes

NODES, SLOTS, SECONDS = 3, 4, 30
ALL = (1 << NODES) - 1
Counts = list[list[int]]
"""Free slots by second and node."""
Change = tuple[bool, int, int, int, int | None]
"""Whether slots are taken or given, of which nodes, from when, for how long, and how many."""

CHANGES = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(1, ALL),
        st.integers(0, 20),
        st.integers(1, 8),
        st.none() | st.integers(1, SLOTS),
    ),
    max_size=12,
)
SIZE = st.none() | st.integers(1, SLOTS)


def made(changes: Sequence[Change]) -> tuple[ClassLane, Counts]:
    """The same changes to a lane and to plain counts."""
    lane = ClassLane(ALL, 0.0, SLOTS)
    counts = [[SLOTS] * NODES for _ in range(SECONDS)]
    for is_taken, nodes, start, length, slots in changes:
        (lane.take if is_taken else lane.give)(nodes, start, start + length, slots)
        by = (SLOTS if slots is None else slots) * (-1 if is_taken else 1)
        for second in range(start, start + length):
            for node in range(NODES):
                if nodes >> node & 1:
                    counts[second][node] = min(SLOTS, max(0, counts[second][node] + by))
    return lane, counts


def having(counts: Counts, start: int, end: int, slots: int | None) -> int:
    """The mask of the nodes with so many slots free in all of [start, end)."""
    needed = SLOTS if slots is None else slots
    over = counts[start : max(start + 1, end)]
    least = [min(free[node] for free in over) for node in range(NODES)]
    return sum(1 << node for node in range(NODES) if least[node] >= needed)


@given(CHANGES, SIZE, st.integers(0, 20), st.integers(1, 9))
def test_packed_masks_are_plain_counts(
    changes: list[Change], slots: int | None, start: int, seconds: int
) -> None:
    lane, counts = made(changes)
    for second in range(SECONDS):
        assert lane.at(second, slots) == having(counts, second, second + 1, slots)
    assert lane.free(start, start + seconds, slots) == having(counts, start, start + seconds, slots)
    assert lane.copy().free(start, start + seconds, slots) == lane.free(
        start, start + seconds, slots
    )
    coarse = lane.coarse(3.0)
    for second in range(SECONDS):
        assert coarse.at(second, slots) & ~lane.at(second, slots) == 0


@given(CHANGES, SIZE, st.integers(1, NODES), st.integers(1, 9), st.integers(1, ALL))
def test_the_earliest_room_for_a_part_is_the_first_second_with_enough_nodes(
    changes: list[Change], slots: int | None, num_nodes: int, seconds: int, among: int
) -> None:
    lane, counts = made(changes)
    counts += [[SLOTS] * NODES for _ in range(SECONDS)]
    free = {at: having(counts, at, at + seconds, slots) & among for at in range(SECONDS)}
    starts = [at for at, nodes in free.items() if nodes.bit_count() >= num_nodes]
    found = lane.earliest(num_nodes, seconds, slots=slots, among=among)
    if not starts:
        assert found is None
        return
    assert found == FreeNodes(starts[0], starts[0] + seconds, free[starts[0]])


@given(CHANGES, st.integers(1, SLOTS - 1), st.integers(1, 5))
def test_a_part_goes_beside_others_before_it_breaks_up_a_whole_node(
    changes: list[Change], slots: int, seconds: int
) -> None:
    lane, counts = made(changes)
    room = FreeNodes(0.0, float(seconds), lane.free(0, seconds, slots))
    if not room.nodes:
        return
    (chosen,) = [node for node in range(NODES) if lane.snuggest(room, 1, slots) >> node & 1]
    least = [min(free[node] for free in counts[:seconds]) for node in range(NODES)]
    assert least[chosen] == min(free for free in least if free >= slots)
