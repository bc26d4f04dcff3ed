"""A database as files, one of JSON lines for each table, the same from PostgreSQL and from SQLite.

Read in one transaction, so that all tables are of one moment. Tables are taken as they are in the
database, not as this version of the code knows them: an older schema can be dumped too. What was
dumped from one kind of database can be loaded into the other.
"""

import base64
import gzip
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    DateTime,
    LargeBinary,
    MetaData,
    Table,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.exc import SAWarning
from sqlalchemy.types import TypeEngine

OURS = "alembic_version"  # told by the revision in the manifest
ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class TableDump:
    """Number of rows and hash of one table's file."""

    rows: int
    sha256: str
    """SHA-256 of the table's lines, before compression."""


def dump_table(connection: Connection, table: Table, file: Path | None) -> TableDump:
    """Write every row, ordered by key; with `file` None only count and hash them."""
    digest, rows = sha256(), 0
    with gzip.open(file or os.devnull, "wb", compresslevel=5 if file else 0) as packed:
        for line in _lines(connection, table):
            digest.update(line)
            rows += 1
            packed.write(line)
    return TableDump(rows, digest.hexdigest())


def load_table(connection: Connection, table: Table, file: Path) -> int:
    """Insert every row of the file; return their number."""
    batch: list[dict[str, Any]] = []
    rows = 0
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            values = json.loads(line)
            batch.append({name: from_json(table.c[name].type, values[name]) for name in values})
            rows += 1
            if len(batch) == ROWS_AT_ONCE:
                _insert(connection, table, batch)
                batch = []
    _insert(connection, table, batch)
    return rows


def from_json(kind: TypeEngine[Any], value: Any) -> Any:
    """Return a value of a dump in the type of its column."""
    if value is None:
        return None
    if isinstance(kind, DateTime):
        moment = datetime.fromisoformat(value)
        return moment if kind.timezone else moment.astimezone(UTC).replace(tzinfo=None)
    if isinstance(kind, LargeBinary):
        return base64.b64decode(value)
    assert isinstance(kind, JSON) or not isinstance(value, dict | list)
    return value


def tables_of(connection: Connection) -> list[Table]:
    """Every table of the database but Alembic's, what is referred to before what refers."""
    metadata = MetaData()
    with warnings.catch_warnings():
        # An index over an expression can't be reflected on SQLite; of indexes nothing is dumped.
        warnings.filterwarnings("ignore", "Skipped unsupported reflection", SAWarning)
        metadata.reflect(connection)
    for column in (column for table in metadata.tables.values() for column in table.columns):
        if isinstance(column.type, JSON):
            column.type.none_as_null = True  # as core.tables has it: nothing is NULL, not 'null'
    return [table for table in metadata.sorted_tables if table.name != OURS]


def count_on(connection: Connection, tables: list[Table]) -> None:
    """Continue PostgreSQL's sequences after the numbers that were loaded."""
    if connection.dialect.name != "postgresql":
        return
    for table in tables:
        for column in table.primary_key:
            sequence = connection.scalar(
                text("SELECT pg_get_serial_sequence(:table, :column)"),
                {"table": table.name, "column": column.name},
            )
            if sequence is not None:
                highest = connection.scalar(select(func.max(column))) or 0
                connection.execute(select(func.setval(sequence, highest + 1, False)))


def _lines(connection: Connection, table: Table) -> Iterator[bytes]:
    query = select(table).order_by(*table.primary_key.columns)
    result = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
    names = [column.name for column in table.columns]
    types = [column.type for column in table.columns]
    for row in result:
        values = {
            name: _written(kind, value) for name, kind, value in zip(names, types, row, strict=True)
        }
        yield json.dumps(values, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _insert(connection: Connection, table: Table, batch: list[dict[str, Any]]) -> None:
    if batch:
        connection.execute(insert(table), batch)


def _written(kind: TypeEngine[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, datetime):  # SQLite's have lost their offset: they are UTC
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Decimal):
        return float(value)
    return bool(value) if isinstance(kind, Boolean) else value
