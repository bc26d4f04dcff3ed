"""Walk-ins on parts of nodes, where a policy sells them; gangs and guests beside other owners."""

from datetime import timedelta

import pytest

from core.database.database import Database
from core.leases import leases, node_slots
from core.states import JobState, Outcome, Sharing
from core.tables.kinds import LeaseKind
from core.tables.nodes import Node, NodeClass
from tests.scheduler.world import World, at

PARTS = """
policy: {id: parts, version: 1, zone: UTC}
pools:
  parts: {class: cpu8, gpus: [1, 4, 8]}
walk_in: {allowed: true, charged: false}
no_show: {backfill_after_min: 10, reclaim_after_min: 60}
"""
WHOLE = PARTS.replace(", gpus: [1, 4, 8]", "").replace("version: 1", "version: 2")


@pytest.fixture
def world(database: Database) -> World:
    world = World(database, at(11, 7))
    world.apply(PARTS)
    return world


def slots_of(world: World, job_id: str) -> list[list[int]]:
    return [part.slots for part in world.parts(job_id)]


def test_jobs_of_two_people_walk_in_side_by_side_on_as_many_slots_as_they_need(
    world: World,
) -> None:
    world.node(class_name="cpu8", sharing=Sharing.FULL)
    one = world.job(ranks=1)
    two = world.job(ranks=2, user="bob")
    more = world.job(ranks=1, user="bob")
    wide = world.job(ranks=4)
    assert world.go() == [one, two, more], "two slots are left"
    assert [world.lease_of(each).num_slots for each in (one, two, more)] == [1, 4, 1]
    assert "Walk-in of 4 GPUs for tiny" in world.lease_of(two).reason
    taken = [
        slot for each in (one, two, more) for (slots,) in [slots_of(world, each)] for slot in slots
    ]
    assert len(taken) == len(set(taken)) == 4
    world.runs(one)
    world.exits(one, Outcome.SUCCEEDED)
    assert world.go(at(11, 8)) == []
    world.runs(two)
    world.exits(two, Outcome.SUCCEEDED)
    assert world.go(at(11, 9)) == [wide]


@pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.FULL])
def test_a_walk_in_is_whole_where_no_sizes_are_listed_or_owners_cannot_be_kept_apart(
    world: World, sharing: Sharing
) -> None:
    if sharing is Sharing.FULL:
        world.apply(WHOLE)
    world.node(class_name="cpu8", sharing=sharing)
    first, second = world.job(ranks=1), world.job(ranks=1, user="bob")
    assert world.go() == [first]
    assert world.lease_of(first).num_slots is None
    assert world.get_job(second).state is JobState.QUEUED


def test_a_second_job_of_one_owner_takes_a_part_of_its_own(world: World) -> None:
    world.node(class_name="cpu8", sharing=Sharing.FULL)
    first = world.job(ranks=2)
    assert world.go() == [first]
    world.runs(first)
    second = world.job(ranks=1)
    assert world.go(at(11, 8)) == [second]
    assert world.lease_of(second).id != world.lease_of(first).id
    assert world.lease_of(second).num_slots == 1


def test_a_part_goes_beside_others_and_leaves_the_other_node_whole(world: World) -> None:
    nodes = [world.node(name, "cpu8", sharing=Sharing.FULL) for name in ("n-1", "n-2")]
    world.book(nodes[1], at(11), 3, user="bob", num_slots=1)
    job = world.job(ranks=1)
    assert world.go() == [job]
    assert world.lease_of(job).node_id == nodes[1]
    whole = world.job(ranks=8, user="bob")
    assert world.go(at(11, 8)) == [whole]


def test_a_gang_takes_equal_parts_of_several_nodes_or_none(world: World) -> None:
    nodes = [world.node(name, "cpu8", sharing=Sharing.FULL) for name in ("n-1", "n-2")]
    for node in nodes:
        world.book(node, at(11), 1, user="bob", num_slots=4)
    gang = world.job(ranks=4, nodes=2)
    assert world.go() == [gang]
    assert [world.get_lease(part.lease_id).num_slots for part in world.parts(gang)] == [4, 4]
    other = world.job(ranks=1, nodes=2, user="bob")
    assert world.go(at(11, 8)) == []
    assert world.get_job(other).state is JobState.QUEUED


def test_a_gang_in_leases_of_different_sizes_is_refused_by_a_sentence(world: World) -> None:
    nodes = [world.node(name, "cpu8", sharing=Sharing.FULL) for name in ("n-1", "n-2")]
    sizes = (1, 4)
    leases = [
        world.book(node, at(11), 2, num_slots=size) for node, size in zip(nodes, sizes, strict=True)
    ]
    job = world.job(ranks=1, nodes=2, leases=leases)
    world.go()
    assert world.go(at(11, 8)) == []
    assert "Its leases have 1 and 4 slots; a job on several nodes needs equally many" in (
        world.get_job(job).reason
    )


def test_a_walk_in_ends_before_the_part_that_is_booked_and_not_before_another(
    world: World,
) -> None:
    node = world.node(class_name="cpu8", sharing=Sharing.FULL)
    world.book(node, at(12), 2, user="bob", num_slots=4)
    small = world.job(ranks=4, wall="3h", checkpointable=False)
    large = world.job(ranks=8, wall="3h", checkpointable=False)
    assert world.go() == [small], "four slots stay free beside the lease"
    assert world.get_job(large).state is JobState.QUEUED


def test_a_guest_runs_in_the_slots_of_a_lease_that_is_not_used_and_in_no_others(
    world: World,
) -> None:
    node = world.node(class_name="cpu8", sharing=Sharing.FULL)
    idle = world.book(node, at(11), 3, num_slots=4)
    used = world.book(node, at(11), 3, user="bob", num_slots=4)
    owners = world.job(user="bob", ranks=1, lease=used, wall="2h")
    world.go()
    world.runs(owners)
    wide = world.job(ranks=8, user="bob", wall="30min")
    guest = world.job(ranks=4, user="bob", wall="30min")
    world.now += timedelta(minutes=11)
    assert world.go() == [guest]
    assert world.lease_of(guest).id == idle
    (slots,) = slots_of(world, guest)
    (others,) = slots_of(world, owners)
    assert not set(slots) & set(others)
    assert world.get_job(wide).state is JobState.QUEUED


def test_a_gang_of_guests_has_one_part_on_a_node_though_two_leases_there_are_not_used(
    world: World,
) -> None:
    first, second = (world.node(name, "cpu8") for name in ("n-1", "n-2"))
    for node in (first, first, second):
        world.book(node, at(11), 3, num_slots=4)
    world.book(second, at(11), 3, num_slots=4, user="bob")
    world.go()
    gang = world.job(ranks=2, nodes=2, user="bob", wall="30min")
    assert world.go(at(11, 18)) == [gang]
    assert {part.node_id for part in world.parts(gang)} == {first, second}


def book_together(world: World, nodes: list[str]) -> list[str]:
    """Two of ada's leases of one slot each, booked at once from 12:00 to 14:00."""
    with world.database.write() as session:
        rows = [session.get_one(Node, node_id) for node_id in nodes]
        taken = leases.take_together(
            session,
            rows,
            [leases.PLAIN] * len(rows),
            user_id="user_ada",
            kind=LeaseKind.BOOKED,
            start=at(12),
            end=at(14),
            grace_s=300,
            now=world.now,
            actor="t",
            message="Booked.",
            num_slots=1,
        )
        return [lease.id for lease in taken]


def test_leases_booked_together_stay_on_nodes_of_their_own_when_one_of_them_fails(
    world: World,
) -> None:
    kept, failed = (world.node(name, "cpu8") for name in ("n-1", "n-2"))
    for lease_id in book_together(world, [kept, failed]):
        if world.get_lease(lease_id).node_id == failed:
            moving = lease_id
    world.now = at(12)
    world.report(kept)
    world.report(failed, clean=False)
    world.cycle()
    world.now = at(12, 3)
    world.report(kept)
    world.report(failed, clean=False)
    world.cycle()
    assert world.get_lease(moving).node_id == failed, "n-1 has the other of the two"
    spare = world.node("n-3", "cpu8")
    world.report(kept)
    world.report(failed, clean=False)
    world.cycle(after_s=1)
    assert world.get_lease(moving).node_id == spare


def test_a_job_on_two_nodes_waits_in_two_leases_of_one_node_and_is_told_so(world: World) -> None:
    node = world.node("n-1", "cpu8")
    named = [world.book(node, at(11), 2, num_slots=1) for _ in range(2)]
    job = world.job(ranks=1, nodes=2, leases=named)
    world.go()
    assert world.go(at(11, 8)) == []
    assert "Its 2 leases are on n-1; a job on several nodes has one part on each" in (
        world.get_job(job).reason
    )


def test_slots_out_of_service_are_not_planned_with(world: World) -> None:
    """Seven of eight slots are in use, and the eighth is sick: the next walk-in waits, with a
    start that its owner can count on."""
    node = world.node("n-1", "cpu8")
    with world.database.write() as session:
        node_slots.quarantine(session, session.get_one(Node, node), 7, reason="Sick.", by="t")
    wide = world.job(ranks=4, wall="2h")
    others = [world.job(ranks=1, user="bob", wall="2h") for _ in range(3)]
    assert world.go() == [wide, *others]
    waits = world.job(ranks=1)
    assert world.go(at(11, 8)) == []
    told = world.get_job(waits)
    assert told.predicted_start is not None
    assert told.predicted_start > at(13)
    world.runs(wide)
    world.exits(wide)
    assert world.go(at(11, 9)) == [waits]


def give_memory(world: World, job: str, *, shares: float) -> None:
    """A node of eight slots has just so much memory that a job needs `shares` eighths of it."""
    with world.database.write() as session:
        kind = session.get_one(NodeClass, "cpu8")
        # The planner leaves a tenth of the memory to the platform.
        memory_gib = world.get_job(job).plan["needed_gib"] / 0.9 * 8 / shares
        kind.hardware = {**kind.hardware, "memory_gib": memory_gib}
        kind.version += 1


def test_a_walk_in_takes_as_many_slots_as_its_memory_needs(world: World) -> None:
    world.node("n-1", "cpu8")
    job = world.job(ranks=1)
    give_memory(world, job, shares=2.5)
    assert world.go() == [job]
    assert world.lease_of(job).num_slots == 4, "of 1, 4 and 8 the smallest with memory for it"
    assert [len(slots) for slots in slots_of(world, job)] == [1]


def test_a_job_waits_in_a_lease_with_too_small_a_share_of_the_memory_and_is_told_so(
    world: World,
) -> None:
    lease = world.book(world.node("n-1", "cpu8"), at(11), 2, num_slots=2)
    job = world.job(ranks=1, lease=lease)
    give_memory(world, job, shares=2.5)
    world.go()
    assert world.go(at(11, 8)) == []
    told = world.get_job(job).reason
    assert "Needs the memory of 3 slots, but its lease has 2 of n-1" in told
