"""Neighbours on one node: what one of them does never changes how the other's attempt ends; and
each begins at its start, if those before it end clean."""

from random import Random

import pytest
from sqlalchemy import select

from core.base.errors import HourTaken
from core.database.database import Database
from core.jobs import attempts
from core.states import AttemptState, JobState, LeaseState, Outcome
from core.tables.jobs import Job
from core.tables.leases import Lease
from tests.one_database import quick_on_postgresql
from tests.scheduler.world import World, at

EXITS = (
    Outcome.SUCCEEDED,
    Outcome.USER_ERROR,
    Outcome.KILLED,
    Outcome.OUT_OF_MEMORY,
    Outcome.GPU_FAILED,
    Outcome.SHIM_LOST,
)
STOPS = (Outcome.CANCELLED, Outcome.PAUSED, Outcome.PREEMPTED, Outcome.LEASE_ENDED)
OWN_ENDS = (Outcome.USER_ERROR, Outcome.SUCCEEDED, Outcome.OUT_OF_MEMORY)


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


@pytest.mark.parametrize("end", [*EXITS, *STOPS])
def test_whatever_ends_a_neighbour_an_attempt_goes_on_and_ends_as_it_ends_itself(
    world: World, end: Outcome
) -> None:
    node = world.node(class_name="cpu8")
    watched = world.job(lease=world.book(node, at(11), 4, num_slots=2), ranks=2, wall="3h")
    beside = world.book(node, at(11), 1, user="bob", num_slots=2)
    neighbour = world.job(lease=beside, user="bob", ranks=2, wall="30min")
    assert set(world.go(at(11))) == {watched, neighbour}
    for job_id in (watched, neighbour):
        world.runs(job_id)
    before = world.attempt(watched)

    if end is Outcome.LEASE_ENDED:
        world.go(at(11, 55))
    elif end in STOPS:
        with world.database.write() as session:
            job = session.get_one(Job, neighbour)
            asked = {"now": world.now, "message": "Stop.", "actor": "t"}
            assert attempts.ask_to_stop(session, job, end, **asked)  # type: ignore[arg-type]
    if end in STOPS:
        assert world.get_job(neighbour).state is JobState.STOPPING
        world.go(at(11, 56))
    world.exits(neighbour, end, clean=end in (Outcome.SUCCEEDED, *STOPS))
    assert world.attempt(neighbour).outcome is end
    for minute in (57, 58, 59):  # what it has left behind is cleared away meanwhile
        world.go(at(11, minute), dirty=(2, 3) if end in EXITS[1:] else ())
    world.go(at(12, 1))

    now = world.attempt(watched)
    assert world.get_job(watched).state is JobState.RUNNING
    assert (now.id, now.epoch, now.state) == (before.id, before.epoch, AttemptState.RUNNING)
    assert (now.stop_reason, now.outcome, now.reason) == (None, None, before.reason)
    own_end = OWN_ENDS[[*EXITS, *STOPS].index(end) % len(OWN_ENDS)]
    world.exits(watched, own_end)
    world.go(at(12, 2))
    assert (world.attempt(watched).id, world.attempt(watched).outcome) == (before.id, own_end)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@quick_on_postgresql
def test_every_booking_begins_at_its_start_if_those_before_it_end_clean(
    world: World, seed: int
) -> None:
    """Leases of random sizes, as many as fit, each with a job that uses all of its slots until it
    is stopped at the lease's end."""
    random, node = Random(seed), world.node(class_name="cpu8")
    leases: list[str] = []
    for _ in range(40):
        start, hours = at(random.randint(11, 16)), random.randint(1, 3)
        user, size = random.choice(("ada", "bob")), random.choice((1, 1, 2, 4, 8, None))
        try:
            leases.append(world.book(node, start, hours, user=user, num_slots=size))
        except HourTaken:
            continue
    assert len(leases) > 8
    jobs = {}
    for lease_id in leases:
        lease = world.get_lease(lease_id)
        user = lease.user_id.removeprefix("user_")
        ranks = lease.num_slots or 8
        jobs[world.job(lease=lease_id, user=user, ranks=ranks, wall="9h")] = lease_id
    for hour in range(11, 19):
        started = [*world.go(at(hour)), *world.go(at(hour, 0, 1))]
        begins = [
            lease_id for lease_id in leases if world.get_lease(lease_id).hold_start == at(hour)
        ]
        assert all(world.get_lease(lease_id).state is LeaseState.ACTIVE for lease_id in begins)
        for job_id in started:
            world.runs(job_id)
        world.go(at(hour, 55))
        with world.database.read() as session:
            stopping = session.scalars(select(Job.id).where(Job.state == JobState.STOPPING)).all()
        for job_id in stopping:
            world.exits(job_id, Outcome.LEASE_ENDED)
        world.go(at(hour, 56))
    with world.database.read() as session:
        states = set(session.scalars(select(Lease.state).where(Lease.id.in_(leases))))
    assert states == {LeaseState.ENDED}
