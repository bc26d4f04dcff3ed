"""The application in process, on both databases, with people and a node to act as."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
import structlog
from fastapi import FastAPI
from pwdlib.hashers.argon2 import Argon2Hasher
from sqlalchemy import QueuePool
from starlette.testclient import TestClient

from api.app import create_app
from api.files.store import Store
from api.web import passwords
from api.web.credentials import issue_link, issue_token
from api.web.process import Process
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.process.settings import ApiSettings
from core.tables.kinds import LinkKind, Role, Scope, TokenKind
from core.tables.people import User
from tests.api.first_rows import FirstRows
from tests.api.shapes import INVENTORY, heartbeat
from tests.api.yard import Yard, make_yard

NOWHERE = "unix:///nonexistent/trainyard-test.sock?db=0"


@dataclass(frozen=True)
class World:
    """A running application, and one client per kind of caller."""

    app: FastAPI
    process: Process
    ann: TestClient
    bob: TestClient
    staff: TestClient
    admin: TestClient
    node: TestClient
    nobody: TestClient
    tokens: dict[str, str]

    @property
    def database(self) -> Database:
        return self.process.database

    @property
    def store(self) -> Store:
        return self.process.service(Store)


@pytest.fixture(autouse=True, scope="session")
def _one_loop(one_loop: None) -> None:
    """Requests share an event loop."""


@pytest.fixture(autouse=True, scope="session")
def plain_log() -> None:
    """One line per event: a coloured traceback with all locals takes seconds."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
    )


@pytest.fixture(autouse=True, scope="session")
def cheap_passwords() -> Iterator[None]:
    """A hash is meant to be dear to guessers, not to tests: sign_in/test_passwords.py has it so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "Argon2Hasher", lambda: Argon2Hasher(1, 64, 1))
        passwords._hasher.cache_clear()
        yield
    passwords._hasher.cache_clear()


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """Address of a fresh migrated SQLite database, for what does not depend on its kind."""
    path = tmp_path / "trainyard.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> ApiSettings:
    """Limits far away; tests of limits make their own."""
    return ApiSettings(
        database_url=database_url,
        redis_url=NOWHERE,
        store=tmp_path / "store",
        submissions_per_minute=100_000,
        logins_per_minute=1000,
        max_queued_jobs=1000,
    )


@pytest.fixture
def world(settings: ApiSettings) -> Iterator[World]:
    """The application with ann and bob, staff, an administrator and one ready node, `box`."""
    with running_world(settings) as world:
        yield world


@pytest.fixture
def yard(database: Database) -> Yard:
    """People and nodes to race with, on both databases."""
    return make_yard(database)


class running_world:
    """Start an application, give it people and a node that is ready; stop it at the end."""

    made: ClassVar[dict[bool, tuple[FirstRows, dict[str, str]]]] = {}  # by `with_node`

    def __init__(self, settings: ApiSettings, *, with_node: bool = True) -> None:
        self.with_node = with_node
        self.app = create_app(settings)
        self.process: Process = self.app.state.process

    def __enter__(self) -> World:
        if self.with_node in self.made:
            rows, tokens = self.made[self.with_node]
            rows.write(self.process.database)
        else:
            tokens = self._make()
            self.made[self.with_node] = FirstRows.read(self.process.database), tokens
        clients = {name: client(self.app, token) for name, token in tokens.items()}
        nobody = client(self.app, None)
        return World(
            app=self.app,
            process=self.process,
            ann=clients["ann"],
            bob=clients["bob"],
            staff=clients["stefan"],
            admin=clients["ada"],
            node=clients.get("box", nobody),
            nobody=nobody,
            tokens=dict(tokens),
        )

    def _make(self) -> dict[str, str]:
        database = self.process.database
        tokens = {
            name: add_person(database, name, role)
            for name, role in (
                ("ann", Role.USER),
                ("bob", Role.USER),
                ("stefan", Role.STAFF),
                ("ada", Role.ADMIN),
            )
        }
        if self.with_node:
            tokens["box"] = enrol(self.app, database, "box")
            answer = client(self.app, tokens["box"]).post("/v1/node/heartbeat", json=heartbeat())
            assert answer.status_code == 200, answer.text
        return tokens

    def __exit__(self, *_: object) -> None:
        self.process.ringer.close()
        self.app.state.looks.close()
        _wait_for_threads(self.process.database)
        self.process.database.close()


def _wait_for_threads(database: Database) -> None:
    """A stream that is cancelled leaves its thread to read on, with a connection of its own."""
    pool = database.engine.pool
    assert isinstance(pool, QueuePool)
    until = time.monotonic() + 5
    while pool.checkedout() and time.monotonic() < until:
        time.sleep(0.005)


def client(app: FastAPI, token: str | None) -> TestClient:
    """A client that sends this bearer token; server errors are answers, not exceptions."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(
        app, base_url="http://127.0.0.1:8471", headers=headers, raise_server_exceptions=False
    )


def add_person(database: Database, name: str, role: Role) -> str:
    """A person with an API token; the token's secret."""
    now = utc_now()
    user = User(
        id=new_id(IdKind.USER),
        name=name,
        role=role,
        password_hash=None,
        zone="UTC",
        disabled=False,
        created_at=now,
    )
    with database.write() as session:
        session.add(user)
        session.flush()
        _, secret = issue_token(
            session,
            kind=TokenKind.API,
            name="test",
            now=now,
            user_id=user.id,
            scopes=[Scope.ALL],
        )
    return secret


def enrol(app: FastAPI, database: Database, name: str, **changes: object) -> str:
    """A node that has joined, but not yet sent a heartbeat; its token."""
    now = utc_now()
    with database.write() as session:
        _, secret = issue_link(
            session,
            kind=LinkKind.ENROL,
            now=now,
            lifetime=timedelta(minutes=5),
            node_name=name,
        )
    answer = client(app, None).post(
        "/v1/node/enrol", json={"token": secret, "inventory": {**INVENTORY, **changes}}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["node_token"])
