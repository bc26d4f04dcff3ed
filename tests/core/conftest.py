"""A database for pure tables of cases: SQLite alone, migrated once, rolled back by each test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.database.database import Database


@pytest.fixture
def migrated_sqlite_database(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Database]:
    """A fresh migrated SQLite database."""
    path = tmp_path / "cases.db"
    shutil.copy(migrated_sqlite, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.close()
