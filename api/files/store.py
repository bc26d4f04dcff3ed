"""The store: files by content, in one folder that every API process sees.

A file is written aside, hashed while it is written, fsynced, and renamed in the transaction that
names it: a refused upload leaves nothing. A path is made from the SHA-256 alone, so no name sent by
a client ever reaches the disk.
"""

import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from typing import Protocol

from sqlalchemy import ColumnElement, Insert
from sqlalchemy.orm import Session

from core.base.clock import utc_now
from core.base.errors import BadRequest, NotFound
from core.database.database import insert_into
from core.tables.files import StoredFile
from strategies.plan.durable_files import fsync_directory

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoreEntry:
    """A file of the store: the SHA-256 of its content and its size in bytes."""

    sha256: str
    size: int


class Store:
    """Files below `root`: `ab/abcdef...` by hash, `incoming/` while they are written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"

    def create(self) -> None:
        """Make the folders that are missing."""
        self.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        """Return the path of a file, present or not. Raises ValueError for a malformed SHA-256."""
        if not SHA256.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a SHA-256 hash")
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Return True if the file is on the disk."""
        return self.path(digest).is_file()

    def files(self, beginning: str) -> dict[str, int]:
        """Return hash -> size in bytes of the files whose hash begins with these two digits."""
        found = {}
        with suppress(FileNotFoundError), os.scandir(self.root / beginning) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # swept meanwhile
                    if SHA256.fullmatch(entry.name):
                        found[entry.name] = entry.stat().st_size
        return found

    def remove(self, digest: str) -> None:
        """Remove the file, if it is on the disk."""
        self.path(digest).unlink(missing_ok=True)

    def open_path(self, digest: str) -> Path:
        """Return the path of a file that should exist. Raises NotFound if the disk has lost it."""
        path = self.path(digest)
        if not path.is_file():
            raise NotFound(f"The store has lost the file {digest}. Tell an administrator.")
        return path

    def incoming_file(self) -> "IncomingFile":
        """Open a file to write into, which is not visible in the store until it is kept."""
        self.create()
        return IncomingFile(self)


class IncomingFile:
    """A file on its way into the store. Use it in a `with`: it is removed unless it is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.incoming / uuid.uuid4().hex
        self._file: BufferedWriter = open(self._path, "xb")  # noqa: SIM115
        self._hash = sha256()
        self.size = 0
        self._sealed: StoreEntry | None = None

    @property
    def sealed(self) -> StoreEntry | None:
        """Hash and size, once it is sealed."""
        return self._sealed

    def __enter__(self) -> "IncomingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, piece: bytes) -> None:
        """Add bytes."""
        self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def written(self) -> Path:
        """Flush, and return the path of the file with all bytes written so far."""
        self._file.flush()
        return self._path

    def seal(self, *, expected_sha256: str | None = None) -> StoreEntry:
        """Sync the file to the disk and return its hash and size; nothing may be written after.

        Raises BadRequest if the hash is not the expected one.
        """
        digest = self._hash.hexdigest()
        if expected_sha256 not in (None, digest):
            raise BadRequest(
                f"The {self.size:,} bytes have the SHA-256 {digest}, not {expected_sha256}. "
                "Send the file again.",
                code="hash_mismatch",
                param="sha256",
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._sealed = StoreEntry(sha256=digest, size=self.size)
        return self._sealed

    def move(self) -> Path:
        """Move a sealed file to its place; return the folder, which the caller has to sync.

        Harmless a second time, when a transaction is tried again.
        """
        assert self.sealed is not None
        target = self._store.path(self.sealed.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        if self._path.exists() or not target.exists():
            os.replace(self._path, target)
        return target.parent


class SealedFile(Protocol):
    """A whole file that is not in its place yet."""

    @property
    def sealed(self) -> StoreEntry | None:
        """Hash and size of its bytes."""

    def move(self) -> Path:
        """Move it to its place, harmless a second time; return the folder to sync."""


def keep(session: Session, *files: SealedFile) -> None:
    """Name sealed files in rows, and move them to their places, at the end of a transaction.

    The row is written first: it makes the transaction wait for a sweep of the same content, and
    the sweep for the transaction. If the commit fails after a move, no row names the file, and the
    sweep finds it on the disk.
    """
    now = utc_now()
    sealed = {file.sealed for file in files if file.sealed}
    for kept in sorted(sealed, key=lambda each: each.sha256):  # in one order: no deadlock
        session.execute(_row_of(session, kept, now))
    for folder in {file.move() for file in files}:
        fsync_directory(folder)


def name_found(session: Session, kept: StoreEntry, *, now: datetime) -> bool:
    """Name a file that was found on the disk; return False if a row names it by now."""
    row = _row_of(session, kept, now, where=StoredFile.gone_at.is_not(None))
    return session.scalar(row.returning(StoredFile.sha256)) is not None


def _row_of(
    session: Session, kept: StoreEntry, now: datetime, where: ColumnElement[bool] | None = None
) -> Insert:
    return (
        insert_into(session, StoredFile)
        .values(sha256=kept.sha256, size=kept.size, created_at=now, named_at=now)
        .on_conflict_do_update(
            index_elements=[StoredFile.sha256], set_={"named_at": now, "gone_at": None}, where=where
        )
    )
