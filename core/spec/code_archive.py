"""An archive of a script's code: its permitted content, and its unpacking.

A zip of plain files. Unpacking makes every path anew below an empty folder, so nothing in the
archive decides where on the disk anything lands.
"""

import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.spec.script import MAX_FILES, MAX_RATIO, MAX_UNPACKED_BYTES
from strategies.plan.data.zip_directory import find_directory, most_entries

PIECE = 1 << 20
MAX_PATH = 400
MAX_ENTRIES = 2 * MAX_FILES  # some tools write folders, too
MAX_DIRECTORY_BYTES = 8 << 20  # room for MAX_ENTRIES whose paths are as long as they may be
ENCRYPTED = 0x1
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


class BadArchive(Exception):
    """Not an acceptable archive; the message says what is wrong with it."""


@dataclass(frozen=True)
class ArchiveListing:
    """Content that a checked archive declares."""

    paths: Sequence[str]
    unpacked_size: int


def check(archive: str | Path | BinaryIO) -> ArchiveListing:
    """Read the directory of an archive, and nothing else of it. Raises BadArchive if refused."""
    try:
        entries = _entries(archive)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, NotImplementedError) as error:
        raise BadArchive(f"it is not a zip archive: {error}") from error
    files = [entry for entry in entries if not entry.is_dir()]
    if len(files) > MAX_FILES:
        raise BadArchive(f"it has {len(files):,} files; the limit is {MAX_FILES:,}")
    if not files:
        raise BadArchive("it has no files")
    paths: set[str] = set()
    for entry in entries:
        path = entry.filename.rstrip("/")
        require_plain(path)
        if path in paths:
            raise BadArchive(f"{path!r} is in it twice")
        paths.add(path)
        if entry.flag_bits & ENCRYPTED:
            raise BadArchive(f"{path!r} is encrypted")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BadArchive(f"{path!r} is a link or a device; only regular files are accepted")
    named = {entry.filename for entry in files}
    for path in sorted(named):
        parts = path.split("/")
        above = next((up for n in range(1, len(parts)) if (up := "/".join(parts[:n])) in named), "")
        if above:
            raise BadArchive(f"{above!r} is both a file and a folder in it")
    size = sum(entry.file_size for entry in files)
    packed = sum(entry.compress_size for entry in files)
    if size > MAX_UNPACKED_BYTES:
        raise BadArchive(
            f"it unpacks to {size / 2**20:.1f} MiB; the limit is {MAX_UNPACKED_BYTES >> 20}"
        )
    if size > MAX_RATIO * max(packed, 1024):
        raise BadArchive(
            f"it unpacks to {size / max(packed, 1):.0f} times its size; the limit is {MAX_RATIO}"
        )
    return ArchiveListing(paths=sorted(named), unpacked_size=size)


def _entries(archive: str | Path | BinaryIO) -> Sequence[zipfile.ZipInfo]:
    """Read an archive's directory once it is known to be small."""
    with open(archive, "rb") if isinstance(archive, str | Path) else nullcontext(archive) as file:
        directory = find_directory(file)
        if directory.size > MAX_DIRECTORY_BYTES:
            raise BadArchive(
                f"its directory has {directory.size:,} bytes; the limit is {MAX_DIRECTORY_BYTES:,}"
            )
        if most_entries(file, directory) > MAX_ENTRIES:
            raise BadArchive(
                f"it has more than {MAX_ENTRIES:,} entries; the limit is {MAX_FILES:,} files"
            )
        with zipfile.ZipFile(file) as opened:
            return opened.infolist()


def require_plain(path: str) -> None:
    """Raise BadArchive for a path that is absolute, leads out, or can't be shown."""
    wrong = (
        not path
        or len(path) > MAX_PATH
        or path.startswith("/")
        or "\\" in path
        or any(part in ("", ".", "..") for part in path.split("/"))
        or not path.isprintable()
    )
    if wrong:
        raise BadArchive(
            f"{path[:80]!r} is not a valid path; paths must be relative, without `..`, with "
            f"forward slashes and at most {MAX_PATH} characters"
        )


def unpack(archive: Path, folder: Path) -> ArchiveListing:
    """Unpack a checked archive into the empty `folder`. Raises BadArchive or OSError."""
    listing = check(archive)
    left = MAX_UNPACKED_BYTES  # sizes in the directory need not be true
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if entry.is_dir():
                continue
            target = folder.joinpath(*entry.filename.split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            executable = (entry.external_attr >> 16) & 0o100
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(target, flags, 0o755 if executable else 0o644)
            try:
                with os.fdopen(descriptor, "wb") as file, opened.open(entry) as source:
                    while piece := source.read(PIECE):
                        left -= len(piece)
                        if left < 0:
                            raise BadArchive("it unpacks to more bytes than its directory says")
                        file.write(piece)
            except UNREADABLE as error:
                raise BadArchive(f"{entry.filename!r} cannot be read: {error}") from error
    return listing
