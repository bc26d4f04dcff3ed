"""Who starts, who gets a reservation, and that nobody who comes later moves one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.queue.backfill import (
    CONSERVATIVE,
    EASY,
    FIRST_COME,
    STEP_S,
    Backfill,
    BackfillStart,
    QueueRules,
    StartForecast,
    Want,
)
from scheduler.queue.masks import ClassLane

HOUR = 3600.0
NODES = 6
ALL = (1 << NODES) - 1
WANTS = st.lists(st.tuples(st.integers(1, NODES), st.integers(1, 12)), min_size=1, max_size=12)
LEASES = st.lists(st.tuples(st.integers(1, ALL), st.integers(1, 20), st.integers(1, 4)), max_size=5)


def lane_of(leases: list[tuple[int, int, int]]) -> ClassLane:
    lane = ClassLane(ALL, 0.0)
    for nodes, start, hours in leases:
        lane.take(nodes, start * HOUR, (start + hours) * HOUR)
    return lane


def want(name: str, num_nodes: int, hours: float, *, may_be_cut: bool = False) -> Want:
    return Want(name, num_nodes, hours * HOUR, ("a",), may_be_cut)


def wants_of(found: list[tuple[int, int]], name: str = "job") -> list[Want]:
    return [want(f"{name}-{number}", *each) for number, each in enumerate(found)]


def served(lane: ClassLane, rules: QueueRules, wants: list[Want]) -> dict[str, float]:
    """When each starts, or will; those without a reservation are missing."""
    walk = Backfill({"a": lane.copy()}, rules)
    found = {}
    for each in wants:
        placed = walk.place(each)
        if placed is not None:
            found[each.id] = 0.0 if isinstance(placed, BackfillStart) else placed.start
    return found


# Edge case 70
def test_two_hours_do_not_start_in_a_gap_of_one_unless_they_may_be_cut() -> None:
    lane = lane_of([(ALL, 1, 3)])
    walk = Backfill({"a": lane.copy()}, QueueRules())
    assert walk.start(want("fixed", 1, 2)) is None
    start = walk.start(want("saves", 1, 2, may_be_cut=True))
    assert start == BackfillStart("a", 0b1, HOUR, is_cut=True)
    assert (
        Backfill({"a": lane}, QueueRules(soft_fit=False)).start(want("s", 1, 2, may_be_cut=True))
        is None
    )


def test_a_gap_of_less_than_half_an_hour_is_not_worth_a_start() -> None:
    lane = ClassLane(ALL, 0.0)
    lane.take(ALL, 0.4 * HOUR, 3 * HOUR)
    assert Backfill({"a": lane}, QueueRules()).start(want("saves", 1, 2, may_be_cut=True)) is None


def test_a_job_is_cut_only_on_nodes_and_in_gaps_that_their_policy_allows() -> None:
    lane = ClassLane(ALL, 0.0)
    lane.take(0b000001, 2 * HOUR, 5 * HOUR)
    lane.take(0b111110, HOUR, 5 * HOUR)
    saves = want("saves", 1, 3, may_be_cut=True)
    soft = {"a": {0.5 * HOUR: 0b000110, 1.5 * HOUR: 0b000111}}  # none on the upper three
    start = Backfill({"a": lane.copy()}, QueueRules(), soft).start(saves)
    assert start == BackfillStart("a", 0b000001, 2 * HOUR, is_cut=True)  # the longer gap
    for least_h, nodes, found in ((0.5, 0b000010, HOUR), (1.5, 0b000010, None), (1.5, 1, 2 * HOUR)):
        walk = Backfill({"a": lane.copy()}, QueueRules(), {"a": {least_h * HOUR: nodes}})
        cut = walk.start(saves)
        assert (cut.end if cut else None) == found
    assert Backfill({"a": lane.copy()}, QueueRules(), {"a": {}}).start(saves) is None
    gang = want("gang", 3, 3, may_be_cut=True)  # all its nodes have to be among them
    assert Backfill({"a": lane.copy()}, QueueRules(), {"a": {0.0: 0b000110}}).start(gang) is None


def test_nobody_is_cut_for_a_waiting_job() -> None:
    lane = ClassLane(ALL, 0.0)
    lane.take(0b000111, 0.0, HOUR)
    walk = Backfill({"a": lane}, QueueRules())
    assert walk.place(want("wide", NODES, 2)) is not None
    assert walk.start(want("saves", 1, 2, may_be_cut=True)) is None  # it would delay `wide`
    assert walk.start(want("short", 1, 1)) is not None


# Edge case 72
@settings(max_examples=200)
@given(LEASES, WANTS, WANTS, st.sampled_from([QueueRules(), EASY, CONSERVATIVE, QueueRules(3)]))
def test_who_comes_later_never_moves_a_reservation(
    leases: list[tuple[int, int, int]],
    first: list[tuple[int, int]],
    later: list[tuple[int, int]],
    rules: QueueRules,
) -> None:
    lane = lane_of([*leases, (0b000011, 0, 2)])
    alone = served(lane, rules, wants_of(first))
    both = served(lane, rules, wants_of(first) + wants_of(later, "later"))
    assert {name: both[name] for name in alone} == alone


# Edge case 72
def test_a_wide_job_is_not_starved_by_small_ones() -> None:
    lane = ClassLane(ALL, 0.0)
    lane.take(0b000001, 0.0, 2 * HOUR)  # one node is busy for two hours
    started_at = None
    for step in range(40):
        now = step * HOUR / 2
        lane.pass_to(now)
        walk = Backfill({"a": lane.copy()}, QueueRules())
        wide = walk.place(want("wide", NODES, 4))
        if isinstance(wide, BackfillStart):
            started_at = now
            break
        assert wide is not None
        assert wide.start == 2 * HOUR
        for number in range(3):  # small ones come all the time
            small = walk.place(want(f"small-{step}-{number}", 1, 1.5))
            if isinstance(small, BackfillStart):
                lane.take(small.nodes, now, small.end)
    assert started_at == 2 * HOUR


# Edge case 73
@settings(max_examples=200)
@given(LEASES, st.integers(1, NODES), st.integers(1, 12), st.integers(1, ALL), st.integers(2, 9))
def test_an_early_end_moves_the_first_reservation_earlier_only(
    leases: list[tuple[int, int, int]], num_nodes: int, hours: int, running: int, until: int
) -> None:
    lane = lane_of(leases)
    busy = lane.copy()
    busy.take(running & lane.free(0.0, until * HOUR), 0.0, until * HOUR)
    first = [want("first", num_nodes, hours)]
    before, after = served(busy, QueueRules(), first), served(lane, QueueRules(), first)
    assert after["first"] <= before["first"]


@given(LEASES, WANTS)
def test_first_come_first_served_lets_nobody_pass(
    leases: list[tuple[int, int, int]], found: list[tuple[int, int]]
) -> None:
    wants = wants_of(found)
    walk = Backfill({"a": lane_of(leases)}, FIRST_COME)
    started = [walk.start(each) is not None for each in wants]
    assert started == sorted(started, reverse=True)


@given(LEASES, WANTS)
def test_all_reservations_lie_beside_each_other_and_beside_the_leases(
    leases: list[tuple[int, int, int]], found: list[tuple[int, int]]
) -> None:
    lane = lane_of(leases)
    walk = Backfill({"a": lane.copy()}, CONSERVATIVE)
    for each in wants_of(found):
        placed = walk.place(each)
        assert placed is not None
        start = 0.0 if isinstance(placed, BackfillStart) else placed.start
        assert placed.nodes.bit_count() == each.num_nodes
        assert lane.free(start, start + each.seconds) & placed.nodes == placed.nodes
        lane.take(placed.nodes, start, start + each.seconds)


@given(LEASES, WANTS)
def test_a_forecast_is_never_earlier_than_the_exact_plan_of_one_job(
    leases: list[tuple[int, int, int]], found: list[tuple[int, int]]
) -> None:
    lane = lane_of(leases)
    for each in wants_of(found):
        exact = Backfill({"a": lane.copy()}, CONSERVATIVE).reserve(each)
        told = StartForecast({"a": lane}).place(each)
        assert exact is not None
        assert told is not None
        assert exact.start <= told.start


@given(LEASES, LEASES, WANTS)
def test_a_forecast_is_the_first_free_step_whatever_was_asked_before(
    leases: list[tuple[int, int, int]],
    others: list[tuple[int, int, int]],
    found: list[tuple[int, int]],
) -> None:
    """Bounds and the better class of two only spare it a part of the search."""
    lanes = {"a": lane_of(leases), "b": lane_of(others)}
    forecast = StartForecast(lanes)
    plain = {name: lane.coarse(STEP_S) for name, lane in lanes.items()}
    for each in wants_of(found):
        each = each._replace(classes=("a", "b"))
        rooms = {name: lane.earliest(each.num_nodes, each.seconds) for name, lane in plain.items()}
        told = forecast.place(each)
        assert told is not None
        starts = {name: room.start for name, room in rooms.items() if room is not None}
        assert told.start == min(starts.values())
        assert told.class_name == min(starts, key=lambda name: (starts[name], name))
        plain[told.class_name].take(told.nodes, told.start, told.end)


@given(LEASES, WANTS)
def test_the_present_gap_is_measured_anew_after_each_start(
    leases: list[tuple[int, int, int]], found: list[tuple[int, int]]
) -> None:
    lane = lane_of(leases)
    walk = Backfill({"a": lane.copy()}, QueueRules())
    for number, (num_nodes, hours) in enumerate(found):
        each = want(f"job-{number}", num_nodes, hours, may_be_cut=True)
        fresh = Backfill({"a": walk.lanes["a"].copy()}, QueueRules())
        fresh._leases = walk._leases
        assert walk.gap_now(each) == fresh.gap_now(each)
        walk.start(each)


@given(LEASES, WANTS)
def test_who_has_no_reservation_is_planned_after_the_walk_and_holds_up_nobody_in_it(
    leases: list[tuple[int, int, int]], found: list[tuple[int, int]]
) -> None:
    """Every start is EASY's; the planned times are those of serving the others in order."""
    lane, wants = lane_of(leases), wants_of(found)
    walk = Backfill({"a": lane.copy()}, QueueRules(soft_fit=False))
    placed = [walk.place(each) for each in wants]
    taken = lane.copy()
    for one in placed:
        if one is not None:
            taken.take(one.nodes, getattr(one, "start", 0.0), one.end)
    assert sum(not isinstance(one, BackfillStart | None) for one in placed) <= 1
    left = [each for each, one in zip(wants, placed, strict=True) if one is None]
    in_order = Backfill({"a": taken}, CONSERVATIVE)
    assert [walk.plan(each) for each in left] == [in_order.reserve(each) for each in left]


@pytest.mark.parametrize("rules", [EASY, QueueRules(), CONSERVATIVE])
def test_a_job_that_wants_more_nodes_than_there_are_gets_no_time_and_blocks_nobody(
    rules: QueueRules,
) -> None:
    walk = Backfill({"a": ClassLane(ALL, 0.0)}, rules)
    assert walk.place(want("huge", NODES + 1, 1)) is None
    assert isinstance(walk.place(want("small", 1, 1)), BackfillStart)


def test_of_equally_early_classes_the_first_is_taken() -> None:
    lanes = {"a": ClassLane(ALL, 0.0), "b": ClassLane(ALL, 0.0)}
    start = Backfill(lanes, QueueRules()).start(Want("job", 2, HOUR, ("b", "a")))
    assert start is not None
    assert start.class_name == "b"
