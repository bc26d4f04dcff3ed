"""Idle workbenches: their slots are lent to jobs, and given back when their owner returns."""

from typing import Any

import pytest

from api.nodes.orders import HOST_IS_BACK_GRACE_S, orders_for
from core.database.database import Database
from core.states import JobState, LeaseState, Outcome, Sharing
from core.tables.jobs import Attempt
from core.workspaces.quota import Quota
from tests.scheduler.world import World, at

OPEN = "policy: {id: open, version: 1}\nscheduling: {idle_after_min: 15}\n"
STILL = OPEN.replace("version: 1", "version: 2")
QUOTA = Quota(max_bytes=1, max_files=1)


@pytest.fixture
def world(database: Database) -> World:
    made = World(database, at(10))
    made.apply(OPEN)
    return made


def seated(world: World, **choice: Any) -> tuple[str, str]:
    """A lease of ada's from 11:00 to 14:00, and her workbench that runs in it."""
    lease = world.book(world.node(), at(11), 3)
    bench = world.workbench(lease, **{"when_idle": "lend", **choice})
    assert world.go(at(11)) == [bench]
    world.runs(bench)
    return lease, bench


def leave(world: World, bench: str, *, held_gib: float | None = 0.0) -> None:
    """Its porter has said that it is idle, and its node what its GPUs hold."""
    with world.database.write() as session:
        attempt = session.get_one(Attempt, world.attempt(bench).id)
        attempt.idle_since, attempt.gpu_held_gib = world.now, held_gib


def come_back(world: World, bench: str) -> None:
    """A key was pressed in it."""
    with world.database.write() as session:
        session.get_one(Attempt, world.attempt(bench).id).idle_since = None


def test_a_guest_has_its_slots_until_its_owner_is_back(world: World) -> None:
    lease, bench = seated(world)
    guest = world.job(user="bob", wall="1h")
    assert world.go(at(11, 20)) == []
    leave(world, bench)
    assert world.go(at(11, 21)) == [guest]
    assert world.attempt(guest).lease_id == lease
    assert world.parts(guest)[0].slots == world.parts(bench)[0].slots == [0, 1]
    world.runs(guest)
    assert world.go(at(11, 40)) == []

    come_back(world, bench)
    assert world.go(at(11, 41)) == []
    assert world.get_job(guest).state is JobState.STOPPING
    assert world.attempt(guest).stop_reason is Outcome.PREEMPTED
    assert world.get_job(bench).state is JobState.RUNNING
    with world.database.read() as session:
        node = world.attempt(guest).node_id
        orders = orders_for(session, node, [], quota=QUOTA, now=world.now)
    (of_guest,) = (one for one in orders.attempts if one.job_id == guest)
    assert of_guest.stop is not None
    assert of_guest.stop.grace_s == HOST_IS_BACK_GRACE_S
    assert of_guest.slots_of_node == 2  # confined to its share: the owner's programs stay there
    world.exits(guest, Outcome.PREEMPTED)
    assert world.go(at(11, 42)) == []
    assert world.get_job(guest).state is JobState.QUEUED
    assert world.get_lease(lease).state is LeaseState.ACTIVE


@pytest.mark.parametrize(
    ("choice", "held_gib", "policy"),
    [
        ("keep", 0.0, STILL),
        ("lend", 3.2, STILL),
        ("release", None, STILL),  # what it holds is not known yet
        ("lend", 0.0, "policy: {id: open, version: 2}\n"),
        ("lend", 0.0, STILL.replace("15}", "15, soft_fit: 'off'}")),
    ],
)
def test_nobody_is_let_in_without_leave_or_beside_held_memory(
    world: World, choice: str, held_gib: float | None, policy: str
) -> None:
    _, bench = seated(world, when_idle=choice)
    world.job(user="bob", wall="1h")
    leave(world, bench, held_gib=held_gib)
    world.apply(policy)
    assert world.go(at(11, 21)) == []


def test_a_node_that_cannot_keep_owners_apart_takes_no_guest_beside_a_workbench(
    world: World,
) -> None:
    lease = world.book(world.node(sharing=Sharing.RECIPES), at(11), 3)
    bench = world.workbench(lease, when_idle="lend")
    world.go(at(11))
    world.runs(bench)
    leave(world, bench)
    world.job(user="bob", wall="1h")
    assert world.go(at(11, 21)) == []


def test_jobs_of_its_owner_go_before_guests_and_stay_when_the_owner_is_back(world: World) -> None:
    lease, bench = seated(world)
    guest = world.job(user="bob", wall="1h")
    leave(world, bench)
    assert world.go(at(11, 21)) == [guest]
    world.runs(guest)
    mine = world.job(user="ada", lease=lease)
    assert world.go(at(11, 22)) == []
    assert world.get_job(guest).state is JobState.STOPPING
    world.exits(guest, Outcome.PREEMPTED)
    assert world.go(at(11, 23)) == [mine]
    assert world.parts(mine)[0].slots == [0, 1]
    world.runs(mine)
    come_back(world, bench)
    assert world.go(at(11, 24)) == []
    assert world.get_job(mine).state is JobState.RUNNING


def test_another_workbench_in_use_in_the_lease_keeps_guests_out(world: World) -> None:
    lease = world.book(world.node(), at(11), 3)
    first, second = (world.workbench(lease, when_idle="lend", ranks=1) for _ in range(2))
    assert world.go(at(11)) == [first, second]
    for bench in (first, second):
        world.runs(bench)
    leave(world, first)
    guest = world.job(user="bob", ranks=1, wall="1h")
    assert world.go(at(11, 21)) == []
    leave(world, second)
    assert world.go(at(11, 22)) == [guest]
    world.runs(guest)
    come_back(world, second)
    world.go(at(11, 23))
    assert world.get_job(guest).state is JobState.STOPPING


def test_a_guest_leaves_with_the_workbench_and_with_the_lease(world: World) -> None:
    _, bench = seated(world)
    guest = world.job(user="bob", wall="8h")
    leave(world, bench)
    assert world.go(at(11, 21)) == [guest]
    world.runs(guest)
    world.go(at(13, 55))
    assert world.attempt(guest).stop_reason is Outcome.LEASE_ENDED
