"""Workbenches that start in the minutes before their lease, on slots that are left clean."""

import pytest
from sqlalchemy import select

from api.nodes.orders import deadlines
from core.database.database import Database
from core.leases import leases
from core.leases.adjacent import stopped_with
from core.states import JobState, LeaseState, Outcome
from core.tables.leases import Lease
from tests.scheduler.world import World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(9))


@pytest.mark.parametrize("num_slots", [None, 1])
def test_it_starts_in_the_grace_of_the_block_before_and_goes_on_in_its_lease(
    world: World, num_slots: int | None
) -> None:
    lease = world.book(world.node(), at(11), 2, num_slots=num_slots)
    bench = world.workbench(lease, ranks=1)
    assert world.go(at(10, 54, 59)) == []
    assert world.go(at(10, 55)) == [bench]
    before = world.lease_of(bench)
    assert (before.hold_start, before.hold_end, before.counts) == (at(10, 55), at(11), False)
    assert world.get_lease(lease).state is LeaseState.BOOKED
    world.runs(bench)
    assert world.go(at(10, 59)) == []
    assert world.get_job(bench).state is JobState.RUNNING
    with world.database.read() as session:
        last = stopped_with(session, session.get_one(Lease, before.id))
        job, attempt = session.merge(world.get_job(bench)), session.merge(world.attempt(bench))
        ends = deadlines(job, attempt, [last], now=world.now)
    assert ends.stop_in_s == 60 + 115 * 60  # at 12:55
    world.go(at(11))
    assert world.lease_of(bench).id == lease
    assert world.get_lease(lease).state is LeaseState.ACTIVE
    assert world.get_lease(before.id).state is LeaseState.ENDED
    assert world.get_job(bench).state is JobState.RUNNING
    assert world.get_job(bench).epoch == 1


def test_it_does_not_touch_what_others_hold_or_have_left_unclean(world: World) -> None:
    node = world.node()
    first = world.book(node, at(10), 1, user="bob")
    lease = world.book(node, at(11), 2)
    bench = world.workbench(lease)
    world.go(at(10))
    theirs = world.job(user="bob", lease=first, wall="2h")
    assert world.go(at(10, 1)) == [theirs]
    world.runs(theirs)
    assert world.go(at(10, 55)) == []  # bob's job is asked to stop
    assert world.get_job(theirs).state is JobState.STOPPING
    world.now = at(10, 56)
    world.exits(theirs, Outcome.LEASE_ENDED)
    world.report(clean=False)
    assert world.cycle() == []
    assert world.get_job(bench).state is JobState.QUEUED
    started = world.go(at(10, 57)) or world.go(
        at(10, 57, 1)
    )  # bob's lease ends, its hours are free
    assert started == [bench]


def test_what_is_not_a_workbench_or_too_short_or_too_late_waits_for_its_lease(
    world: World,
) -> None:
    lease = world.book(world.node(), at(11), 2)
    job = world.job(user="ada", lease=lease, ranks=1)
    short = world.workbench(lease, ranks=1, wall="1h")
    assert world.go(at(10, 56)) == []
    late = world.workbench(lease, ranks=1)
    assert world.go(at(10, 59, 55)) == []
    assert world.go(at(11)) == [job, short]
    assert world.get_job(late).state is JobState.QUEUED  # both slots are taken


def test_the_workbench_is_over_if_its_lease_is_given_back_meanwhile(world: World) -> None:
    lease = world.book(world.node(), at(11), 2)
    bench = world.workbench(lease)
    assert world.go(at(10, 56)) == [bench]
    world.runs(bench)
    with world.database.write() as session:
        given_back = session.get_one(Lease, lease)
        leases.cancel(session, given_back, now=world.now, message="Given back.", actor="t")
    world.go(at(10, 57))
    assert world.attempt(bench).stop_reason is Outcome.LEASE_ENDED
    world.exits(bench, Outcome.LEASE_ENDED)
    world.go(at(10, 58))
    with world.database.read() as session:
        states = set(session.scalars(select(Lease.state)))
    assert states == {LeaseState.CANCELLED, LeaseState.ENDED}
