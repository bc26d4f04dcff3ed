"""A lease is taken back while its owner comes, others book its hours and its guest is there."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from api.leases import booking
from api.leases.schemas import Block
from api.web.identity import Person
from core.base.errors import ServiceError
from core.database.database import Database
from core.leases.situation import lock_user
from core.states import LIVE_ATTEMPT, AttemptState, LeaseState
from core.tables.jobs import Attempt, AttemptPart
from core.tables.kinds import LeaseKind, Role, Scope
from core.tables.leases import Lease
from scheduler.cycle import run_cycle
from scheduler.leases.offers import WaitlistMemory
from scheduler.leases.walk_ins import Refusals
from scheduler.queue.fitting import Fitting
from scheduler.reaper import Holiday
from tests.core.holds import OVERBOOKED
from tests.one_database import quick_on_postgresql
from tests.scheduler.queue.test_guests import OPEN, STRICT
from tests.scheduler.world import World, at

pytestmark = pytest.mark.race

NODES = 8
BOB = Person("user_bob", "bob", Role.USER, "UTC", "t", frozenset(Scope))


@pytest.fixture
def world(database: Database) -> World:
    made = World(database, at(10))
    made.apply(OPEN)
    return made


@quick_on_postgresql
def test_a_node_has_one_holder_and_what_runs_on_it_is_in_its_lease(world: World) -> None:
    names = [f"north-{number:02}" for number in range(NODES)]
    hosts = {name: world.book(world.node(name), at(11), 3, no_show=STRICT) for name in names}
    world.go(at(11))
    guests = [world.job(user="bob", wall="2h") for _ in names]
    assert sorted(world.go(at(11, 15))) == sorted(guests)
    for guest in guests:
        world.runs(guest)
    world.now = at(11, 30)
    world.report()

    def book(name: str) -> None:
        with world.database.write() as session:
            lock_user(session, BOB.id)
            block = Block(nodes=[name], start=at(12), hours=1)
            booking.book(session, BOB, block, now=world.now)

    # A scheduler of its own, as another process has: what one remembers is not for two threads.
    other = replace(
        world.scheduler,
        fitting=Fitting(),
        holiday=Holiday(),
        refusals=Refusals(),
        line=WaitlistMemory(),
    )
    works: list[Callable[[], object]] = [world.cycle, partial(run_cycle, other, world.now)]
    works += [partial(book, name) for name in names]
    works += [partial(world.job, user="ada", lease=lease) for lease in hosts.values()]
    gate = threading.Barrier(len(works))

    def refused(work: Callable[[], object]) -> ServiceError | None:
        gate.wait(60)
        try:
            work()
        except ServiceError as error:
            return error
        return None

    with ThreadPoolExecutor(len(works)) as pool:
        assert all(error.status < 500 for error in pool.map(refused, works) if error)
    world.cycle()

    with world.database.read() as session:
        assert session.scalar(OVERBOOKED) == 0
        live = session.execute(
            select(Attempt, AttemptPart, Lease)
            .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
            .join(Lease, Lease.id == AttemptPart.lease_id)
            .where(Attempt.state.in_(LIVE_ATTEMPT))
        ).all()
        assert sorted(attempt.job_id for attempt, _, _ in live) == sorted(guests)
        for attempt, part, lease in live:
            assert (attempt.lease_id, part.node_id) == (lease.id, lease.node_id)
            if lease.kind is LeaseKind.WALK_IN:
                assert (lease.user_id, lease.state) == (BOB.id, LeaseState.ACTIVE)
                assert attempt.state is AttemptState.RUNNING
            else:  # somebody came, or booked the hours: it saves, and then leaves
                assert attempt.state is AttemptState.STOPPING
                assert lease.state in (LeaseState.ACTIVE, LeaseState.ENDING)
