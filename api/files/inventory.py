"""Comparison of the store's folder with the rows: both should name the same files."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select

from api.files.store import Store, StoreEntry
from core.database.database import Database
from core.tables.files import StoredFile

DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class FileDifference:
    """Files known to one side only, among those whose hashes begin with the same two digits."""

    unnamed: list[StoreEntry]
    """Files on the disk that no row names as being in the store."""
    lost: list[str]
    """Hashes that rows name and the disk does not have."""


def differences(database: Database, store: Store) -> Iterator[FileDifference]:
    """Compare the rows and the disk, yielding the differences of a 256th at a time.

    The disk is read first: a file that is uploaded meanwhile is named already, and a file that was
    not on the disk is looked for again.
    """
    for beginning in (first + second for first in DIGITS for second in DIGITS):
        on_disk = store.files(beginning)
        named = (
            select(StoredFile.sha256)
            .where(StoredFile.sha256 >= beginning, StoredFile.sha256 < f"{beginning}g")
            .where(StoredFile.gone_at.is_(None))
        )
        with database.read() as session:
            rows = set(session.scalars(named))
        unnamed = sorted(on_disk.keys() - rows)
        lost = sorted(rows - on_disk.keys())
        yield FileDifference(
            [StoreEntry(sha256, on_disk[sha256]) for sha256 in unnamed if store.has(sha256)],
            [sha256 for sha256 in lost if not store.has(sha256)],
        )
