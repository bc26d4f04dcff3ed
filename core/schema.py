"""Brings a database to the newest schema. One history for PostgreSQL and SQLite."""

from importlib.resources import files

from alembic import command
from alembic.config import Config

from core.database import Database


def upgrade(database: Database) -> None:
    """Apply every migration that is missing. Safe from several processes at once."""
    with database.write() as session:
        command.upgrade(_config(session.connection()), "head")


def _config(connection: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
