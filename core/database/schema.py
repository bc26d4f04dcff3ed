"""Migration of a database to the newest schema. One history for PostgreSQL and SQLite.

The history begins with version 0.2.0. What 0.1.0 last made is the same schema under another
revision, and is taken over as it is; anything older is upgraded by 0.1.0 itself.
"""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from core.database.database import Database

FIRST = "20261123_first_release"
LAST_OF_0_1_0 = "20261217_cycle_numbers"  # the same schema as FIRST
REMEDY = (
    "Start the last commit of version 0.1.0 on it once, or use the newer version that created it."
)


class UnknownRevision(Exception):
    """A schema is of a revision that this version cannot upgrade."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The database is at revision {revision}, which this version cannot upgrade. {REMEDY}"
        )


def upgrade(database: Database, to: str = "head") -> None:
    """Apply every migration up to `to` that is missing. Safe from several processes at once.

    UnknownRevision, with nothing changed, for a database that this version cannot upgrade.
    """
    with database.migrate() as session:
        connection = session.connection()
        _take_over(connection)
        command.upgrade(_config(connection), to if to == "head" else equal_revision(to))


def newest_revision() -> str:
    """Return the revision that this version of the code needs."""
    revision = _scripts().get_current_head()
    assert revision is not None
    return revision


def equal_revision(revision: str) -> str:
    """Return the revision of this history with the same schema. Raises UnknownRevision."""
    if revision == LAST_OF_0_1_0:
        return FIRST
    if revision not in {script.revision for script in _scripts().walk_revisions()}:
        raise UnknownRevision(revision)
    return revision


def _take_over(connection: Connection) -> None:
    """Rename the revision of a database that 0.1.0 made."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and (ours := equal_revision(revision)) != revision:
        connection.execute(text("UPDATE alembic_version SET version_num = :ours"), {"ours": ours})


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config(connection: object = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
