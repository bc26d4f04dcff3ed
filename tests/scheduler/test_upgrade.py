"""A platform with leases of nodes goes on as before when it is upgraded while they run."""

from collections.abc import Iterator
from copy import copy
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import MetaData, create_engine, make_url, select, text

from core.database.database import Database
from core.database.schema import upgrade
from core.states import JobState, LeaseState, Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from tests.one_database import quick_on_postgresql
from tests.scheduler.world import Bells, World, at

FIRST = "20261123_first_release"  # before leases had slots


def as_of_first_release(present_url: str, old_url: str) -> Database:
    """A database as the first release would have it, with the rows of the present one."""
    old = Database(old_url)
    upgrade(old, FIRST)
    source, target = create_engine(present_url), create_engine(old_url)
    now, then = MetaData(), MetaData()
    now.reflect(source)
    then.reflect(target)
    with source.connect() as read, target.begin() as write:
        if target.dialect.name == "postgresql":  # rows come in any order, as they are
            write.execute(text("SET session_replication_role = replica"))
        for table in then.tables.values():
            if table.name == "alembic_version":
                continue
            present = now.tables[table.name]
            both = [one.name for one in table.columns if one.name in present.columns]
            write.execute(table.delete())
            rows = read.execute(select(*(present.columns[name] for name in both))).mappings().all()
            if rows:
                write.execute(table.insert(), [dict(row) for row in rows])
            if (
                target.dialect.name == "postgresql"
                and (key := table.autoincrement_column) is not None
            ):
                following = f"coalesce(max({key.name}), 0) + 1"
                sequence = f"pg_get_serial_sequence('{table.name}', '{key.name}')"
                write.execute(text(f"SELECT setval({sequence}, {following}) FROM {table.name}"))
    source.dispose()
    target.dispose()
    return old


@pytest.fixture
def old_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[str]:
    """Address of a database without tables, of the same kind as `database_url`."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        yield f"sqlite:///{tmp_path / 'old.db'}"
        return
    server = make_url(request.getfixturevalue("postgresql_url"))
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"{url.database}_old"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    database = Database(database_url)
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


# SQLAlchemy cannot read the index of `lower(nodes.name)` back from SQLite.
@pytest.mark.filterwarnings("ignore:.*expression-based index .?ix_nodes_folded_name")
@quick_on_postgresql
def test_nobody_notices_an_upgrade_while_leases_of_nodes_run(
    world: World, database_url: str, old_url: str
) -> None:
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
    upgraded.database = as_of_first_release(database_url, old_url)
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
