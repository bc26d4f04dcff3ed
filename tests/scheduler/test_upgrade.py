"""A platform with leases of nodes goes on as before when it is upgraded while they run."""

import sqlite3
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from sqlalchemy import select

from core.database.database import Database
from core.database.schema import upgrade
from core.states import JobState, LeaseState, Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from tests.scheduler.world import Bells, World, at

FIRST = "20261123_first_release"  # before leases had slots


def as_of_first_release(source: Path, target: Path) -> Database:
    """A database as the first release would have it, with the rows of `source`."""
    old = Database(f"sqlite:///{target}")
    upgrade(old, FIRST)
    connection = sqlite3.connect(target)
    connection.execute("ATTACH DATABASE ? AS present", (str(source),))
    tables = connection.execute(
        "SELECT name FROM main.sqlite_master WHERE type = 'table' "
        "AND name NOT LIKE 'sqlite%' AND name <> 'alembic_version'"
    ).fetchall()
    for (table,) in tables:
        then, present = (
            {row[1] for row in connection.execute(f"PRAGMA {schema}.table_info({table})")}
            for schema in ("main", "present")
        )
        listed = ", ".join(f'"{column}"' for column in sorted(then & present))
        connection.execute(
            f"INSERT OR REPLACE INTO main.{table} ({listed}) SELECT {listed} FROM present.{table}"
        )
    connection.commit()
    connection.close()
    return old


@pytest.fixture
def world(migrated_sqlite: Path, tmp_path: Path) -> Iterator[World]:
    path = tmp_path / "present.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    database = Database(f"sqlite:///{path}")
    yield World(database, at(10, 57))
    database.close()


def seen(world: World) -> list[list[tuple[object, ...]]]:
    """What people see: jobs, leases, where and on which slots attempts run, nodes. No ids."""
    queries = (
        select(Job.user_id, Job.name, Job.state, Job.reason, Job.predicted_start, Job.epoch),
        select(Lease.user_id, Lease.kind, Lease.state, Lease.reason, Lease.hold_start)
        .add_columns(Lease.hold_end, Lease.num_slots, Lease.counts, Lease.settled_as),
        select(Attempt.state, Attempt.epoch, AttemptPart.node_id, AttemptPart.ended_at)
        .add_columns(AttemptPart.slots)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id),
        select(Node.name, Node.state, Node.clean),
    )  # fmt: skip
    with world.database.read() as session:
        return [sorted(map(tuple, session.execute(query)), key=str) for query in queries]


def live_on(world: World, jobs: list[str]) -> Iterator[list[list[tuple[object, ...]]]]:
    """The rest of the afternoon, moment by moment: an end in time, a hand-over, two walk-ins."""
    leased, walked_in, waiting, later = jobs
    world.go(at(11, 6))
    yield seen(world)
    world.exits(walked_in, Outcome.SUCCEEDED)
    world.go(at(11, 10))
    assert world.go(at(11, 11)) == []
    assert world.get_job(waiting).state is JobState.STARTING
    yield seen(world)
    world.go(at(12, 56))
    world.exits(leased, Outcome.LEASE_ENDED)
    for minute in (57, 58):
        world.go(at(12, minute))
    yield seen(world)
    world.go(at(13))
    assert world.get_job(later).state is JobState.STARTING
    yield seen(world)
    world.go(at(13, 1))
    yield seen(world)


def test_nobody_notices_an_upgrade_while_leases_of_nodes_run(world: World, tmp_path: Path) -> None:
    first, second = world.node("n-1", "cpu8"), world.node("n-2", "cpu2")
    mine = world.book(first, at(11), 2)
    theirs = world.book(first, at(13), 2, user="bob")
    leased = world.job(lease=mine, ranks=4, wall="3h")
    later = world.job(lease=theirs, user="bob", ranks=2)
    walked_in = world.job(ranks=1, user="bob", node_class="cpu2")
    assert world.go(at(10, 58)) == [walked_in]
    waiting = world.job(ranks=2, node_class="cpu2", checkpointable=False)
    assert world.go(at(11)) == [leased]
    for job in (leased, walked_in):
        world.runs(job)
    world.go(at(11, 5))
    assert world.get_lease(mine).state is LeaseState.ACTIVE
    before = seen(world)
    world.scheduler.leadership.resign()

    upgraded = copy(world)
    upgraded.bells = Bells()
    upgraded.database = as_of_first_release(tmp_path / "present.db", tmp_path / "old.db")
    upgrade(upgraded.database)
    for each in (world, upgraded):  # both are started again
        each.scheduler = each.new_scheduler("second")
    assert seen(upgraded) == before
    jobs = [leased, walked_in, waiting, later]
    for ours, unchanged in zip(live_on(upgraded, jobs), live_on(world, jobs), strict=True):
        assert ours == unchanged
    assert {lease.state for lease in map(upgraded.get_lease, (mine, theirs))} == {
        LeaseState.ENDED,
        LeaseState.ACTIVE,
    }
    assert upgraded.lease_of(waiting).node_id == second
    upgraded.database.close()
