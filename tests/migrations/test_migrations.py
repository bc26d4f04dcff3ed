"""Migrations: from nothing to the newest schema, twice, from two processes at once, on both."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, insert, inspect, make_url, text

from core.base.errors import HourTaken
from core.database.database import Database
from core.database.schema import (
    FIRST,
    LAST_OF_0_1_0,
    UnknownRevision,
    is_newest,
    newest_revision,
    upgrade,
)
from core.leases import leases, node_slots
from core.tables.base import Base
from core.tables.kinds import LeaseKind, SlotState
from core.tables.leases import Lease
from core.tables.nodes import Node
from tests.core.holds import OVERBOOKED, SLOTS_WRONG

UPGRADE = "import sys; from core.database.database import Database; "
UPGRADE += "from core.database.schema import upgrade; "
UPGRADE += "upgrade(Database(sys.argv[1]))"


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.db),
        pytest.param("postgresql", marks=pytest.mark.db),
    ]
)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server = make_url(request.getfixturevalue("postgresql_url"))
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ty_empty")
    yield server.set(database="ty_empty").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE ty_empty WITH (FORCE)")


@pytest.mark.parametrize(
    "empty_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_a_process_with_nothing_to_upgrade_imports_no_migration_tool(empty_url: str) -> None:
    database = Database(empty_url)
    assert not is_newest(database)
    for is_needed in (True, False):
        code = f"{UPGRADE}; print('alembic' in sys.modules)"
        ran = subprocess.run(
            [sys.executable, "-c", code, empty_url], capture_output=True, text=True, check=True
        )
        assert ran.stdout == f"{is_needed}\n"
        assert is_newest(database)
    database.close()


# SQLAlchemy cannot read the index of `lower(nodes.name)` back from SQLite.
@pytest.mark.filterwarnings("ignore:.*expression-based index .?ix_nodes_folded_name")
def test_an_upgraded_database_is_what_the_tables_say(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    with database.read() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    database.close()


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
def test_partial_indexes_are_of_the_rows_that_the_tables_say(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    found, wanted = {}, {}
    for table in Base.metadata.tables.values():
        wanted |= {str(one.name): one.info["where"] for one in table.indexes if "where" in one.info}
    for name in Base.metadata.tables:
        for index in inspect(database.engine).get_indexes(name):
            where = index.get("dialect_options", {}).get(f"{database.engine.name}_where")
            if where is not None:
                found[index["name"]] = str(where).replace("::text", "").replace("(state)", "state")
    assert {name: where.strip("()") for name, where in found.items()} == wanted
    assert len(wanted) == 3
    database.close()


def test_a_second_upgrade_changes_nothing(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    with database.write() as session:
        session.execute(
            text("INSERT INTO labs (id, name, created_at) VALUES ('a', 'b', '2026-01-01')")
        )
    upgrade(database)
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM labs")).scalar_one() == 1
        assert session.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
    database.close()


def test_what_version_0_1_0_made_last_is_taken_over_as_it_is(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database, FIRST)
    with database.write() as session:
        session.execute(
            text("INSERT INTO labs (id, name, created_at) VALUES ('a', 'b', '2026-01-01')")
        )
    mark(database, LAST_OF_0_1_0)
    upgrade(database)
    assert revision(database) == newest_revision()
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM labs")).scalar_one() == 1
    database.close()


@pytest.mark.filterwarnings("ignore:.*expression-based index .?ix_nodes_folded_name")
@pytest.mark.parametrize("hardware", [{"slots": 4}, {}])
def test_booked_and_active_leases_stay_what_they_are_when_slots_come(
    empty_url: str, hardware: dict[str, object]
) -> None:
    """Two leases of a node that touch, one of them active, as the first release has them."""
    database = Database(empty_url)
    upgrade(database, FIRST)
    noon = datetime(2026, 11, 24, 12, tzinfo=UTC)
    hours = {
        "lease_a": ("active", noon, noon + timedelta(hours=2)),
        "lease_b": ("booked", noon + timedelta(hours=2), noon + timedelta(hours=5)),
    }
    with database.write() as session:
        there = MetaData()
        there.reflect(session.connection(), only=["node_classes", "users", "nodes", "leases"])
        there.reflect(session.connection(), only=["occupancy"])

        def add(table: str, **fields: object) -> None:
            session.execute(insert(there.tables[table]).values(fields))

        add("node_classes", name="c", version=1, hardware=hardware)
        add("users", id="u", name="u", role="user", zone="UTC", disabled=False, created_at=noon)
        boot = {"reason": "", "boot_id": "", "incarnation": "", "clean": True}
        add("nodes", id="n", name="n", class_name="c", state="ready", inventory={}, **boot,
            created_at=noon)  # fmt: skip
        for lease_id, (state, start, end) in hours.items():
            hold = {"node_id": "n", "hold_start": start, "hold_end": end}
            add("leases", id=lease_id, user_id="u", kind="booked", state=state, reason="",
                grace_s=300, created_at=noon, **hold)  # fmt: skip
            add("occupancy", lease_id=lease_id, kind="lease", live=True, **hold)
    upgrade(database)
    with database.read() as session:
        assert session.get_one(Node, "n").slots == hardware.get("slots", 1)
        slots = node_slots.rows_of(session, "n")
        assert {(row.state, row.lease_id) for row in slots} == {(SlotState.READY, "lease_a")}
        assert session.scalar(SLOTS_WRONG) == 0
        for lease_id, (state, start, end) in hours.items():
            lease = session.get_one(Lease, lease_id)
            found = (lease.state, lease.hold_start, lease.hold_end, lease.num_slots)
            assert found == (state, start, end, None)
    with database.write() as session:
        node = session.get_one(Node, "n")
        lease = session.get_one(Lease, "lease_b")
        fields = {"user_id": "u", "node": node, "kind": LeaseKind.BOOKED, "grace_s": 300}
        told = {"now": noon, "actor": "t", "message": "m"}
        end = noon + timedelta(hours=3)
        with pytest.raises(HourTaken):
            leases.take(session, start=noon, end=end, **fields, **told, num_slots=1)
        leases.extend(session, lease, end=noon + timedelta(hours=6), **told)
        end = noon + timedelta(hours=9)
        leases.take(session, start=lease.hold_end, end=end, **fields, **told)
        assert session.scalar(OVERBOOKED) == 0
    database.close()


def test_an_older_database_is_refused_and_left_as_it_is(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade(database)
    mark(database, "20261124_certificates")
    with pytest.raises(UnknownRevision, match=r"Start the last commit of version 0\.1\.0"):
        upgrade(database)
    assert revision(database) == "20261124_certificates"
    database.close()


def mark(database: Database, revision: str) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})


def revision(database: Database) -> str:
    with database.read() as session:
        return str(session.scalar(text("SELECT version_num FROM alembic_version")))


@pytest.mark.parametrize(
    "empty_url", ["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)], indirect=True
)
def test_two_processes_upgrade_one_database_at_once(empty_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, empty_url], stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
    database = Database(empty_url)
    with database.read() as session:
        tables = set(inspect(session.connection()).get_table_names())
    assert tables == {*Base.metadata.tables, "alembic_version"}
    database.close()


def test_a_failed_upgrade_leaves_nothing_behind(empty_url: str) -> None:
    """Both databases change their schema in a transaction."""
    database = Database(empty_url)
    with database.write() as session:  # stands in the way of a table that comes late
        session.execute(text("CREATE TABLE occupancy (id integer)"))
    with pytest.raises(Exception, match="already exists"):
        upgrade(database)
    with database.read() as session:
        assert inspect(session.connection()).get_table_names() == ["occupancy"]
    database.close()
