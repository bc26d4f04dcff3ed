"""Reading what a script has written, while it may still be swapping it for something else.

Nothing is reached by a whole path: every part is opened beneath the one before, and a link anywhere
is refused, so that no look of the worker's ends outside the script's own folders.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DEEPEST = 24  # folders below its own that are looked into
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(NamedTuple):
    """A plain file, as it was seen."""

    name: str
    """Its path below the folder that was looked through."""
    size: int
    changed_ns: int


def open_plain(root: Path, name: str) -> int:
    """A descriptor to read the plain file `name` below `root`, which is the worker's. OSError."""
    *above, last = name.split("/")
    folder = _open_folder(root, above)
    try:
        descriptor = os.open(last, FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is no plain file")
    return descriptor


def plain_files(root: Path) -> Iterator[Entry]:
    """Every plain file below `root`, by name; what is nested deeper than DEEPEST is not seen."""
    ahead: list[list[str]] = [[]]
    while ahead:
        parts = ahead.pop()
        with suppress(OSError):
            descriptor = _open_folder(root, parts)
            try:
                found = [(e.name, e.stat(follow_symlinks=False)) for e in os.scandir(descriptor)]
            finally:
                os.close(descriptor)
            for name, seen in sorted(found, key=lambda one: one[0]):
                if stat.S_ISDIR(seen.st_mode) and len(parts) < DEEPEST:
                    ahead.append([*parts, name])
                elif stat.S_ISREG(seen.st_mode):
                    yield Entry("/".join([*parts, name]), seen.st_size, seen.st_mtime_ns)


def _open_folder(root: Path, parts: list[str]) -> int:
    descriptor = os.open(root, FOLDER)
    for part in parts:
        try:
            inner = os.open(part, FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
