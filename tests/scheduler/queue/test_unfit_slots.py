"""Slots that are unfit for jobs: the others of the node are used, walk-in or lease."""

import pytest

from core.database.database import Database
from core.leases import node_slots
from core.states import LeaseState
from core.tables.nodes import Node
from tests.scheduler.world import World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


def set_unfit(world: World, node_id: str, *slots: int) -> None:
    with world.database.write() as session:
        node = session.get_one(Node, node_id)
        for slot in range(node.slots):
            if slot in slots:
                node_slots.quarantine(session, node, slot, reason="Sick.", by=node.id)
            else:
                node_slots.put_back(session, node, slot)


def slots_of(world: World, job_id: str) -> list[list[int]]:
    return [part.slots for part in world.parts(job_id)]


def test_a_walk_in_gets_the_fit_slots_of_a_node(world: World) -> None:
    set_unfit(world, world.node(class_name="cpu8"), 0, 2)
    job = world.job(ranks=4, node_class="cpu8")
    assert world.cycle() == [job]
    assert slots_of(world, job) == [[1, 3, 4, 5]]


def test_a_job_passes_the_node_with_too_few_fit_slots_and_a_gang_takes_each_nodes_own(
    world: World,
) -> None:
    short = world.node("north-01", "cpu8")
    set_unfit(world, short, 1)
    whole = world.node("north-02", "cpu8")
    wide = world.job(ranks=8, node_class="cpu8")
    assert world.cycle() == [wide]
    assert [part.node_id for part in world.parts(wide)] == [whole]
    world.exits(wide)
    world.cycle()
    gang = world.job(ranks=2, nodes=2, node_class="cpu8")
    assert world.cycle(after_s=1) == [gang]
    assert sorted(slots_of(world, gang)) == [[0, 1], [0, 2]]


def test_a_job_that_needs_every_slot_waits_and_is_told_which_are_unfit(world: World) -> None:
    node = world.node(class_name="cpu8")
    set_unfit(world, node, 1, 6)
    job = world.job(ranks=8, node_class="cpu8")
    small = world.job(ranks=2, node_class="cpu8", user="bob")
    assert world.cycle() == [small], "what fits on the others is not held up"
    assert "north-01 has GPUs 1 and 6 that are not fit for jobs now" in world.get_job(job).reason
    world.exits(small)
    set_unfit(world, node)
    world.report()
    assert world.cycle(after_s=1) == [job]


def test_a_lease_begins_with_the_fit_slots_and_its_jobs_run_on_them_50(world: World) -> None:
    node = world.node(class_name="cpu8")
    lease = world.book(node, at(11), 2)
    set_unfit(world, node, 0)
    wide = world.job(ranks=8, lease=lease)
    small = world.job(ranks=2, lease=lease)
    world.now = at(11)
    world.report()
    world.cycle()
    assert world.get_lease(lease).state is LeaseState.ACTIVE
    assert "GPU 0 is not fit for jobs now" in world.get_lease(lease).reason
    assert slots_of(world, small) == [[1, 2]]
    world.exits(small)
    world.cycle(after_s=5)
    told = world.get_job(wide).reason
    assert "Needs 8 slots of north-01" in told
    assert "only 7 are fit for jobs" in told


def test_a_lease_on_a_node_without_a_fit_slot_moves_to_a_free_one(world: World) -> None:
    bad = world.node("north-01")
    set_unfit(world, bad, 0, 1)
    spare = world.node("north-02")
    lease = world.book(bad, at(11), 2)
    world.now = at(11)
    world.report()
    world.cycle()
    assert world.get_lease(lease).state is LeaseState.BOOKED
    assert "not fit for jobs" in world.get_lease(lease).reason
    world.now = at(11, 3)
    world.report()
    world.cycle()
    assert world.get_lease(lease).node_id == spare
