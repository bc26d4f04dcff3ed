"""Fixtures that need real parts: databases of both kinds, and Valkey.

`database` runs a test on SQLite and on PostgreSQL, each time on a fresh copy of a migrated one.
"""

import gc
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from anyio.from_thread import start_blocking_portal
from hypothesis import settings
from sqlalchemy import URL, Dialect, Engine, create_engine, event, make_url
from starlette.testclient import TestClient

from core.database import database as databases
from core.database.database import Database
from core.database.schema import upgrade
from core.process.parent_death import die_with_parent
from standalone import valkey
from tests.one_database import is_for_test_all
from tests.postgresql import running_server
from tests.running import Running, running_platform

# A busy machine is no failure: time is measured by benchmarks, not by tests.
# `make test` tries the same thirty cases each time, so that it judges the change alone; `make
# test-all` looks for a hundred new ones.
settings.register_profile("same-cases", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("new-cases", deadline=None)
settings.load_profile("same-cases")

WAITING = Path(__file__).parent / "worker"
PLATFORM = Path(__file__).parent / "spine"
TURNS_S = (3540, 3600)
"""Seconds of an hour at which another hour is the next one, and at which it begins."""
TEST_S = 15
"""Seconds within which a test that asks for the time more than once should be over."""
AS_FILES = "STRATEGY FILE_COPY"  # by way of the log, a copy takes twice as long


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take both cores run one after another within their group, in one xdist worker.

    So do those on one platform, which would otherwise be started in each worker. On PostgreSQL
    races are heavy; where one person asks it is as light as SQLite. xdist begins with the groups;
    beside them run first those that mostly wait for a process, and what takes a core is left for
    when there is one free.
    """
    items.sort(key=lambda item: WAITING not in item.path.parents)
    for item in items:
        if is_for_test_all(item):
            item.add_marker(pytest.mark.slow)
        group = _group(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    if item.get_closest_marker("xdist_group"):
        return None  # it has its own
    if item.get_closest_marker("gloo"):
        return "platform" if PLATFORM in item.path.parents else "ranks"
    if item.get_closest_marker("browser"):
        return "browser"
    return "races" if item.get_closest_marker("race") and "postgresql" in item.nodeid else None


def pytest_collection_finish() -> None:
    """A full collection looks through all that was imported, torch too: 0.5 s, again and again.

    What tests leave is looked for seldom: at Python's own pace it takes a twelfth of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def _within_one_hour() -> None:
    """Begin no test just before the hour turns: what it books and what it expects would be of
    different hours."""
    for turn_s in TURNS_S:
        left_s = turn_s - time.time() % 3600
        if 0 < left_s < TEST_S:
            time.sleep(left_s)


@pytest.fixture(autouse=True, scope="session")
def _statements_compiled_once() -> Iterator[None]:
    """Engines of one kind share what they have compiled, as the requests of a process do.

    Each test has an engine of its own, whose cache is empty: compiling takes longer than the rest
    of most requests. Compiled statements belong to a dialect, so the engines share that, too, once
    a first connection has told it about the server.
    """
    compiled: dict[Any, Any] = {}
    known: dict[str, Dialect] = {}

    def sharing(url: str | URL, **options: Any) -> Engine:
        engine = create_engine(url, execution_options={"compiled_cache": compiled}, **options)
        kind = engine.dialect.name
        if kind in known:
            engine.dialect = known[kind]
        else:
            event.listen(engine, "connect", lambda *_: known.setdefault(kind, engine.dialect))
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(databases, "create_engine", sharing)
        yield


@pytest.fixture(scope="session")
def one_loop() -> Iterator[None]:
    """One event loop for the requests of all test clients, as a process has one.

    A client that is not entered makes a loop and threads of its own for each request, which takes
    longer than the request.
    """
    with start_blocking_portal() as portal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestClient, "portal", portal)
        yield


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A real Valkey, empty at the start of the session."""
    folder = Path(tempfile.mkdtemp(prefix="ty-vk-", dir="/tmp"))
    server = subprocess.Popen(
        valkey.command(folder), stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    url = valkey.url(folder)
    client = redis.Redis.from_url(url)
    try:
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert server.poll() is None, "Valkey did not start"
        yield url
    finally:
        client.close()
        server.terminate()
        server.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A real PostgreSQL server's `postgres` database: ours, or TRAINYARD_TEST_DATABASE_URL."""
    given = os.environ.get("TRAINYARD_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with running_server(in_memory=True) as url:  # no test cuts the power
        yield url


@pytest.fixture(scope="session")
def platform() -> Iterator[Running]:
    """A whole platform with a ready node, on which each test leaves nothing running."""
    # A scheduler that is killed keeps its term for so long; a test waits for the next one.
    with running_platform({"TRAINYARD_LEADER_TTL_S": "5"}) as running:
        yield running


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "template.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql_url: str) -> Iterator[str]:
    """Name of a migrated, empty PostgreSQL database, to be copied."""
    name = f"ty_template_{uuid.uuid4().hex[:8]}"
    _administer(postgresql_url, f"CREATE DATABASE {name}")
    database = Database(_address(postgresql_url, name))
    upgrade(database)
    database.close()
    yield name
    _administer(postgresql_url, f"DROP DATABASE {name}")


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.db),
        pytest.param("postgresql", marks=pytest.mark.db),
    ]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a fresh migrated database, once of each kind."""
    if request.param == "sqlite":
        template = request.getfixturevalue("migrated_sqlite")
        path = tmp_path / "trainyard.db"
        shutil.copy(template, path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgresql_url")
    template = request.getfixturevalue("migrated_postgresql")
    name = f"ty_{uuid.uuid4().hex[:12]}"
    _administer(server, f"CREATE DATABASE {name} TEMPLATE {template} {AS_FILES}")
    yield _address(server, name)
    _administer(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh migrated database, once of each kind."""
    database = Database(database_url)
    yield database
    database.close()


def _address(server: str, name: str) -> str:
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _administer(server: str, statement: str) -> None:
    url = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[call-overload]
