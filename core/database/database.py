"""Sessions on PostgreSQL or SQLite, with one writer at a time on SQLite.

On SQLite all processes that write take one file lock before BEGIN IMMEDIATE: its own busy wait is
unfair, and such a lock took the slowest hundredth of writes from 588 to 41 ms. Readers use a
deferred transaction and never take it. On PostgreSQL a writer is a plain READ COMMITTED session;
there each statement sees the newest anyhow, so a reader needs no transaction, and has none.
"""

import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    DateTime,
    Dialect,
    Engine,
    String,
    TypeDecorator,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine.interfaces import DBAPIConnection, ExecutionContext
from sqlalchemy.exc import DisconnectionError, IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

    Upsert = postgresql.Insert | sqlite.Insert

IDLE_S = 1.0  # a connection unused for longer is tested before its next use
IN_BINARY = {"in_binary": True}
"""Execution options of a query for much binary data: PostgreSQL sends the bytes themselves, not
hexadecimal text of twice the length."""


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, stored in UTC and returned with its offset (SQLite drops offsets)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no UTC offset")
        return value.astimezone(UTC)

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], datetime | None]:
        """Return the reader of stored moments. Answers with thousands of them wait for it."""
        return _read_text if dialect.name == "sqlite" else _read_moment


def _read_text(text: str | None) -> datetime | None:
    """Read a moment of SQLite, which stores it as text in UTC."""
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


def _read_moment(moment: datetime | None) -> datetime | None:
    """Read a moment of PostgreSQL, which has the offset of the connection's time zone."""
    return moment if moment is None or moment.tzinfo is UTC else moment.astimezone(UTC)


class EnumText(TypeDecorator[StrEnum]):
    """A member of a StrEnum, stored as its value; the table's CHECK restricts it to the members."""

    impl = String(20)
    cache_ok = True

    def __init__(self, enum: type[StrEnum]) -> None:
        super().__init__()
        self.enum = enum

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(self.enum(value))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return the reader of stored members."""
        return Members(self.enum).__getitem__


class Members(dict[str | None, StrEnum | None]):
    """Members by value, and None for a missing one. Raises ValueError for another value."""

    def __init__(self, enum: type[StrEnum]) -> None:
        super().__init__((str(member), member) for member in enum)
        self[None], self.enum = None, enum

    def __missing__(self, value: str) -> StrEnum:
        return self.enum(value)


class Database:
    """One process's access to a database. `read()` and `write()` are the only ways to sessions."""

    def __init__(
        self, url: str, *, pool_size: int = 10, longest_statement_s: float | None = None
    ) -> None:
        """Connect at the first use.

        With `longest_statement_s`, PostgreSQL ends longer statements, and a wait for a lock fails
        after half that time, on SQLite a wait for the writers' lock: OperationalError, with
        nothing changed.
        """
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._file_lock = None
        if self.is_sqlite:
            wait_s = None if longest_statement_s is None else longest_statement_s / 2
            self._file_lock = _FileLock(f"{self.url.database}.writer", wait_s=wait_s)
        if self.is_sqlite:
            self._reader = self.engine = _sqlite_engine(url, pool_size)
        else:
            self.engine = _postgresql_engine(url, pool_size, longest_statement_s)
            self._reader = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that never writes, nor flushes by itself. Rows stay usable afterwards."""
        with Session(self._reader, expire_on_commit=False, autoflush=False) as session:
            yield session  # closing rolls back; `rollback()` would also expire every row

    @contextmanager
    def write(self, *, first: bool = False) -> Iterator[Session]:
        """Yield a session that commits once, at the end of the block, or rolls back if it raises.

        Keep the block short: on SQLite nobody else writes meanwhile. No hashing, no planning, no
        publishing inside. `first` goes before this process's other writers that wait on SQLite; it
        is for what is rare and must not be late.
        """
        if self._file_lock is None:
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
            return
        with (
            self._file_lock.held(first=first),
            Session(self.engine, expire_on_commit=False) as session,
        ):
            session.connection(execution_options={"sqlite_immediate": True})
            with _ended(session):
                yield session

    @contextmanager
    def migrate(self) -> Iterator[Session]:
        """Yield a session like `write`, for a change of the schema.

        SQLite changes a table by building it anew: rows that refer to it would forbid that. So
        references are checked once, before the commit; IntegrityError if one points to a missing
        row.
        """
        if self._file_lock is None:
            with self.write() as session:
                session.execute(text("SET LOCAL statement_timeout = 0"))
                session.execute(text("SET LOCAL lock_timeout = 0"))
                yield session
            return
        with self._file_lock.held(), self.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute("PRAGMA foreign_keys=OFF")  # not possible once a transaction has begun
            try:
                with Session(connection, expire_on_commit=False) as session:
                    session.connection(execution_options={"sqlite_immediate": True})
                    with _ended(session):
                        yield session
                        lost = session.connection().exec_driver_sql("PRAGMA foreign_key_check")
                        if (row := lost.first()) is not None:
                            why = ValueError(
                                f"a row of {row[0]} refers to a missing row of {row[2]}"
                            )
                            raise IntegrityError("PRAGMA foreign_key_check", None, why)
            finally:
                driver.execute("PRAGMA foreign_keys=ON")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@contextmanager
def _ended(session: Session) -> Iterator[None]:
    try:
        yield
        session.commit()
    except BaseException:
        session.rollback()
        raise


def insert_into(session: Session, table: type[DeclarativeBase]) -> "Upsert":
    """Return an INSERT in the dialect of the database, which has `on_conflict_do_nothing` and
    `on_conflict_do_update`."""
    # Each is imported where it is used: PostgreSQL's dialect takes 4 MiB.
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)
    from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite

    return insert_on_sqlite(table)


class _FileLock:
    """Lock between the threads of this process, first come first served but for those that go
    first, and between processes.

    Not re-entrant. A thread that waits too long gives up; processes hold it for a moment only.
    """

    def __init__(self, path: str, *, wait_s: float | None = None) -> None:
        self._wait_s = -1.0 if wait_s is None else wait_s  # as `acquire` has it
        self._guard = threading.Lock()
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()
        self._path = path
        self._fd: int | None = None

    @contextmanager
    def held(self, *, first: bool = False) -> Iterator[None]:
        """Hold the lock for the block. OperationalError if others have it for too long."""
        self._acquire(first=first)
        try:
            yield
        finally:
            self._release()

    def _acquire(self, *, first: bool) -> None:
        with self._guard:
            my_turn = threading.Lock()
            if self._is_held:
                my_turn.acquire()
                if first:
                    self._waiting.appendleft(my_turn)
                else:
                    self._waiting.append(my_turn)
            self._is_held = True
        try:
            # Already acquired above if this thread has to wait: the holder releases it.
            if not my_turn.acquire(timeout=self._wait_s):
                late = TimeoutError("other processes kept the database busy with writes")
                raise OperationalError("BEGIN IMMEDIATE", None, late)
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            with self._guard:
                gave_up = my_turn in self._waiting
                if gave_up:
                    self._waiting.remove(my_turn)
            if not gave_up:
                self._pass_on()
            raise

    def _release(self) -> None:
        try:
            assert self._fd is not None
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False


def _postgresql_engine(url: str, pool_size: int, longest_statement_s: float | None) -> Engine:
    """Build an engine that survives a restart of the server: closed connections are replaced on
    checkout."""
    engine = create_engine(url, pool_size=pool_size, max_overflow=pool_size)

    @event.listens_for(engine, "connect")
    def bound(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        if longest_statement_s is None:
            return
        most_ms = round(longest_statement_s * 1000)
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"SET statement_timeout = {most_ms}")
            cursor.execute(f"SET lock_timeout = {most_ms // 2}")
        connection.commit()

    @event.listens_for(engine, "checkin")
    def note(_: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info["used_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def replace_ended(
        connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection
    ) -> None:
        used_at = entry.info.get("used_at")
        if used_at is None:
            return  # it is new
        try:
            if time.monotonic() - used_at > IDLE_S or _has_something_to_say(connection):
                engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error

    @event.listens_for(engine, "do_execute")
    def fetch_in_binary(
        cursor: Any, statement: str, parameters: object, context: ExecutionContext
    ) -> bool:
        if IN_BINARY.items() <= context.execution_options.items():
            cursor.execute(statement, parameters, binary=True)
            return True
        return False

    return engine


def _has_something_to_say(connection: DBAPIConnection) -> bool:
    """Return True if the server sent unsolicited data: mostly that the connection has ended."""
    line = select.poll()  # `select.select` knows no file beyond the 1,024th
    line.register(connection.fileno(), select.POLLIN)
    return bool(line.poll(0))


def _sqlite_engine(url: str, pool_size: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={"timeout": 30, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # The driver must not open transactions by itself: `begin` below does.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # an acknowledged write survives a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: object) -> None:
        immediate = connection.get_execution_options().get("sqlite_immediate")  # type: ignore[attr-defined]
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")  # type: ignore[attr-defined]

    return engine
