"""What the store's folder and the rows say of each other: both should name the same files."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select

from api.files.store import Kept, Store
from core.database.database import Database
from core.tables.files import StoredFile

DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class Difference:
    """Of the files whose hashes begin alike, those that only one side knows."""

    unnamed: list[Kept]
    """On the disk, and no row says that they are in the store."""
    lost: list[str]
    """Hashes that rows name and the disk does not have."""


def differences(database: Database, store: Store) -> Iterator[Difference]:
    """Compare the rows and the disk, a 256th at a time.

    The disk is looked at first: what is uploaded meanwhile is named already, and what was not there
    is looked for again.
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
        yield Difference(
            [Kept(sha256, on_disk[sha256]) for sha256 in unnamed if store.has(sha256)],
            [sha256 for sha256 in lost if not store.has(sha256)],
        )
