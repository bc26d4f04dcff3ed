"""Leases of some slots of a node begin, run, end and are handed over beside their neighbours."""

import pytest
from sqlalchemy import select

from core.database.database import Database
from core.leases import node_slots
from core.notices.notices import NoticeKind
from core.states import LeaseState, NodeState, Outcome, Sharing
from core.tables.kinds import SlotState
from core.tables.nodes import Node
from core.tables.notices import Notice
from tests.scheduler.world import WHY, World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


def slots_of(world: World, job_id: str) -> list[int]:
    (part,) = world.parts(job_id)
    return part.slots


def states(world: World, node_id: str) -> list[SlotState]:
    with world.database.read() as session:
        return [row.state for row in node_slots.rows_of(session, node_id)]


def test_two_people_have_slots_of_one_node_and_neither_waits_for_the_other(world: World) -> None:
    node = world.node(class_name="cpu8")
    ada = world.book(node, at(11), 2, num_slots=2)
    bob = world.book(node, at(12), 2, user="bob", num_slots=4)
    first = world.job(lease=ada, ranks=2)
    assert world.go(at(11)) == [first]
    assert world.get_lease(ada).state is LeaseState.ACTIVE
    assert "2 slots of north-01 are yours until 12:55" in world.get_lease(ada).reason
    world.runs(first)
    wide = world.job(lease=bob, user="bob", ranks=8)
    second = world.job(lease=bob, user="bob", ranks=4)
    assert world.go(at(12)) == [second], "the first goes on"
    assert world.get_lease(bob).state is LeaseState.ACTIVE
    assert slots_of(world, second) == [2, 3, 4, 5]
    assert slots_of(world, first) == [0, 1]
    world.go(at(12, 55))
    world.exits(first, Outcome.LEASE_ENDED)
    world.go(at(12, 56))
    assert world.get_lease(ada).state is LeaseState.ENDED
    assert world.get_lease(bob).state is LeaseState.ACTIVE
    assert "Needs 8 slots, but its lease has 4 of north-01" in world.get_job(wide).reason


def test_notices_name_the_size_of_a_part(world: World) -> None:
    node = world.node(class_name="cpu8")
    world.book(node, at(11), 1, num_slots=2)
    world.go(at(11))
    world.go(at(11, 31))
    with world.database.read() as session:
        rows = session.scalars(select(Notice).where(Notice.kind == NoticeKind.LEASE_ENDING))
        (told,) = [str(row.facts["message"]) for row in rows]
    assert told.startswith("Your lease of 2 GPUs on north-01 ends at 12:00")


def test_slots_that_are_not_clean_at_the_end_of_the_hold_are_dirty_and_the_next_gets_others(
    world: World,
) -> None:
    node = world.node(class_name="cpu8")
    ada = world.book(node, at(11), 1, num_slots=2)
    assert world.go(at(11)) == []
    job = world.job(lease=ada, ranks=2)
    assert world.go(at(11, 1)) == [job]
    world.runs(job)
    bob = world.book(node, at(12), 1, user="bob", num_slots=2)
    world.go(at(11, 55))
    world.exits(job, Outcome.LEASE_ENDED, clean=False)
    world.go(at(11, 59), dirty=(0, 1))
    world.go(at(12), dirty=(0, 1))
    assert world.get_lease(bob).state is LeaseState.ACTIVE
    world.go(at(12, 1), dirty=(0, 1))
    assert world.get_lease(ada).state is LeaseState.ENDED
    assert world.get_node(node).state is NodeState.READY
    assert states(world, node) == [SlotState.DIRTY] * 2 + [SlotState.READY] * 6
    second = world.job(lease=bob, user="bob", ranks=2)
    assert world.go(at(12, 2), dirty=(0, 1)) == [second]
    assert slots_of(world, second) == [2, 3]
    world.go(at(12, 3))
    assert states(world, node) == [SlotState.READY] * 8


def test_a_lease_waits_for_dirty_slots_if_there_are_no_others(world: World) -> None:
    node = world.node(class_name="cpu2")
    lease = world.book(node, at(11), 1, num_slots=1)
    world.go(at(11), dirty=(0, 1))
    assert world.get_lease(lease).state is LeaseState.BOOKED
    assert "has not passed its clean check yet" in world.get_lease(lease).reason
    world.go(at(11, 1), dirty=(1,))
    assert world.get_lease(lease).state is LeaseState.ACTIVE


def test_a_whole_node_is_not_begun_while_a_part_of_it_is_in_use(world: World) -> None:
    node = world.node(class_name="cpu8")
    part = world.book(node, at(11), 1, num_slots=2)
    job = world.job(lease=part, ranks=2)
    assert world.go(at(11)) == [job]
    world.runs(job)
    whole = world.book(node, at(12), 2, user="bob")
    world.go(at(11, 55))
    world.go(at(12))
    assert world.get_lease(whole).state is LeaseState.BOOKED
    assert "Other jobs are still leaving north-01" in world.get_lease(whole).reason
    world.exits(job, Outcome.LEASE_ENDED)
    world.go(at(12, 0, 2))
    world.go(at(12, 0, 4))
    assert world.get_lease(whole).state is LeaseState.ACTIVE


def test_a_slot_that_fails_stops_nothing_beside_it_and_gets_nothing_new(world: World) -> None:
    node = world.node(class_name="cpu8")
    ada = world.book(node, at(11), 2, num_slots=2)
    bob = world.book(node, at(11), 2, user="bob", num_slots=2)
    world.go(at(11))
    running = world.job(lease=bob, user="bob", ranks=2)
    assert world.go(at(11, 1)) == [running]
    with world.database.write() as session:
        node_slots.quarantine(session, session.get_one(Node, node), 0, reason="Sick.", by=node)
    waits, fits = world.job(lease=ada, ranks=2), world.job(lease=ada, ranks=1)
    assert world.go(at(11, 2)) == [fits]
    assert world.get_job(waits).state == "queued"
    assert world.get_job(running).state == "starting"
    assert slots_of(world, fits) == [1]
    assert world.get_lease(ada).state is LeaseState.ACTIVE


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("script", [False, True], ids=["recipe", "script"])
def test_a_job_starts_beside_others_only_where_the_node_keeps_it_apart(
    world: World, sharing: Sharing, script: bool
) -> None:
    node = world.node(class_name="cpu8", sharing=sharing)
    part = world.book(node, at(11), 1, num_slots=2)
    queue = world.program if script else world.job
    job = queue(lease=part, ranks=2)
    kept_apart = sharing is Sharing.FULL or (sharing is Sharing.RECIPES and not script)
    assert world.go(at(11)) == ([job] if kept_apart else [])
    if kept_apart:
        return
    told = world.get_job(job)
    assert told.reason_code == "sharing_unavailable"
    assert "north-01 cannot keep a " in told.reason
    assert WHY in told.reason
    with world.database.write() as session:
        session.get_one(Node, node).sharing = Sharing.FULL
    assert world.go(at(11, 1)) == [job]


def test_a_whole_node_is_nobody_else_s_whatever_it_can_keep_apart(world: World) -> None:
    node = world.node(class_name="cpu8", sharing=Sharing.NONE)
    whole, all_slots = world.book(node, at(11), 1), world.book(node, at(12), 1, num_slots=8)
    first = world.program(lease=whole, ranks=2)
    second = world.program(lease=all_slots, ranks=2)
    assert world.go(at(11)) == [first]
    world.runs(first)
    world.go(at(11, 55))
    world.exits(first, Outcome.LEASE_ENDED)
    world.go(at(11, 57))
    assert world.go(at(12)) == [second]
