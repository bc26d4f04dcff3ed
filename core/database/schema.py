"""Migration of a database to the newest schema. One history for PostgreSQL and SQLite."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from core.database.database import Database


def upgrade(database: Database, to: str = "head") -> None:
    """Apply every migration up to `to` that is missing. Safe from several processes at once."""
    with database.migrate() as session:
        command.upgrade(_config(session.connection()), to)


def newest_revision() -> str:
    """Return the revision that this version of the code needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _config(connection: object = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
