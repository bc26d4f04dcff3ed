"""Lost or only silent: the rules of reliability one by one, and the times when none applies."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from core.database.database import Database
from core.jobs.attempts import conclude
from core.states import AttemptState, JobState, LeaseState, NodeState, Outcome
from core.tables.jobs import Attempt, Job
from core.tables.nodes import Node
from scheduler.reaper import mass_silence
from tests.scheduler.queue.test_timeline import node as node_seen
from tests.scheduler.world import World, at

MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(migrated_database: Database) -> World:
    """Three nodes more than needed, so that one that falls silent is a quarter of all."""
    world = World(migrated_database, at(10, 57))
    for name in ("z-1", "z-2", "z-3"):
        world.node(name, "cpu8")
    return world


def started(world: World, wall: str = "20min") -> tuple[str, str]:
    """A job that runs on a small node; their ids."""
    node_id = world.node("a-1", "cpu2")
    job_id = world.job(wall=wall, node_class="cpu2")
    assert world.cycle() == [job_id]
    assert world.attempt(job_id).node_id == node_id
    world.runs(job_id)
    return job_id, node_id


def all_but(world: World, silent: str) -> None:
    """Every node but one reports."""
    with world.database.read() as session:
        ids = [node_id for node_id in session.scalars(select(Node.id)) if node_id != silent]
    for node_id in ids:
        world.report(node_id)


def test_a_silent_node_is_marked_after_30_s_and_nothing_else_happens(world: World) -> None:
    job_id, node_id = started(world)
    since = world.now
    world.now += timedelta(seconds=30)
    all_but(world, node_id)
    world.cycle()
    assert world.get_node(node_id).unreachable_since is None
    world.cycle(after_s=1)
    assert world.get_node(node_id).unreachable_since == since
    assert world.get_node(node_id).state is NodeState.READY
    assert world.get_job(job_id).state is JobState.RUNNING
    assert list(world.events(node_id)) == ["unreachable"]
    world.report(node_id)
    world.cycle()
    assert world.get_node(node_id).unreachable_since is None
    assert list(world.events(node_id)) == ["unreachable", "heard_again"]


def test_silence_alone_never_ends_an_attempt_before_its_lease(world: World) -> None:
    job_id, node_id = started(world)
    for minute in range(0, 64, 7):  # 10:57:30 to 12:00:30
        world.now = at(10, 57, 30) + minute * MINUTE
        all_but(world, node_id)
        world.cycle()
        assert world.attempt(job_id).state is not AttemptState.EXITED
    assert world.get_job(job_id).state is JobState.STOPPING  # its lease is over, and it was asked
    world.now = at(12, 1)
    all_but(world, node_id)
    world.cycle()
    attempt, job = world.attempt(job_id), world.get_job(job_id)
    assert attempt.outcome is Outcome.NODE_LOST
    assert "a-1 has not been heard from since 10:57 UTC" in attempt.reason
    assert "12:00 UTC" in attempt.reason
    assert (job.state, job.infrastructure_failures, job.used_s) == (JobState.QUEUED, 1, 0)
    assert world.get_node(node_id).state is NodeState.DIRTY
    assert world.lease_of(job_id).state is LeaseState.ENDED


def test_what_returns_before_its_lease_ends_goes_on_as_if_nothing_had_been(world: World) -> None:
    job_id, node_id = started(world, wall="2h")
    for _ in range(6):
        world.now += 10 * MINUTE
        all_but(world, node_id)
        world.cycle()
    world.report(node_id)
    world.cycle()
    assert world.get_job(job_id).state is JobState.RUNNING
    assert world.get_job(job_id).epoch == 1


def test_another_boot_ends_what_was_started_before(world: World) -> None:
    job_id, node_id = started(world)
    world.now += MINUTE
    world.report()
    world.report(node_id, boot_id="boot-2")
    world.cycle()
    assert world.attempt(job_id).outcome is Outcome.NODE_LOST
    assert world.attempt(job_id).reason == "a-1 was restarted while the job was on it."
    assert world.get_job(job_id).state is JobState.QUEUED
    world.now += timedelta(seconds=6)
    world.report()
    world.report(node_id, boot_id="boot-2")
    assert world.cycle() == [job_id]
    assert world.get_job(job_id).epoch == 2


def test_another_boot_may_still_take_up_what_was_only_assigned(world: World) -> None:
    node_id = world.node("a-1", "cpu2")
    job_id = world.job(node_class="cpu2")
    world.cycle()
    world.now += MINUTE
    world.report()
    world.report(node_id, boot_id="boot-2")
    world.cycle()
    assert world.attempt(job_id).state is AttemptState.ASSIGNED


@pytest.mark.parametrize("taken_up", [True, False])
def test_an_attempt_that_its_node_does_not_list_for_a_minute_is_lost(
    world: World, taken_up: bool
) -> None:
    node_id = world.node("a-1", "cpu2")
    job_id = world.job(node_class="cpu2")
    world.cycle()
    if taken_up:
        world.runs(job_id)
    for second in (0, 3, 27, 57, 59.9):
        world.now = at(10, 57) + timedelta(seconds=second)
        all_but(world, node_id)
        world.report(node_id, missing=True)
        world.cycle()
        assert world.attempt(job_id).state is not AttemptState.EXITED, second
    world.now = at(10, 58)
    all_but(world, node_id)
    world.report(node_id, missing=True)
    world.cycle()
    assert world.attempt(job_id).outcome is Outcome.NODE_LOST
    assert "a-1 has not listed the job since 10:57 UTC" in world.attempt(job_id).reason


def test_an_attempt_that_is_listed_again_begins_its_minute_anew(world: World) -> None:
    job_id, node_id = started(world)
    for number in range(10):
        world.now += timedelta(seconds=15)
        all_but(world, node_id)
        world.report(node_id, missing=number % 4 != 3)  # listed once a minute
        world.cycle()
    assert world.attempt(job_id).state is not AttemptState.EXITED


def test_silence_does_not_count_as_heartbeats_that_miss_it(world: World) -> None:
    job_id, node_id = started(world)
    world.report(node_id, missing=True)
    for _ in range(5):
        world.now += MINUTE
        all_but(world, node_id)
        world.cycle()
    assert world.attempt(job_id).state is not AttemptState.EXITED


def lose_by_boot(world: World, node_id: str) -> None:
    world.report()
    world.report(node_id, boot_id="boot-2")


def test_a_new_leader_speaks_no_verdict_for_a_minute(world: World) -> None:
    job_id, node_id = started(world)
    lose_by_boot(world, node_id)
    world.scheduler.leadership.leader_since = world.now
    world.now += timedelta(seconds=59)
    lose_by_boot(world, node_id)
    world.cycle()
    assert world.attempt(job_id).state is not AttemptState.EXITED
    world.now += timedelta(seconds=1)
    lose_by_boot(world, node_id)
    world.cycle()
    assert world.attempt(job_id).state is AttemptState.EXITED


def test_no_verdict_while_many_fall_silent_at_once_nor_in_the_minute_after(world: World) -> None:
    """The API was away for ten minutes over the end of the lease: nobody is lost for that."""
    job_id, node_id = started(world)
    world.now = at(11, 56)
    world.report()
    world.cycle()  # asked to stop
    for second in range(0, 600, 55):
        world.now = at(11, 56) + timedelta(seconds=second)
        world.cycle()
    assert world.attempt(job_id).state is not AttemptState.EXITED
    world.now = at(12, 6)
    all_but(world, node_id)  # this one is the last to come back
    world.cycle()
    assert world.attempt(job_id).state is not AttemptState.EXITED
    world.now = at(12, 6, 40)
    world.report()
    world.exits(job_id)
    world.cycle()
    assert world.get_job(job_id).state is JobState.SUCCEEDED
    assert world.get_node(node_id).state is NodeState.READY


def test_a_late_report_of_what_was_lost_changes_nothing(world: World) -> None:
    job_id, node_id = started(world)
    lose_by_boot(world, node_id)
    world.cycle()
    lost = world.attempt(job_id)
    assert lost.outcome is Outcome.NODE_LOST
    with world.database.write() as session:
        late = conclude(
            session,
            session.get_one(Job, job_id),
            session.get_one(Attempt, lost.id),
            Outcome.SUCCEEDED,
            message="It had finished.",
            now=world.now,
            actor="node",
        )
    assert not late
    assert world.get_job(job_id).state is JobState.QUEUED
    assert world.attempt(job_id).outcome is Outcome.NODE_LOST


def test_a_dirty_node_takes_work_again_only_when_it_says_that_it_is_clean(world: World) -> None:
    job_id, node_id = started(world)
    world.now = at(11, 55)
    world.report()
    world.cycle()
    world.exits(job_id, Outcome.LEASE_ENDED, clean=False)
    world.now = at(12, 0, 14)
    world.report()
    world.report(node_id, clean=False)
    world.cycle()
    assert world.lease_of(job_id).state is LeaseState.ENDING
    world.now = at(12, 0, 15)
    world.report(node_id, clean=False)
    world.cycle()
    assert world.lease_of(job_id).state is LeaseState.ENDED
    dirty = world.get_node(node_id)
    assert dirty.state is NodeState.DIRTY
    assert "has not reported that it is clean" in dirty.reason
    world.report(node_id, clean=True)
    world.cycle()
    assert world.get_node(node_id).state is NodeState.READY


@pytest.mark.parametrize(
    ("silent_min", "expected"),
    [
        ([0, 0, 0, 0], False),
        ([5, 0, 0, 0], False),  # a quarter: their own fault
        ([5, 5, 0, 0], True),  # half, within ten minutes
        ([15, 15, 0, 0], False),  # long gone
        ([15, 5, 0, 0], False),
        ([15, 15, 15, 15], True),  # not one is heard
        ([5], True),
        ([], False),
    ],
)
def test_mass_silence_is_ours(silent_min: list[int], expected: bool) -> None:
    nodes = [
        replace(node_seen(number), last_seen_at=at(12) - minutes * MINUTE, heard=minutes * 60 <= 30)
        for number, minutes in enumerate(silent_min)
    ]
    assert mass_silence(nodes, at(12)) is expected
