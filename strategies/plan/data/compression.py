"""Compressed text: gzip and zstd, found by the first bytes, unpacked a bounded piece at a time.

No UTF-8 text begins with these bytes. A file may have several members or frames, one after the
other. Torch-free.
"""

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import zstandard

Compression = Literal["gzip", "zstd"]

BEGINNINGS: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
LONGEST_BEGINNING = 4
ENDINGS: dict[Compression, str] = {"gzip": ".gz", "zstd": ".zst"}
READ = 1 << 16  # packed bytes read at a time
SLICE = 1 << 10  # packed bytes unpacked at a time: at most 1 MiB of gzip, 32 MiB of zstd
MOST_WINDOW = 1 << 27  # bytes that zstd looks back; beyond it its own command asks for --long, too


class BadCompression(Exception):
    """Bytes that cannot be unpacked. The message continues a sentence that begins with the file."""


class Unpacking:
    """Unpacked bytes of a file that arrives in pieces."""

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._member: Any = None  # zlib's and zstandard's objects have no common type

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Yield what some bytes unpack to, in pieces of bounded size. Raises BadCompression."""
        for at in range(0, len(packed), SLICE):
            some = packed[at : at + SLICE]
            while some:
                if self._member is None:
                    self._member = self._begin()
                try:
                    piece = self._member.decompress(some)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise self._unreadable(str(error)) from error
                some = b""
                if self._member.eof:
                    some, self._member = self._member.unused_data, None
                if piece:
                    yield piece

    def finish(self) -> None:
        """End the file. Raises BadCompression if its last member has no end."""
        if self._member is not None:
            raise self._unreadable("it ends early")

    def _begin(self) -> Any:
        if self.compression == "gzip":
            return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        return zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW).decompressobj()

    def _unreadable(self, why: str) -> BadCompression:
        return BadCompression(f"is not readable {self.compression}: {why}")


class UnpackedFile(io.RawIOBase):
    """Content of a compressed file, to be read once from its beginning."""

    def __init__(self, path: Path, compression: Compression) -> None:
        self._file, self._unpacking = path.open("rb"), Unpacking(compression)
        self._pieces, self._rest = self._unpacked(), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Raises BadCompression."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def _unpacked(self) -> Iterator[bytes]:
        while packed := self._file.read(READ):
            yield from self._unpacking.feed(packed)
        self._unpacking.finish()


def compression_of(beginning: bytes) -> Compression | None:
    """Return the compression of a file that begins with these bytes; None for plain text."""
    for compression, first in BEGINNINGS.items():
        if beginning.startswith(first):
            return compression
    return None


def compression_in(path: Path) -> Compression | None:
    """Return the compression of a file."""
    with path.open("rb") as file:
        return compression_of(file.read(LONGEST_BEGINNING))


def opened(path: Path) -> BinaryIO:
    """Open a file to read what it holds; reading raises BadCompression if that is damaged."""
    compression = compression_in(path)
    if compression is None:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(UnpackedFile(path, compression), 1 << 17))
