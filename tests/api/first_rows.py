"""What a fresh database is given: the rows of people and a node, made once through real doors.

Each test has a database of its own. To make four people and enrol a node there anew takes longer
than most tests, so the rows are kept, and written into the next database as if made just now.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Table, insert, select

from core.base.clock import utc_now
from core.database.database import Database
from core.tables.base import Base


@dataclass(frozen=True)
class FirstRows:
    """All rows of a database, in an order in which they can be inserted."""

    read_at: datetime
    rows: list[tuple[Table, dict[str, Any]]]

    @classmethod
    def read(cls, database: Database) -> "FirstRows":
        """Read every table but for what a database counts itself, and what it has not set."""
        rows = []
        with database.read() as session:
            for table in Base.metadata.sorted_tables:
                columns = [one for one in table.columns if one is not table.autoincrement_column]
                for row in session.execute(select(*columns)).mappings():
                    rows.append((table, {k: v for k, v in row.items() if v is not None}))
        return cls(utc_now(), rows)

    def write(self, database: Database) -> None:
        """Insert the rows into an empty database, every time in them moved on to now."""
        passed = utc_now() - self.read_at
        with database.write() as session:
            for table, row in self.rows:
                moved = {
                    name: value + passed if isinstance(value, datetime) else value
                    for name, value in row.items()
                }
                session.execute(insert(table), moved)
