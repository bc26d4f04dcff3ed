"""Upload on its way to the disk: its hash and its check go along with the bytes.

Python's hashes cannot be stored, so they live in the process that takes the bytes. A part that
comes to another process, or after a restart, has what is there read once more; any other part has
nothing read twice.
"""

import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from api.files.text_check import TextCheck
from core.base.errors import Conflict
from core.tables.base import Document

PIECE = 1 << 20  # bytes read at a time
REMEMBERED = 64  # uploads; a check holds 16 MiB at most, and mostly a line


class UploadBusy(Conflict):
    """Refusal of a part while another part of the same upload arrives."""

    code = "upload_busy"


class Hash(Protocol):
    """The part of hashlib's objects that is used here."""

    def update(self, piece: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""


@dataclass
class Arrival:
    """Hash and check of the first `received` bytes of an upload."""

    check: TextCheck | None
    received: int = 0
    hash: Hash = field(default_factory=sha256)

    def take(self, piece: bytes) -> None:
        """Add bytes. Raises BadRequest if they are wrong, with their place."""
        if self.check is not None:
            self.check.feed(piece)
        self.hash.update(piece)
        self.received += len(piece)

    def finish(self) -> Document | None:
        """Return the report of the check. Raises BadRequest if it fails."""
        if self.check is None:
            return None
        self.check.finish()
        return self.check.report()


class Arrivals:
    """Arrivals that this process has seen, by upload: the newest ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: OrderedDict[str, Arrival] = OrderedDict()

    def path(self, upload_id: str) -> Path:
        """Return the path of the bytes of an upload; its id was made here."""
        return self.folder / upload_id

    def begin(self, upload_id: str) -> None:
        """Make the empty file of an upload, unless it is there."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path(upload_id).touch(mode=0o600)

    def remove(self, upload_id: str) -> None:
        """Remove the bytes of an upload."""
        self._known.pop(upload_id, None)
        self.path(upload_id).unlink(missing_ok=True)

    @contextmanager
    def locked(self, upload_id: str) -> Iterator[int]:
        """Yield the open file of an upload, for one request of all processes.

        Raises UploadBusy while another has it, Conflict if the disk has lost it.
        """
        try:
            descriptor = os.open(self.path(upload_id), os.O_RDWR)
        except FileNotFoundError as error:
            raise lost() from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UploadBusy(
                    "Another part of this upload is still arriving. Try again in a second."
                ) from error
            yield descriptor
        finally:
            os.close(descriptor)

    def resume(self, upload_id: str, descriptor: int, received: int, format: str) -> Arrival:
        """Return the arrival of the first `received` bytes, and cut the file there.

        Raises Conflict if the disk has fewer.
        """
        if os.fstat(descriptor).st_size < received:
            raise lost()
        os.ftruncate(descriptor, received)
        os.lseek(descriptor, 0, os.SEEK_SET)
        arrival = self._known.pop(upload_id, None)
        if arrival is None or arrival.received != received:
            text = format in ("text", "jsonl")
            arrival = Arrival(TextCheck(is_jsonl=format == "jsonl") if text else None)
            while piece := os.read(descriptor, min(PIECE, received - arrival.received)):
                arrival.take(piece)
        os.lseek(descriptor, received, os.SEEK_SET)
        return arrival

    def remember(self, upload_id: str, arrival: Arrival) -> None:
        """Keep an arrival for the next part."""
        self._known[upload_id] = arrival
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def lost() -> Conflict:
    """Return the error for an upload whose bytes are gone, for the caller to raise."""
    return Conflict(
        "The server has lost bytes of this upload. Delete it and send the file again.",
        code="upload_lost",
    )
