"""Sessions: commit or nothing, one writer between processes, moments that keep their offset."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError

from core.database.database import Database
from core.tables.people import Lab
from tests.running import wait_for

pytestmark = pytest.mark.race
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

HOLD_THE_WRITER = """
import sys, time
from sqlalchemy import text
from core.database.database import Database
with Database(sys.argv[1]).write() as session:
    columns = "(id, name, created_at) VALUES ('theirs', 't', '2026-01-01')"
    session.execute(text(f"INSERT INTO labs {columns}"))
    print("holding", flush=True)
    sys.stdin.readline()
"""


def labs(database: Database) -> list[str]:
    with database.read() as session:
        return sorted(session.scalars(select(Lab.id)))


def add(database: Database, name: str) -> None:
    with database.write() as session:
        session.add(Lab(id=name, name=name, created_at=NOW))


def test_a_block_commits_once_at_its_end(database: Database) -> None:
    with database.write() as session:
        session.add(Lab(id="a", name="a", created_at=NOW))
        session.flush()
        assert labs(database) == []
    assert labs(database) == ["a"]


def test_a_block_that_raises_writes_nothing(database: Database) -> None:
    def fails() -> None:
        with database.write() as session:
            session.add(Lab(id="a", name="a", created_at=NOW))
            session.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert labs(database) == []
    add(database, "b")  # and the lock was given back
    assert labs(database) == ["b"]


def test_a_commit_that_fails_is_an_error_and_writes_nothing(database: Database) -> None:
    add(database, "a")
    with pytest.raises(IntegrityError):
        add(database, "a")
    add(database, "b")
    assert labs(database) == ["a", "b"]


def test_what_was_read_stays_readable_after_the_session(database: Database) -> None:
    add(database, "a")
    with database.read() as session:
        lab = session.get_one(Lab, "a")
    assert (lab.name, lab.created_at) == ("a", NOW)


@pytest.mark.parametrize(
    "moment",
    [
        NOW,
        datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        datetime(2026, 3, 8, 1, 59, 59, 123456, tzinfo=timezone(-timedelta(hours=5))),
    ],
)
def test_a_moment_comes_back_as_the_same_moment_in_utc(
    database: Database, moment: datetime
) -> None:
    with database.write() as session:
        session.add(Lab(id="a", name="a", created_at=moment))
    with database.read() as session:
        found = session.get_one(Lab, "a").created_at
        assert found == moment
        assert found.utcoffset() == timedelta(0)
        assert session.scalars(select(Lab).where(Lab.created_at >= moment)).one().id == "a"


def test_a_moment_without_an_offset_is_refused(database: Database) -> None:
    with (
        pytest.raises(StatementError, match="has no UTC offset"),
        database.write() as session,
    ):
        session.add(Lab(id="a", name="a", created_at=NOW.replace(tzinfo=None)))


def test_many_threads_write_and_nothing_is_lost_or_refused(database: Database) -> None:
    def write(number: int) -> float:
        begun = time.monotonic()
        with database.write() as session:
            session.add(Lab(id=f"{number:03}", name=f"{number:03}", created_at=NOW))
            session.flush()
        return time.monotonic() - begun

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(write, range(200))) < 30
    assert len(labs(database)) == 200


def test_a_writer_that_goes_first_waits_for_the_one_at_work_alone(
    migrated_sqlite_database: Database,
) -> None:
    database = migrated_sqlite_database
    lock = database._file_lock
    assert lock is not None
    order: list[str] = []

    def write(name: str, *, first: bool) -> None:
        with database.write(first=first):
            order.append(name)

    writers = []
    with database.write():
        for name in ("a", "b", "heartbeat"):
            first = name == "heartbeat"
            writers.append(threading.Thread(target=write, args=(name,), kwargs={"first": first}))
            writers[-1].start()
            wait_for(lambda: len(lock._waiting) == len(writers), what="a writer in line")
    for writer in writers:
        writer.join(60)
    assert order == ["heartbeat", "a", "b"]


def test_a_writer_of_another_process_is_waited_for_and_readers_are_not(database_url: str) -> None:
    database = Database(database_url)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_WRITER, database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "holding\n"
    assert labs(database) == []  # a reader sees the world before, at once
    written = threading.Event()

    def write() -> None:
        add(database, "ours")
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    if database.is_sqlite:
        assert not written.wait(0.3)
    other.communicate("go\n", timeout=60)
    assert other.returncode == 0
    writer.join(60)
    assert labs(database) == ["ours", "theirs"]
    database.close()


@on_postgresql
def test_connections_that_the_server_has_ended_cost_no_request(database: Database) -> None:
    with database.read() as one, database.read() as two, database.write() as three:
        ids = [each.scalar(text("SELECT pg_backend_pid()")) for each in (one, two, three)]
    other = Database(database.url.render_as_string(hide_password=False))
    with other.read() as session:
        ended = text("SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM unnest(:ids) pid")
        assert session.scalar(ended, {"ids": ids})
    other.close()
    assert labs(database) == []
    add(database, "a")
    with database.read() as one, database.read() as two:
        assert [each.scalar(select(Lab.id)) for each in (one, two)] == ["a", "a"]


@on_postgresql
def test_a_connection_that_was_long_unused_is_asked_before_it_is_taken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(database.engine.dialect, "do_ping", lambda _: asked.append("still there?"))
    add(database, "a")
    add(database, "b")
    assert asked == []
    monkeypatch.setattr("core.database.database.IDLE_S", 0.0)
    assert labs(database) == ["a", "b"]
    assert asked == ["still there?"]


def test_a_reader_keeps_no_transaction_open_and_writes_nothing(database: Database) -> None:
    add(database, "a")
    with database.read() as session:
        lab = session.get_one(Lab, "a")
        lab.name = "changed"
        session.scalars(select(Lab)).all()
        if not database.is_sqlite:
            mine = session.scalar(text("SELECT pg_backend_pid()"))
            with database.read() as other:
                asked = "SELECT state FROM pg_stat_activity WHERE pid = :pid"
                assert other.scalar(text(asked), {"pid": mine}) == "idle"
    with database.read() as session:
        assert session.get_one(Lab, "a").name == "a"


@pytest.mark.db
def test_the_lock_of_a_killed_writer_is_free(migrated_sqlite: Path, tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_WRITER, f"sqlite:///{path}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    other.stdout.readline()
    other.kill()
    other.communicate(timeout=60)
    database = Database(f"sqlite:///{path}")
    add(database, "ours")
    assert labs(database) == ["ours"]
    database.close()


@pytest.mark.db
def test_who_is_interrupted_while_waiting_to_write_holds_nobody_up(
    migrated_sqlite_database: Database,
) -> None:
    database = migrated_sqlite_database

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    holding, go = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write():
            holding.set()
            go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(60)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGUSR1)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            add(database, "interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
        go.set()
        holder.join(60)
    writer = threading.Thread(target=add, args=(database, "next"), daemon=True)
    writer.start()
    writer.join(60)
    assert labs(database) == ["next"]


@pytest.mark.db
def test_sqlite_keeps_foreign_keys_and_survives_a_power_cut(
    migrated_sqlite_database: Database,
) -> None:
    with migrated_sqlite_database.read() as session:
        assert session.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
        assert session.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar_one() == 2


def test_a_migration_that_leaves_a_reference_to_nothing_is_undone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'm.db'}")
    with database.write() as session:
        session.execute(text("CREATE TABLE a (id INTEGER PRIMARY KEY)"))
        session.execute(text("CREATE TABLE b (a INTEGER REFERENCES a (id))"))
        session.execute(text("INSERT INTO a VALUES (1)"))
        session.execute(text("INSERT INTO b VALUES (1)"))
    with database.migrate() as session:  # builds anew what others refer to
        session.execute(text("DROP TABLE a"))
        session.execute(text("CREATE TABLE a (id INTEGER PRIMARY KEY)"))
        session.execute(text("INSERT INTO a VALUES (1)"))
    lost = pytest.raises(IntegrityError, match="a row of b refers to a missing row of a")
    with lost, database.migrate() as session:
        session.execute(text("DELETE FROM a"))
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), database.write() as session:
        session.execute(text("DELETE FROM a"))
    database.close()


def test_who_waits_too_long_to_write_is_told_and_has_changed_nothing(database: Database) -> None:
    """An API answers 503 then, instead of keeping whoever asked for as long as somebody writes."""
    url = database.url.render_as_string(hide_password=False)
    hasty = Database(url, longest_statement_s=0.4)
    with database.write() as session:
        session.add(Lab(id="ours", name="o", created_at=NOW))

    def rename(name: str) -> None:
        with hasty.write() as session:
            session.execute(update(Lab).values(name=name))

    with hasty.write() as session, ThreadPoolExecutor(1) as pool:
        session.execute(update(Lab).values(name="first"))
        with pytest.raises(OperationalError):
            pool.submit(rename, "second").result(30)
    with database.read() as session:
        assert session.scalars(select(Lab.name)).all() == ["first"]
    rename("third")
    hasty.close()


@on_postgresql
def test_a_statement_that_takes_too_long_is_ended(database_url: str) -> None:
    hasty = Database(database_url, longest_statement_s=0.2)
    with pytest.raises(OperationalError), hasty.read() as session:
        session.execute(text("SELECT pg_sleep(30)"))
    with hasty.migrate() as session:  # for as long as it takes
        session.execute(text("SELECT pg_sleep(0.4)"))
    hasty.close()
