"""The plan ahead, against a slow search at every moment, and against what a person would say."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.grid import walk_in_end
from core.states import AttemptState, JobState, LeaseState, NodeState, Phase
from core.tables.kinds import LeaseKind
from scheduler.queue.backfill import CONSERVATIVE, QueueRules
from scheduler.queue.ordering import next_first
from scheduler.queue.placement import Later, WalkIn, decide
from scheduler.snapshot import (
    AttemptSnapshot,
    LeaseSnapshot,
    NodeHold,
    NodeSnapshot,
    Snapshot,
    WaitingJob,
)
from tests.scheduler.world import at, waiting_job

GRACE_S = 300
CLEANING = timedelta(seconds=60)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NOW = at(10, 57)


def node(number: int, class_name: str = "cpu2") -> NodeSnapshot:
    return NodeSnapshot(
        id=f"node_{number}",
        name=f"n-{number}",
        class_name=class_name,
        state=NodeState.READY,
        reason="",
        clean=True,
        boot_id="b",
        last_seen_at=NOW,
        unreachable_since=None,
        heard=True,
    )


def job(
    number: int,
    wall: timedelta,
    *,
    queued_at: datetime = NOW,
    classes: tuple[str, ...] = ("cpu2",),
    num_nodes: int = 1,
    may_be_cut: bool = False,
) -> WaitingJob:
    return waiting_job(
        f"job_{number:03}",
        queued_at=queued_at,
        wall_time_s=int(wall.total_seconds()),
        classes=classes,
        num_nodes=num_nodes,
        may_be_cut=may_be_cut,
    )


def booked(
    number: int, node_id: str, start: datetime, end: datetime
) -> tuple[LeaseSnapshot, NodeHold]:
    lease = LeaseSnapshot(
        id=f"lease_{number}",
        user_id="user",
        node_id=node_id,
        kind=LeaseKind.BOOKED,
        state=LeaseState.BOOKED,
        reason="",
        hold_start=start,
        hold_end=end,
        usable_end=end - timedelta(seconds=GRACE_S),
    )
    return lease, NodeHold(node_id, lease.id, start, end)


def world_of(
    nodes: list[NodeSnapshot],
    waiting: list[WaitingJob],
    bookings: Sequence[tuple[LeaseSnapshot, NodeHold]] = (),
    attempts: Sequence[AttemptSnapshot] = (),
) -> Snapshot:
    return Snapshot(
        now=NOW,
        nodes={one.id: one for one in nodes},
        classes={},
        holds=sorted((hold for _, hold in bookings), key=lambda h: (h.node_id, h.start)),
        leases={lease.id: lease for lease, _ in bookings},
        attempts=attempts,
        last_exit={},
        waiting=waiting,
    )


Taken = tuple[str, datetime, datetime]  # a node by a job of the plan, with cleaning


def starts(
    world: Snapshot, rules: QueueRules = CONSERVATIVE
) -> dict[str, tuple[tuple[str, ...], datetime]]:
    """Nodes and start of every waiting job."""
    found = {}
    order = next_first(world.waiting, world.now, {})
    for waiting, decision in decide(order, world, rules=rules, grace_s=GRACE_S):
        if isinstance(decision, WalkIn):
            found[waiting.id] = (decision.node_ids, world.now)
        else:
            assert isinstance(decision, Later)
            assert decision.slot is not None
            found[waiting.id] = (tuple(n.id for n in decision.slot.nodes), decision.slot.start)
    return found


def slow_start(world: Snapshot, taken: list[Taken], waiting: WaitingJob) -> datetime:
    """The first moment at which enough nodes are free, by trying every one that may be it."""
    wall = timedelta(seconds=waiting.wall_left_s)
    moments = {NOW, *(hold.end for hold in world.holds), *(end for _, _, end in taken)}
    for moment in sorted(moments):
        free = [one for one in world.nodes if _is_free(world, taken, one, moment, wall)]
        if moment >= NOW and len(free) >= waiting.num_nodes:
            return moment
    raise AssertionError("after the last end all are free")


def _is_free(
    world: Snapshot, taken: list[Taken], node_id: str, moment: datetime, wall: timedelta
) -> bool:
    hold_end = walk_in_end(moment, int(wall.total_seconds()), GRACE_S)
    return all(
        hold.node_id != node_id or hold.end <= moment or hold.start >= hold_end
        for hold in world.holds
    ) and all(
        node != node_id or end <= moment or start >= moment + wall + CLEANING
        for node, start, end in taken
    )


BOOKINGS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 20), st.integers(1, 4)), max_size=9
)
JOBS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 3)), min_size=1, max_size=14)


def bookings_of(
    found: list[tuple[int, int, int]], num_nodes: int
) -> list[tuple[LeaseSnapshot, NodeHold]]:
    """Leases by node, first hour and hours, without those that overlap an earlier one."""
    made: list[tuple[LeaseSnapshot, NodeHold]] = []
    for number, (where, start_h, hours) in enumerate(found):
        start, end = at(11) + start_h * HOUR, at(11) + (start_h + hours) * HOUR
        node_id = f"node_{where}"
        is_free = all(h.node_id != node_id or h.end <= start or end <= h.start for _, h in made)
        if where < num_nodes and is_free and end > NOW:
            made.append(booked(number, node_id, start, end))
    return made


@settings(max_examples=300)
@given(st.integers(1, 3), BOOKINGS, JOBS)
def test_every_job_gets_the_start_that_a_slow_search_finds(
    num_nodes: int, bookings: list[tuple[int, int, int]], jobs: list[tuple[int, int]]
) -> None:
    waiting = [
        job(number, wall_min * MINUTE, num_nodes=min(wanted, num_nodes))
        for number, (wall_min, wanted) in enumerate(jobs)
    ]
    nodes = [node(number) for number in range(num_nodes)]
    world = world_of(nodes, waiting, bookings_of(bookings, num_nodes))
    got = starts(world)
    taken: list[Taken] = []
    for each in next_first(waiting, NOW, {}):
        node_ids, start = got[each.id]
        assert len(set(node_ids)) == each.num_nodes  # all or none
        assert start == slow_start(world, taken, each), each.id
        wall = timedelta(seconds=each.wall_left_s)
        assert all(_is_free(world, taken, node_id, start, wall) for node_id in node_ids)
        taken += [(node_id, start, start + wall + CLEANING) for node_id in node_ids]


@settings(max_examples=100)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=14), st.integers(1, 400))
def test_nobody_is_delayed_by_who_comes_later(walls_min: list[int], late_min: int) -> None:
    nodes, bookings = [node(0), node(1)], [booked(0, "node_0", at(13), at(15))]
    waiting = [job(number, wall * MINUTE) for number, wall in enumerate(walls_min)]
    before = starts(world_of(nodes, waiting, bookings))
    late = job(999, late_min * MINUTE, queued_at=NOW + 3 * HOUR)  # even if it is short
    after = starts(world_of(nodes, [late, *waiting], bookings))
    assert {job_id: after[job_id] for job_id in before} == before


def running_on(node_id: str, ends_at: datetime, hold_end: datetime) -> Snapshot:
    """A walk-in with one running job, and one that waits for it."""
    lease = LeaseSnapshot(
        id="lease_w",
        user_id="user",
        node_id=node_id,
        kind=LeaseKind.WALK_IN,
        state=LeaseState.ACTIVE,
        reason="",
        hold_start=NOW - MINUTE,
        hold_end=hold_end,
        usable_end=hold_end - timedelta(seconds=GRACE_S),
    )
    attempt = AttemptSnapshot(
        id="att_1",
        job_id="job_running",
        epoch=1,
        node_id=node_id,
        lease_id=lease.id,
        state=AttemptState.RUNNING,
        job_state=JobState.RUNNING,
        position=0,
        slots=(0, 1),
        phase=Phase.RUNNING,
        boot_id="b",
        assigned_at=NOW - MINUTE,
        prepared_at=NOW - MINUTE,
        missing_since=None,
        hold_end=hold_end,
        ends_at=ends_at,
    )
    hold = NodeHold(node_id, lease.id, lease.hold_start, hold_end)
    return world_of([node(0)], [job(1, 20 * MINUTE)], [(lease, hold)], [attempt])


def test_a_walk_in_is_expected_to_shrink_to_the_end_of_its_job_in_the_middle_of_the_hour() -> None:
    assert starts(running_on("node_0", at(11, 17), at(12))) == {
        "job_001": (("node_0",), at(11, 18))
    }


def test_a_walk_in_never_lasts_past_its_hold() -> None:
    assert starts(running_on("node_0", at(12, 30), at(12))) == {"job_001": (("node_0",), at(12))}


def test_a_job_that_is_late_to_end_is_expected_in_a_minute() -> None:
    late = running_on("node_0", at(10, 50), at(12))
    assert starts(late) == {"job_001": (("node_0",), NOW + CLEANING)}
