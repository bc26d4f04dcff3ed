"""Runs migrations in the transaction of the connection that `core.database.schema` hands over."""

from alembic import context
from sqlalchemy import Connection, text

from core.tables.base import Base

ADVISORY_LOCK = 7_104_921  # any number, the same for all: two processes never migrate at once


def run() -> None:
    """Upgrade, or render what `alembic revision --autogenerate` asks for."""
    connection: Connection = context.config.attributes["connection"]
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    context.run_migrations()


run()
