"""Reader of files that a script has written and may still be replacing by something else.

Nothing is opened by a whole path: every part is opened beneath the one before, and links are
refused, so that the worker never reads outside the script's own folders.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DEEPEST = 24  # levels of folders below the script's own that are read
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileEntry(NamedTuple):
    """Plain file, as it was seen."""

    name: str
    """Path below the searched folder."""
    size: int
    changed_ns: int


def open_plain(root: Path, name: str) -> int:
    """Return a descriptor for reading the plain file `name` below `root`, the worker's own folder.

    Raises OSError if it is missing or not a plain file.
    """
    *above, last = name.split("/")
    folder = open_folder(root, above)
    try:
        descriptor = os.open(last, FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is not a plain file")
    return descriptor


def plain_files(root: Path) -> Iterator[FileEntry]:
    """Yield every plain file below `root`, by name; files nested deeper than DEEPEST are left
    out."""
    ahead: list[list[str]] = [[]]
    while ahead:
        parts = ahead.pop()
        with suppress(OSError):
            descriptor = open_folder(root, parts)
            try:
                found = [(e.name, e.stat(follow_symlinks=False)) for e in os.scandir(descriptor)]
            finally:
                os.close(descriptor)
            for name, seen in sorted(found, key=lambda one: one[0]):
                if stat.S_ISDIR(seen.st_mode) and len(parts) < DEEPEST:
                    ahead.append([*parts, name])
                elif stat.S_ISREG(seen.st_mode):
                    yield FileEntry("/".join([*parts, name]), seen.st_size, seen.st_mtime_ns)


def open_folder(root: Path, parts: list[str]) -> int:
    """Return a descriptor of the folder `parts` below `root`. Raises OSError if one of them is not
    a folder, or is a link."""
    descriptor = os.open(root, FOLDER)
    for part in parts:
        try:
            inner = os.open(part, FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
