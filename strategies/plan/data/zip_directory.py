"""Directory at the end of an untrusted zip archive, found before it is read.

`zipfile` creates an object for every entry as soon as it opens an archive: a few megabytes of
directory are hundreds of thousands of them. So its size is checked first.
"""

import os
import struct
from typing import BinaryIO, NamedTuple
from zipfile import BadZipFile

END, END_BYTES = b"PK\x05\x06", 22
ZIP64_LOCATOR, LOCATOR_BYTES = b"PK\x06\x07", 20
LONGEST_COMMENT = 1 << 16
ENTRY = b"PK\x01\x02"  # first bytes of every entry of a directory


class Directory(NamedTuple):
    """Position of an archive's directory, in bytes from its beginning."""

    start: int
    size: int


def find_directory(file: BinaryIO) -> Directory:
    """Find the directory that `zipfile` would read.

    Raises BadZipFile if there is none, or one of an archive of more than 4 GiB or 65,535 entries
    (zip64).
    """
    length = file.seek(0, os.SEEK_END)
    before = max(0, length - END_BYTES - LONGEST_COMMENT - LOCATOR_BYTES)
    file.seek(before)
    tail = file.read()
    at = tail.rfind(END)
    is_short = at < 0 or len(tail) - at < END_BYTES
    if is_short or tail.startswith(ZIP64_LOCATOR, max(0, at - LOCATOR_BYTES)):
        raise BadZipFile("it does not end like a zip archive of at most 4 GiB")
    (size,) = struct.unpack_from("<L", tail, at + 12)
    start = before + at - size
    if start < 0:
        raise BadZipFile(f"its directory has {size:,} bytes, more than the whole file")
    return Directory(start, size)


def most_entries(file: BinaryIO, directory: Directory) -> int:
    """Count the positions in a directory where an entry can begin: no fewer than its entries."""
    file.seek(directory.start)
    return file.read(directory.size).count(ENTRY)
