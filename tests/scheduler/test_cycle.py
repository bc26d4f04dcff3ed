"""The cycle told in small stories: who starts, who waits and why, how leases begin and end."""

from datetime import timedelta

import pytest

from core.database.database import Database
from core.states import JobState, LeaseState, NodeState, Outcome
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind
from core.tables.nodes import Node
from core.tables.people import User
from core.transitions import advance
from scheduler.cycle import read_world
from tests.scheduler.world import World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


def test_a_job_submitted_at_10_57_trains_at_10_57_and_holds_its_node_to_the_full_hour(
    world: World,
) -> None:
    node_id = world.node()
    job_id = world.job(wall="20min")
    assert world.cycle() == [job_id]
    job, attempt, lease = world.get_job(job_id), world.attempt(job_id), world.lease_of(job_id)
    assert (job.state, job.epoch, job.predicted_start) == (JobState.STARTING, 1, None)
    assert (attempt.node_id, attempt.state) == (node_id, "assigned")
    (part,) = world.parts(job_id)
    assert (part.node_id, part.lease_id, part.slots) == (node_id, lease.id, [0, 1])
    assert (part.boot_id, part.phase) == ("boot-1", None)
    assert (lease.kind, lease.state, lease.user_id) == ("walk_in", "active", "user_ada")
    # 10:57 + 20 min + 5 min of grace is past 11:00
    assert (lease.hold_start, lease.hold_end) == (at(10, 57), at(12))
    assert world.bells.nodes == ["north-01"]


def test_a_second_job_waits_and_is_told_for_what_and_until_when(world: World) -> None:
    world.node()
    world.job(wall="20min", name="warm-up")
    world.cycle()
    second = world.job(wall="30min", name="secret")
    third = world.job(wall="5min", user="bob")
    assert world.cycle() == []
    job = world.get_job(second)
    assert job.reason_code == "node_busy"
    # 10:57 + 20 min of wall time + 1 min to be cleared
    assert job.predicted_start == at(11, 18)
    assert job.reason == (
        "Starts at 11:18 UTC on north-01 at the latest, when warm-up has ended; sooner if "
        "it ends early."
    )
    job = world.get_job(third)
    assert job.reason_code == "queue"
    assert job.predicted_start == at(11, 49)
    assert job.reason == (
        "Starts at 11:49 UTC on north-01 at the latest, after another person's job, which is "
        "ahead of it in the queue."
    )


def test_the_next_job_starts_when_the_first_has_ended_and_the_node_is_clean(world: World) -> None:
    world.node()
    first, second = world.job(), world.job()
    world.cycle()
    world.runs(first)
    world.now = at(11, 2)
    world.exits(first, clean=False)
    assert world.cycle() == []
    assert world.lease_of(first).state is LeaseState.ACTIVE
    world.now = at(11, 2, 4)
    world.report(clean=True)
    assert world.cycle() == [second]
    assert world.lease_of(first).state is LeaseState.ENDED
    assert world.lease_of(second).hold_start == at(11, 2, 4)


def test_a_booked_lease_in_the_way_is_told_with_the_wall_time_that_would_fit(world: World) -> None:
    node_id = world.node()
    world.book(node_id, at(12), 2, user="bob")
    job_id = world.job(wall="60min", checkpointable=False)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert (job.reason_code, job.predicted_start) == ("booked_soon", at(14))
    assert "north-01" in job.reason
    assert "With a wall time of 58min it could start now." in job.reason  # 12:00 - 5 min - 10:57
    shorter = world.job(wall="58min")
    assert world.cycle() == [shorter]
    assert world.lease_of(shorter).hold_end == at(12)


# Edge case 70
def test_a_job_that_saves_starts_in_a_gap_that_is_too_short_for_it_and_goes_on_later(
    world: World,
) -> None:
    node_id = world.node()
    world.book(node_id, at(12), 1, user="bob")
    job_id = world.job(wall="2h")
    assert world.cycle() == [job_id]
    assert world.lease_of(job_id).hold_end == at(12)
    world.runs(job_id)
    world.now = at(11, 55)
    world.report()
    world.cycle()
    assert world.attempt(job_id).stop_reason is Outcome.LEASE_ENDED
    world.now = at(11, 56)
    world.exits(job_id, Outcome.LEASE_ENDED)
    assert world.cycle() == []
    assert (world.get_job(job_id).state, world.get_job(job_id).interruptions) == ("queued", 1)
    assert world.get_job(job_id).predicted_start == at(13)


def test_where_the_policy_says_no_a_job_that_saves_waits_for_its_whole_wall_time(
    world: World,
) -> None:
    node_id = world.node()
    world.book(node_id, at(12), 1, user="bob")
    world.apply("policy: {id: rigid, version: 1}\nscheduling: {soft_fit: off}\n")
    job_id = world.job(wall="2h")
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert job.predicted_start == at(13)
    assert (
        "No job is started there ahead of a lease that would stop it (soft_fit is off)"
        in job.reason
    )
    longer = "policy: {id: rigid, version: 2}\nscheduling: {min_useful_min: 90}\n"
    world.apply(longer)
    assert world.cycle(after_s=1) == []
    assert "is started there only if the gap is 1h 30min or more" in world.get_job(job_id).reason
    world.apply(longer.replace("2", "3").replace("90", "45"))
    assert world.cycle(after_s=1) == [job_id]
    assert world.lease_of(job_id).hold_end == at(12)


# Edge case 71
def test_a_job_that_no_gap_between_leases_can_take_is_told_when_and_why(world: World) -> None:
    node_id = world.node()
    for hour in (11, 14, 17, 20):
        world.book(node_id, at(hour), 1, user="bob")
    job_id = world.job(wall="3h", checkpointable=False)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert (job.reason_code, job.predicted_start) == ("node_leased", at(21))
    assert "no earlier gap is as long as its 3h" in job.reason
    assert "Sooner with resources.wall_time: 1h 30min (12:00 UTC)" in job.reason


def test_a_second_look_in_a_cycle_sees_all_that_a_fresh_one_would(world: World) -> None:
    """A job that came, one that went, one that was tried again, one whose lease was swapped."""
    node_id = world.node()
    first, second = (world.book(node_id, at(hour), 1) for hour in (14, 15))
    stays, goes, tried, swapped = (world.job(wall="20min") for _ in range(4))
    with world.database.write() as session:
        session.get_one(Job, swapped).lease_id = first
    before = read_world(world.scheduler, world.now)
    assert {job.id for job in before.waiting} == {stays, goes, tried, swapped}
    comes = world.job(wall="20min")
    with world.database.write() as session:
        session.get_one(Job, swapped).lease_id = second
        session.get_one(Job, tried).epoch += 1
        session.get_one(Job, goes).state = JobState.CANCELLED
    again = read_world(world.scheduler, world.now, before=before)
    by_id = {job.id: job for job in again.waiting}
    fresh = {job.id: job for job in read_world(world.scheduler, world.now).waiting}
    assert by_id == fresh
    assert set(by_id) == {stays, comes, tried, swapped}
    assert by_id[swapped].lease_ids == (second,)
    assert by_id[stays] is next(job for job in before.waiting if job.id == stays)


def test_a_second_look_in_a_cycle_sees_that_classes_have_come_and_gone(world: World) -> None:
    first = world.node("a", "cpu2")
    job_id = world.job(wall="20min")
    before = read_world(world.scheduler, world.now)
    world.node("b", "cpu8")
    with world.database.write() as session:
        session.get_one(Node, first).state = NodeState.RETIRED
    (again,) = read_world(world.scheduler, world.now, before=before).waiting
    assert (again.id, again.classes) == (job_id, ("cpu8",))


def test_the_sentence_says_which_change_would_start_it_sooner(world: World) -> None:
    world.node("a", "cpu2")
    world.node("b", "cpu8")
    assert len([world.job(wall="3h") for _ in range(2)]) == len(world.cycle())
    world.node("c", "cpu8")
    job_id = world.job(wall="3h", node_class="cpu2")
    assert world.cycle() == []
    assert "Sooner with resources.node_class: cpu8 (now)." in world.get_job(job_id).reason


def test_a_rigid_job_is_told_that_it_could_start_if_it_saved(world: World) -> None:
    node_id = world.node()
    world.book(node_id, at(12), 1, user="bob")
    job_id = world.job(wall="3h", checkpointable=False)
    assert world.cycle() == []
    assert "resources.checkpointable: true (now)" in world.get_job(job_id).reason


# Edge case 74
def test_a_job_that_is_stopped_ten_times_without_a_new_checkpoint_is_held(world: World) -> None:
    world.node()
    job_id = world.job(wall="3h")
    for stopped in range(10):
        assert world.get_job(job_id).state is JobState.QUEUED, stopped
        assert world.cycle() == [job_id]
        world.runs(job_id)
        world.now += timedelta(minutes=5)
        world.exits(job_id, Outcome.PREEMPTED)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert (job.state, job.reason_code, job.desired) == ("paused", "held", "pause")
    assert "stopped 10 times in a row before it had saved a checkpoint" in job.reason
    with world.database.write() as session:
        advance(
            session,
            session.get_one(Job, job_id),
            JobState.QUEUED,
            now=world.now,
            reason_code="resumed",
            message="Resumed.",
            actor="user_ada",
        )
    assert world.cycle() == [job_id]


# Edge case 74
def test_a_job_that_saves_between_its_stops_is_never_held(world: World) -> None:
    world.node()
    job_id = world.job(wall="3h")
    for _ in range(11):
        assert world.cycle() == [job_id]
        world.runs(job_id)
        world.saves(job_id)
        world.now += timedelta(minutes=5)
        world.exits(job_id, Outcome.PREEMPTED)
    assert world.cycle() == [job_id]


# Edge case 74
def test_a_job_that_saved_nothing_twice_is_not_started_in_a_gap_again(world: World) -> None:
    node_id = world.node()
    world.book(node_id, at(12), 1, user="bob")
    job_id = world.job(wall="5h")
    for _ in range(2):
        assert world.cycle() == [job_id]
        world.exits(job_id, Outcome.LEASE_ENDED)
    assert world.cycle() == []
    assert world.get_job(job_id).predicted_start == at(13)


def test_a_later_job_may_pass_only_where_it_delays_nobody(world: World) -> None:
    small, large = world.node("small", "cpu2"), world.node("large", "cpu8")
    world.book(large, at(13), 1, user="bob")
    runs = world.job(ranks=4, wall="60min")
    world.cycle()
    assert world.attempt(runs).node_id == large
    long_one = world.job(ranks=4, wall="3h")  # needs cpu8: after the booked hour, at 14:00
    little = world.job(ranks=1, wall="20min", user="bob")
    assert world.cycle() == [little]
    assert world.attempt(little).node_id == small
    assert world.get_job(long_one).predicted_start == at(14)


def test_a_job_starts_with_the_ranks_that_auto_stood_for_when_it_was_submitted(
    world: World,
) -> None:
    small = world.node("small", "cpu2")
    eight, two = world.job(ranks=8, auto=True), world.job(ranks=2, auto=True)
    assert world.cycle() == [two]  # its plan is for two ranks, as the node has to train it
    assert world.attempt(two).node_id == small
    large = world.node("large", "cpu8")
    assert world.cycle() == [eight]
    assert world.attempt(eight).node_id == large


def test_the_smallest_class_that_fits_comes_first_then_the_name(world: World) -> None:
    world.node("a-large", "cpu8")
    second, first = world.node("small-2", "cpu2"), world.node("small-1", "cpu2")
    jobs = [world.job(), world.job()]
    world.cycle()
    assert [world.attempt(job).node_id for job in jobs] == [first, second]


def test_the_end_of_a_lease_saves_its_job_and_queues_it_with_its_old_place(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 1)
    job_id = world.job(lease=lease_id, wall="3h")
    world.now = at(11)
    world.report()
    assert world.cycle() == [job_id]
    world.runs(job_id)
    behind = world.job(wall="3h", user="bob")
    world.now = at(11, 55)
    world.report()
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ENDING
    assert world.get_job(job_id).state is JobState.STOPPING
    assert world.attempt(job_id).stop_reason is Outcome.LEASE_ENDED
    world.now = at(11, 56)
    world.exits(job_id, Outcome.LEASE_ENDED)
    job = world.get_job(job_id)
    assert (job.state, job.interruptions, job.used_s) == (JobState.QUEUED, 1, 56 * 60)
    assert world.cycle() == [job_id]  # before the one that came later; and its lease was ended
    assert world.get_lease(lease_id).state is LeaseState.ENDED
    lease = world.lease_of(job_id)
    assert (lease.kind, lease.hold_end) == (LeaseKind.WALK_IN, at(15))  # 2 h 4 min are left
    assert world.get_job(behind).state is JobState.QUEUED


def test_a_job_in_a_booked_lease_waits_for_it_and_starts_when_it_begins(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(12), 2)
    first = world.job(lease=lease_id, wall="30min", name="warm-up")
    second = world.job(lease=lease_id)
    assert world.cycle() == []
    job = world.get_job(first)
    assert (job.reason_code, job.predicted_start) == ("lease_not_begun", at(12))
    assert job.reason == "Waits for its lease on north-01, which begins at 12:00 UTC."
    world.now = at(12)
    world.report()
    assert world.cycle() == [first]
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    assert world.attempt(first).lease_id == lease_id
    world.cycle()
    job = world.get_job(second)
    assert job.reason_code == "lease_busy"
    assert job.reason.startswith("Waits for warm-up in its lease on north-01")
    assert job.predicted_start == at(12, 30)
    world.now = at(12, 10)
    world.exits(first)
    assert world.cycle() == [second]
    world.now = at(12, 20)
    world.exits(second)
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE  # it is booked to its end
    world.now = at(13, 55)
    world.report()
    world.cycle()
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ENDED


def test_a_job_whose_lease_is_over_joins_the_queue(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(12), 1)
    job_id, other = world.job(lease=lease_id), world.job(wall="3h", user="bob")
    world.now = at(12)
    world.report()
    assert world.cycle() == [job_id]
    world.runs(job_id)
    world.now = at(12, 55)
    world.report()
    world.cycle()
    world.exits(job_id, Outcome.LEASE_ENDED)
    assert world.get_job(job_id).state is JobState.FAILED  # 55 minutes of its 20
    again = world.job(lease=lease_id, created_at=at(9))
    started = world.cycle()
    assert started == [again]
    assert world.lease_of(again).kind is LeaseKind.WALK_IN
    assert world.get_job(other).state is JobState.QUEUED


def test_a_released_lease_ends_when_its_node_is_clean_and_frees_its_hours(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(10), 3)
    world.cycle()
    lease = world.get_lease(lease_id)
    assert lease.state is LeaseState.ACTIVE
    waiting = world.job(wall="60min", user="bob")
    assert world.cycle() == []
    with world.database.write() as session:
        advance(
            session,
            session.merge(lease),
            LeaseState.ENDING,
            now=world.now,
            reason_code="released",
            message="Given back.",
            actor="user_ada",
        )
    assert world.cycle() == [waiting]
    assert world.get_lease(lease_id).state is LeaseState.ENDED


def test_a_silent_node_is_told_by_name_and_gets_no_work(world: World) -> None:
    world.node()
    job_id = world.job()
    assert world.cycle(after_s=31) == []
    job = world.get_job(job_id)
    assert (job.reason_code, job.predicted_start) == ("nodes_unavailable", None)
    assert job.reason == (
        "Starts when a node on which it fits is available again: "
        "north-01 has not been heard from since 10:57 UTC."
    )
    world.report()
    assert world.cycle() == [job_id]


def test_a_drained_node_gets_no_work_and_goes_into_maintenance_when_nothing_runs(
    world: World,
) -> None:
    node_id = world.node(state=NodeState.DRAINING)
    job_id = world.job()
    assert world.cycle() == []
    assert world.get_node(node_id).state is NodeState.MAINTENANCE
    assert "north-01 is in maintenance" in world.get_job(job_id).reason


def test_what_fits_nowhere_says_what_it_needs(world: World) -> None:
    world.node("north-01", "cpu2")
    too_many, other_class = world.job(ranks=4), world.job(node_class="cpu8")
    world.cycle()
    job = world.get_job(too_many)
    assert job.reason_code == "fits_nowhere"
    assert "4 ranks" in job.reason
    job = world.get_job(other_class)
    assert job.reason_code == "no_such_class"
    assert "cpu8" in job.reason
    assert "classes: cpu2" in job.reason


def test_jobs_of_a_disabled_user_wait_and_those_of_others_pass(world: World) -> None:
    world.node()
    with world.database.write() as session:
        session.get_one(User, "user_ada").disabled = True
    theirs, others = world.job(user="ada"), world.job(user="bob")
    assert world.cycle() == [others]
    assert world.get_job(theirs).reason_code == "user_disabled"


def test_a_failed_start_waits_for_its_back_off_and_says_after_what(world: World) -> None:
    world.node()
    job_id = world.job()
    world.cycle()
    world.exits(job_id, Outcome.START_FAILED)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert (job.state, job.reason_code) == (JobState.QUEUED, "back_off")
    assert "failure 1; at most 3 failures are retried" in job.reason
    assert "It ended: start_failed." in job.reason
    before = job.reason
    world.cycle(after_s=2)
    assert world.get_job(job_id).reason == before
    assert world.cycle(after_s=3) == [job_id]
    assert world.get_job(job_id).epoch == 2


def test_a_job_goes_on_only_when_its_checkpoint_is_in_the_store(world: World) -> None:
    world.node()
    job_id = world.job(wall="3h")
    world.cycle()
    world.exits(job_id, Outcome.PREEMPTED, kept=False)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert job.reason_code == "saving"
    assert "copied from north-01 to the store" in job.reason
    world.keeps(job_id)
    assert world.cycle() == [job_id]


def test_a_node_that_never_brings_the_files_keeps_its_job_waiting_ten_minutes(
    world: World,
) -> None:
    world.node()
    job_id = world.job(wall="3h")
    world.cycle()
    world.exits(job_id, Outcome.PREEMPTED, kept=False)
    world.now += timedelta(minutes=9)
    world.report()
    assert world.cycle() == []
    world.now += timedelta(minutes=1, seconds=1)
    world.report()
    assert world.cycle() == [job_id]


def test_an_unchanged_sentence_is_not_written_again(world: World) -> None:
    world.node()
    world.job()
    world.cycle()
    job_id = world.job()
    world.cycle()
    told = list(world.bells.jobs)
    assert told[-1] == job_id
    for _ in range(5):
        world.cycle(after_s=2)
    assert world.bells.jobs == told


def test_an_attempt_that_is_not_taken_up_rings_its_node_again(world: World) -> None:
    clock = [0.0]
    world.scheduler.dispatcher._monotonic = lambda: clock[0]
    world.node()
    job_id = world.job()
    world.cycle()
    assert world.bells.nodes == ["north-01"]
    for second in (1.0, 4.0, 5.5, 7.0):
        clock[0] = second
        world.cycle()
    assert world.bells.nodes == ["north-01"] * 2
    world.runs(job_id)
    clock[0] = 60.0
    world.cycle()
    assert world.bells.nodes == ["north-01"] * 2


def test_a_job_that_its_owner_cancelled_meanwhile_is_not_started(world: World) -> None:
    world.node()
    job_id = world.job()
    take = world.scheduler.leadership.write

    def cancelled_first() -> object:
        with world.database.write() as session:
            advance(
                session,
                session.get_one(Job, job_id),
                JobState.CANCELLED,
                now=world.now,
                reason_code="cancelled",
                message="Cancelled.",
                actor="user_ada",
            )
        world.scheduler.leadership.write = take  # type: ignore[method-assign]
        return take()

    world.scheduler.leadership.write = cancelled_first  # type: ignore[method-assign,assignment]
    assert world.cycle() == []
    assert world.get_job(job_id).state is JobState.CANCELLED
    assert world.get_job(job_id).epoch == 0
    other = world.job()
    assert world.cycle() == [other]  # and no lease was left behind


def test_it_knows_when_the_next_lease_begins_or_ends(world: World) -> None:
    node_id = world.node()
    world.go(at(10))
    assert world.scheduler.turn_at is None
    world.book(node_id, at(12), 2)
    for moment, turn_at in (
        (at(10), at(12)),
        (at(12), at(13, 55)),
        (at(13, 55), None),  # nothing runs in it: it is over
    ):
        world.go(moment)
        assert world.scheduler.turn_at == turn_at
