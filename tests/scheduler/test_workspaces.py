"""Who gets a workspace: one attempt at a time, and the next one waits for the last snapshot."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from core.database.database import Database
from core.states import Outcome
from core.tables.jobs import Event
from core.tables.kinds import WorkspaceAccess
from core.workspaces.writers import PATIENCE
from tests.scheduler.world import World

pytestmark = pytest.mark.db


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def access(world: World, job_id: str) -> WorkspaceAccess | None:
    return world.attempt(job_id).workspace_access


def test_the_first_program_writes_and_others_of_its_owner_read(world: World) -> None:
    for name in ("north-01", "north-02", "north-03"):
        world.node(name)
    first, second, of_bob = world.program(), world.program(), world.program(user="bob")
    assert {first, second, of_bob} == {*world.cycle(), *world.cycle()}
    assert [access(world, job_id) for job_id in (first, second, of_bob)] == [
        WorkspaceAccess.WRITE,
        WorkspaceAccess.READ,
        WorkspaceAccess.WRITE,
    ]
    assert "workspace_read_only" in list(world.events(second))
    assert "workspace_read_only" not in list(world.events(first))


def test_the_next_program_waits_for_the_last_snapshot_of_the_one_before(world: World) -> None:
    world.node()
    first = world.program()
    world.cycle()
    world.exits(first, kept=False)
    second = world.program()
    assert world.cycle() == []
    job = world.get_job(second)
    assert job.reason_code == "saving"
    assert "its owner's workspace, has been copied from north-01" in job.reason
    world.keeps(first)
    assert world.cycle() == [second]
    assert access(world, second) is WorkspaceAccess.WRITE


def test_a_snapshot_that_never_comes_holds_nobody_up_for_ever(world: World) -> None:
    world.node()
    first = world.program()
    world.cycle()
    world.exits(first, kept=False)
    second = world.program()
    world.now += PATIENCE - timedelta(seconds=30)
    world.report()
    assert world.cycle() == []
    world.now += timedelta(minutes=1)
    world.report()
    assert world.cycle() == [second]
    assert access(world, second) is WorkspaceAccess.WRITE


def test_a_program_that_is_stopped_gets_its_workspace_again(world: World) -> None:
    world.node()
    job_id = world.program()
    world.cycle()
    world.exits(job_id, Outcome.PREEMPTED, kept=True)
    assert world.cycle() == [job_id]
    assert world.attempt(job_id).epoch == 2
    assert access(world, job_id) is WorkspaceAccess.WRITE


def test_on_two_nodes_the_first_one_writes_and_an_event_says_so(world: World) -> None:
    world.node("north-01")
    world.node("north-02")
    job_id = world.program(nodes=2)
    assert world.cycle() == [job_id]
    assert access(world, job_id) is WorkspaceAccess.WRITE
    with world.database.read() as session:
        [told] = session.scalars(
            select(Event.message).where(
                Event.subject == job_id, Event.kind == "workspace_first_node_writes"
            )
        )
    assert told.startswith("Its owner's workspace is written on north-0")
    assert "alone; north-0" in told
