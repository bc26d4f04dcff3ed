"""Check of an uploaded text, plain or compressed, while it streams.

A compressed one is checked by what it holds, unpacked a bounded piece at a time; it is kept as it
came.
"""

from api.files.dataset_check import DatasetCheck
from core.base.errors import BadRequest
from core.tables.base import Document
from strategies.plan.data.compression import (
    LONGEST_BEGINNING,
    BadCompression,
    Compression,
    Unpacking,
    compression_of,
)

MOST_TIMES = 64  # that a file may hold of its own size; texts have 3 to 20
ALWAYS = 64 << 20  # bytes that any file may hold


class TextCheck:
    """Checker of a text, fed with the body piece by piece."""

    def __init__(self, *, is_jsonl: bool) -> None:
        self.content = DatasetCheck(is_jsonl=is_jsonl)
        self.compression: Compression | None = None
        self._unpacking: Unpacking | None = None
        self._beginning: bytes | None = b""
        self._packed = self._unpacked = 0

    def feed(self, piece: bytes) -> None:
        """Check the next bytes. Raises BadRequest with the wrong byte and its line."""
        if self._beginning is not None:
            self._beginning += piece
            if len(self._beginning) < LONGEST_BEGINNING:
                return
            piece = self._begin()
        self._take(piece)

    def finish(self) -> None:
        """End the text. Raises BadRequest or InvalidRequest if it is empty or wrong."""
        if self._beginning is not None:
            self._take(self._begin())
        if self._unpacking is not None:
            try:
                self._unpacking.finish()
            except BadCompression as error:
                raise self._damaged(error) from error
        self.content.finish()

    def report(self) -> Document:
        """Return the counts and warnings, to be stored with the dataset."""
        return {**self.content.report(), "compression": self.compression}

    def _begin(self) -> bytes:
        beginning, self._beginning = self._beginning or b"", None
        self.compression = compression_of(beginning)
        if self.compression is not None:
            self._unpacking = Unpacking(self.compression)
        return beginning

    def _take(self, piece: bytes) -> None:
        if self._unpacking is None:
            self.content.feed(piece)
            return
        self._packed += len(piece)
        try:
            for unpacked in self._unpacking.feed(piece):
                self._unpacked += len(unpacked)
                if self._unpacked > ALWAYS + MOST_TIMES * self._packed:
                    raise BadRequest(
                        f"The first {self._packed:,} bytes of the file unpack to more than "
                        f"{MOST_TIMES} times as many ({self._unpacked:,}). Upload it unpacked.",
                        code="unpacks_to_too_much",
                        param="body",
                    )
                self.content.feed(unpacked)
        except BadCompression as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BadCompression) -> BadRequest:
        return BadRequest(
            f"The file {error}. Its first {self._packed:,} bytes have arrived.",
            code="bad_compression",
            param="body",
        )
