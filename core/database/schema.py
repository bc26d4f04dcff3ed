"""Migration of a database to the newest schema. One history for PostgreSQL and SQLite.

The history begins with version 0.2.0. What 0.1.0 last made is the same schema under another
revision, and is taken over as it is; anything older is upgraded by 0.1.0 itself.
"""

import re
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, inspect, text

from core.database.database import Database

FIRST = "20261123_first_release"
LAST_OF_0_1_0 = "20261217_cycle_numbers"  # the same schema as FIRST
LINES = re.compile(r'^(down_)?revision = "(\w+)"$', re.MULTILINE)
REMEDY = (
    "Start the last commit of version 0.1.0 on it once, or use the newer version that created it."
)


class UnknownRevision(Exception):
    """A schema is of a revision that this version cannot upgrade."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The database is at revision {revision}, which this version cannot upgrade. {REMEDY}"
        )


def is_newest(database: Database) -> bool:
    """Return True if no migration is missing. UnknownRevision for a database that this version
    cannot upgrade."""
    with database.read() as session:
        revision = _revision(session.connection())
    return revision is not None and equal_revision(revision) == revision == newest_revision()


def upgrade(database: Database, to: str = "head") -> None:
    """Apply every migration up to `to` that is missing. Safe from several processes at once.

    UnknownRevision, with nothing changed, for a database that this version cannot upgrade.
    """
    if to == "head" and is_newest(database):
        return
    # Here, because whoever has nothing to upgrade is spared 8 MiB.
    from alembic import command
    from alembic.config import Config

    with database.migrate() as session:
        connection = session.connection()
        _take_over(connection)
        config = Config()
        config.set_main_option("script_location", str(files("migrations")))
        config.attributes["connection"] = connection
        command.upgrade(config, to if to == "head" else equal_revision(to))


def newest_revision() -> str:
    """Return the revision that this version of the code needs."""
    revisions, followed = _history()
    [newest] = revisions - followed
    return newest


def equal_revision(revision: str) -> str:
    """Return the revision of this history with the same schema. Raises UnknownRevision."""
    if revision == LAST_OF_0_1_0:
        return FIRST
    if revision not in _history()[0]:
        raise UnknownRevision(revision)
    return revision


@cache
def _history() -> tuple[frozenset[str], frozenset[str]]:
    """Return all revisions, and those that another one follows."""
    revisions, followed = set[str](), set[str]()
    for file in files("migrations.versions").iterdir():
        if file.name.endswith(".py"):
            for down, revision in LINES.findall(file.read_text()):
                (followed if down else revisions).add(revision)
    return frozenset(revisions), frozenset(followed)


def _revision(connection: Connection) -> str | None:
    """Return the revision of a database; None for one without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return None if revision is None else str(revision)


def _take_over(connection: Connection) -> None:
    """Rename the revision of a database that 0.1.0 made."""
    revision = _revision(connection)
    if revision is not None and (ours := equal_revision(revision)) != revision:
        connection.execute(text("UPDATE alembic_version SET version_num = :ours"), {"ours": ours})
