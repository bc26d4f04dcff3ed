"""`trainyard admin backup` and `restore`: database and store, in one folder, verified.

    manifest.json           written last: what is in the folder, with hashes
    tables/<table>.jsonl.gz the database, one moment of it
    files/ab/abcdef...      the store's files by their SHA-256; a second backup adds what is new
    secrets.key             the keys that users' secrets are sealed with, where there are any

The platform may go on meanwhile. Nothing is swept from the store while it lasts. Settings are not
in it: passwords of database, broker and mail, and those of the OpenID provider.
"""

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Table, select, text

from api.files.retention import held_off
from api.files.store import Store
from core.base.clock import utc_now
from core.database.database import Database
from core.database.schema import UnknownRevision, equal_revision, newest_revision, upgrade
from core.notices.deliveries import keep_all
from core.process import read_only
from core.tables.files import StoredFile
from core.tables.scripts import Secret
from standalone.backup_keys import KEYS, back_up_keys, restore_keys, unopened, verify_keys
from standalone.dump import TableDump, count_on, dump_table, load_table, tables_of
from strategies.plan.durable_files import fsync_directory, sha256_of, write_atomically
from strategies.plan.words import counted

MANIFEST = "manifest.json"
FORMAT = 2
READABLE = (1, 2)  # 1 had no keys
PIECE = 1 << 20
NOT_SENT = "The platform was restored from a backup; this notice may have been sent before."

Say = Callable[[str], None]


class BackupFailed(ValueError):
    """A backup cannot be used as it is; the message states the reason and the remedy."""


@dataclass(frozen=True)
class BackupManifest:
    """Contents of a backup."""

    format: int
    made_at: str
    platform: str
    revision: str
    """Revision of the schema that was dumped."""
    tables: dict[str, TableDump]
    files: int
    bytes: int
    keys_sha256: str | None = None
    """SHA-256 of `secrets.key`; None if no secret was ever sealed."""

    @classmethod
    def read(cls, folder: Path) -> "BackupManifest":
        """Read the manifest of a backup. Raises BackupFailed without one, or for another format."""
        try:
            document = json.loads((folder / MANIFEST).read_text())
            if document["format"] not in READABLE:
                raise BackupFailed(
                    f"{folder} has format {document['format']}, this version reads {READABLE}."
                )
            tables = {name: TableDump(**dumped) for name, dumped in document["tables"].items()}
            return cls(**{**document, "tables": tables})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupFailed(
                f"{folder} does not hold a finished backup: {MANIFEST} cannot be read ({error})."
            ) from error


def back_up(database: Database, store: Store, keys: Path, folder: Path, say: Say) -> BackupManifest:
    """Write a backup into `folder`; `keys` is the file that users' secrets are sealed with.

    BackupFailed where a file of the store is lost or damaged, or where secrets have no keys.
    """
    with held_off(database):
        return _back_up(database, store, keys, folder, say)


def _back_up(
    database: Database, store: Store, keys: Path, folder: Path, say: Say
) -> BackupManifest:
    (folder / "tables").mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    (folder / MANIFEST).unlink(missing_ok=True)  # not finished from here on
    now = utc_now()
    with _one_moment(database) as connection:
        revision = _revision(connection)
        assert revision is not None
        tables = tables_of(connection)
        dumped = {table.name: _dump(connection, table, folder) for table in tables}
        files = _files(connection, tables)
        sealed = _sealed(connection)
    say(f"{sum(d.rows for d in dumped.values()):,} rows of {len(dumped)} tables.")
    copied, lost = 0, []
    for digest, size in files:
        target = folder / "files" / digest[:2] / digest
        if target.is_file() and target.stat().st_size == size:
            continue
        if not store.has(digest):
            lost.append(digest)
            continue
        copy_verified(store.path(digest), target, digest)
        copied += 1
    say(f"{len(files):,} files, {copied:,} of them new.")
    if lost:
        raise BackupFailed(
            f"{len(lost)} files that the database names are not in the store, such as {lost[0]}. "
            "The rest is in the folder, without a manifest. Is TRAINYARD_STORE right?"
        )
    keys_sha256 = back_up_keys(keys, folder, sealed=sealed, say=say)
    manifest = BackupManifest(
        format=FORMAT,
        made_at=now.isoformat(),
        platform=version("trainyard-platform"),
        revision=revision,
        tables=dumped,
        files=len(files),
        bytes=sum(size for _, size in files),
        keys_sha256=keys_sha256,
    )
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
    return manifest


def restore(database: Database, store: Store, keys: Path, folder: Path, say: Say) -> BackupManifest:
    """Load a backup into an empty database and a store, and bring the schema up to date.

    Everything is verified before anything is written, and the rows once more afterwards.
    BackupFailed where the backup is damaged, the database is not empty, or `keys` holds other keys.
    Notices that were on their way are not sent again, unless the platform was read-only.
    """
    manifest = BackupManifest.read(folder)
    try:
        revision = equal_revision(manifest.revision)
    except UnknownRevision as error:
        raise BackupFailed(f"This version cannot restore {folder}. {error}") from error
    verify(folder, manifest)
    say(f"The backup of {manifest.made_at} is complete and undamaged.")
    with database.read() as session:
        if tables_of(session.connection()):
            raise BackupFailed(
                f"{database.url.render_as_string()} is not empty. Restore into a new database."
            )
    if manifest.keys_sha256 is not None:
        verify_keys(keys, folder, manifest.keys_sha256)
    store.create()
    if manifest.keys_sha256 is not None:
        restore_keys(keys, folder)
    for path in sorted((folder / "files").glob("*/*")):
        if not store.has(path.name):
            copy_verified(path, store.path(path.name), path.name)
    upgrade(database, to=revision)
    with database.write() as session:
        connection = session.connection()
        tables = tables_of(connection)
        for table in tables:
            if table.name in manifest.tables:
                load_table(connection, table, _file(folder, table.name))
        count_on(connection, tables)
        for table in tables:
            if table.name in manifest.tables:
                found = dump_table(connection, table, None)
                if found != manifest.tables[table.name]:
                    raise BackupFailed(
                        f"{table.name} differs from the backup after the restore; nothing was kept."
                    )
    say(f"{sum(d.rows for d in manifest.tables.values()):,} rows are identical to the backup.")
    if revision != newest_revision():
        upgrade(database)
        say(f"The schema went from {revision} to {newest_revision()}.")
    _tell_of_secrets(database, keys, say)
    _keep_notices(database, datetime.fromisoformat(manifest.made_at), say)
    return manifest


def _tell_of_secrets(database: Database, keys: Path, say: Say) -> None:
    with database.read() as session:
        lost = unopened(keys, _sealed(session.connection()))
    if lost:
        say(
            f"{counted(lost, 'secret')} of users cannot be decrypted: the key is missing "
            f"here. Put the old platform's {KEYS} at {keys} before the API starts, or ask the "
            "owners to set them again."
        )


def _keep_notices(database: Database, made_at: datetime, say: Say) -> None:
    """Send nothing twice: what waited then has left since, unless the platform was read-only."""
    with database.write() as session:
        if read_only.state(session, now=made_at) is None:
            kept = keep_all(session, NOT_SENT, now=utc_now())
            say(
                f"{kept:,} notices were waiting to be sent at the time of the backup; they "
                "are shown, but not sent again."
            )


def verify(folder: Path, manifest: BackupManifest) -> None:
    """BackupFailed where a table or a file of the backup is missing or not what it was."""
    for name, dumped in manifest.tables.items():
        found = _hash_of_dump(_file(folder, name))
        if found != dumped.sha256:
            raise BackupFailed(f"tables/{name}.jsonl.gz is damaged. Use another backup.")
    for path in sorted((folder / "files").glob("*/*")):
        if sha256_of(path) != path.name:
            raise BackupFailed(f"files/{path.name} is damaged. Use another backup.")


def copy_verified(source: Path, target: Path, digest: str) -> None:
    """Copy a file by content. BackupFailed where it is not what its name says."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = target.with_name(f".{target.name}.new")
    found = sha256()
    with source.open("rb") as reader, aside.open("wb") as writer:
        while piece := reader.read(PIECE):
            found.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if found.hexdigest() != digest:
        aside.unlink()
        raise BackupFailed(f"{source} is damaged: its SHA-256 is {found.hexdigest()}.")
    shutil.copystat(source, aside)
    aside.replace(target)
    fsync_directory(target.parent)


@contextmanager
def _one_moment(database: Database) -> Iterator[Connection]:
    """A connection on which everything that is read is of one moment."""
    with database.engine.connect() as connection:
        if not database.is_sqlite:  # SQLite's deferred transaction is a snapshot by itself
            connection.execute(
                text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY, DEFERRABLE")
            )
        yield connection


def _dump(connection: Connection, table: Table, folder: Path) -> TableDump:
    return dump_table(connection, table, _file(folder, table.name))


def _files(connection: Connection, tables: list[Table]) -> list[tuple[str, int]]:
    if not any(table.name == StoredFile.__tablename__ for table in tables):
        return []
    table = next(table for table in tables if table.name == StoredFile.__tablename__)
    query = select(table.c.sha256, table.c.size).order_by(table.c.sha256)
    if "gone_at" in table.c:
        query = query.where(table.c.gone_at.is_(None))
    return [(str(digest), int(size)) for digest, size in connection.execute(query)]


def _sealed(connection: Connection) -> list[bytes]:
    """Every secret of a user, as the database has it."""
    tables = {table.name: table for table in tables_of(connection)}
    if Secret.__tablename__ not in tables:
        return []
    return [bytes(one) for one in connection.scalars(select(tables[Secret.__tablename__].c.sealed))]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _file(folder: Path, table: str) -> Path:
    return folder / "tables" / f"{table}.jsonl.gz"


def _hash_of_dump(file: Path) -> str:
    digest = sha256()
    try:
        with gzip.open(file, "rb") as lines:
            while piece := lines.read(PIECE):
                digest.update(piece)
    except (OSError, EOFError, zlib.error):
        return "unreadable"
    return digest.hexdigest()
