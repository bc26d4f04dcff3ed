"""A database of one kind, for what does not depend on it or only concerns it."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from core.database.database import Database
from tests.conftest import AS_FILES


@pytest.fixture
def migrated_database(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Database]:
    """A fresh migrated SQLite database."""
    path = tmp_path / "scheduler.db"
    shutil.copy(migrated_sqlite, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.close()


@pytest.fixture
def postgresql_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh migrated PostgreSQL database."""
    server = make_url(request.getfixturevalue("postgresql_url"))
    template = request.getfixturevalue("migrated_postgresql")
    name = f"ty_{uuid.uuid4().hex[:12]}"
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {AS_FILES}")
    database = Database(server.set(database=name).render_as_string(hide_password=False))
    yield database
    database.close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
