"""Look at a workspace that a program may be changing: every entry, without following a link.

Folders are opened one beneath the other, and links are refused, so that nothing outside is read.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from core.wire.workspace_tree import DEEPEST, SKIPPED, EntryKind, require_path
from worker.node.plain_files import open_folder

MAX_LISTED = 5


class SeenEntry(NamedTuple):
    """An entry, as it was seen."""

    path: str
    kind: EntryKind
    size: int = 0
    modified_ns: int = 0
    inode: int = 0
    executable: bool = False
    target: str | None = None


@dataclass
class WorkspaceEntries:
    """All entries of a workspace that can be kept, by path."""

    entries: list[SeenEntry] = field(default_factory=list)
    size: int = 0
    """Bytes of all files."""
    left_out: list[str] = field(default_factory=list)
    """Names of the first few things that cannot be kept."""
    num_left_out: int = 0
    is_whole: bool = True
    """False: there are so many entries that the look was ended."""

    def leave_out(self, name: str) -> None:
        """Count something that cannot be kept: a socket, a name that is not UTF-8, an unreadable
        folder."""
        self.num_left_out += 1
        if len(self.left_out) < MAX_LISTED:
            self.left_out.append(name)


def look_at(root: Path, *, max_entries: int) -> WorkspaceEntries:
    """Return everything below `root`, at most some more than `max_entries`."""
    look = WorkspaceEntries()
    ahead: list[list[str]] = [[]]
    while ahead:
        parts = ahead.pop()
        try:
            found = list(_entries(root, parts))
        except OSError:  # not readable, or gone since
            look.leave_out("/".join(parts))
            continue
        for name, seen, target in found:
            path = "/".join([*parts, name])
            try:
                require_path(path)
            except ValueError:
                look.leave_out(path.encode(errors="backslashreplace").decode())
                continue
            if stat.S_ISDIR(seen.st_mode):
                if name not in SKIPPED and len(parts) < DEEPEST:
                    look.entries.append(SeenEntry(path, EntryKind.FOLDER))
                    ahead.append([*parts, name])
            elif stat.S_ISREG(seen.st_mode):
                look.size += seen.st_size
                look.entries.append(
                    SeenEntry(
                        path,
                        EntryKind.FILE,
                        size=seen.st_size,
                        modified_ns=max(0, seen.st_mtime_ns),
                        inode=seen.st_ino,
                        executable=bool(seen.st_mode & stat.S_IXUSR),
                    )
                )
            elif target:
                look.entries.append(SeenEntry(path, EntryKind.LINK, target=target))
            else:
                look.leave_out(path)
        if len(look.entries) > max_entries:
            look.is_whole = False
            break
    look.entries.sort()
    return look


def _entries(root: Path, parts: list[str]) -> Iterator[tuple[str, os.stat_result, str | None]]:
    """Yield (name, status, a link's text) of what is in one folder."""
    folder = open_folder(root, parts)
    try:
        for entry in os.scandir(folder):
            seen = entry.stat(follow_symlinks=False)
            target = None
            if stat.S_ISLNK(seen.st_mode):
                target = os.readlink(entry.name, dir_fd=folder)
                try:
                    target.encode()
                except UnicodeEncodeError:
                    target = None
            yield entry.name, seen, target
    finally:
        os.close(folder)
