"""Snapshot of a workspace, drafted: its tree, and the contents that the last one did not have.

A file that has the size, time and inode of the last look is not read again. New contents are
copied aside while they are hashed, so that what is sent is what was hashed, whatever the program
does meanwhile.
"""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.wire.workspace_tree import SMALL, Blob, Entry, EntryKind, Tree
from worker.node.plain_files import open_plain
from worker.workspaces.scanning import SeenEntry, WorkspaceEntries

PACK_BYTES = 32 << 20
MANY_SMALL_PACKS = 16  # then their contents move into one
PIECE = 1 << 20
RACY_NS = 2 * 10**9  # a file changed so shortly before a look may change again within its time

Stat = tuple[int, int, int]
"""Size in bytes, time of the last change in nanoseconds, inode."""


@dataclass(frozen=True)
class LastLook:
    """The last look at a workspace."""

    tree: Tree = field(default_factory=Tree)
    stats: Mapping[str, Stat] = field(default_factory=dict)
    """Size, time and inode of its files, by path, without those that had just changed."""

    def entry_of(self, seen: SeenEntry) -> Entry | None:
        """Return the file's entry in the last tree, if it has not changed since."""
        entry = self.tree.by_path.get(seen.path)
        if entry is None or self.stats.get(seen.path) != stat_of(seen):
            return None
        return entry


@dataclass(frozen=True)
class Draft:
    """A tree, and the files that it needs beside those of the last one."""

    tree: Tree
    files: Mapping[str, Path]
    """Path of each new pack and large content, by SHA-256."""
    stats: Mapping[str, Stat]


class _Place(NamedTuple):
    """Where a content is: in a pack, or (None) a file of the store by itself."""

    pack: "Blob | _NewPack | None"
    offset: int = 0


class _NewPack:
    """Pack that is being written."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.hash = path, 0, sha256()
        self.file: BufferedWriter = path.open("wb")

    def add(self, content: bytes) -> _Place:
        place = _Place(self, self.size)
        self.file.write(content)
        self.hash.update(content)
        self.size += len(content)
        return place

    def blob(self) -> Blob:
        """Close it."""
        self.file.close()
        return Blob(sha256=self.hash.hexdigest(), size=self.size)


def stat_of(seen: SeenEntry) -> Stat:
    """Return what tells an unchanged file."""
    return (seen.size, seen.modified_ns, seen.inode)


def draft(root: Path, look: WorkspaceEntries, known: LastLook, aside: Path) -> Draft:
    """Return the snapshot of what was seen; new contents are files in the empty folder `aside`.

    A file that is gone or unreadable by now is left out of it, which the look then counts.
    """
    return _Drafting(root, look, known, aside).run()


class _Drafting:
    def __init__(self, root: Path, look: WorkspaceEntries, known: LastLook, aside: Path) -> None:
        self.root, self.look, self.known, self.aside = root, look, known, aside
        self.places: dict[str, _Place] = {
            entry.sha256: _Place(
                None if entry.pack is None else known.tree.packs[entry.pack], entry.offset
            )
            for entry in known.tree.entries
            if entry.sha256 is not None
        }
        self.large: dict[str, Path] = {}
        self.packs: list[_NewPack] = []

    def run(self) -> Draft:
        now_ns = time.time_ns()
        found: dict[str, Entry] = {}
        stats: dict[str, Stat] = {}
        for seen in self.look.entries:
            entry = self._entry(seen)
            if entry is None:
                self.look.leave_out(seen.path)
                continue
            found[seen.path] = entry
            if seen.kind is EntryKind.FILE and now_ns - seen.modified_ns > RACY_NS:
                stats[seen.path] = stat_of(seen)
        for path in self._in_wasteful_packs(found):
            entry = self._read(next_seen(found[path]))
            if entry is None:
                self.look.leave_out(path)
                del found[path]
            else:
                found[path] = entry
        blobs = {pack: pack.blob() for pack in self.packs}
        tree = self._tree(found, blobs)
        files = {blob.sha256: pack.path for pack, blob in blobs.items()} | self.large
        return Draft(tree, files, stats)

    def _entry(self, seen: SeenEntry) -> Entry | None:
        if seen.kind is EntryKind.FOLDER:
            return Entry(path=seen.path, kind=seen.kind)
        if seen.kind is EntryKind.LINK:
            return Entry(path=seen.path, kind=seen.kind, target=seen.target)
        unchanged = self.known.entry_of(seen)
        if unchanged is not None:
            if unchanged.executable == seen.executable:
                return unchanged
            return unchanged.model_copy(update={"executable": seen.executable})
        return self._read(seen)

    def _read(self, seen: SeenEntry) -> Entry | None:
        """Read a file and put its content aside, unless the store has it; None if it is gone."""
        try:
            descriptor = open_plain(self.root, seen.path)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(SMALL)
            if len(content) < SMALL:
                digest, size = sha256(content).hexdigest(), len(content)
                if digest not in self.places:
                    self.places[digest] = self._pack().add(content)
            else:
                digest, size = self._put_aside(content, file)
        return Entry(
            path=seen.path,
            kind=EntryKind.FILE,
            size=size,
            modified_ns=seen.modified_ns,
            executable=seen.executable,
            sha256=digest,
        )

    def _put_aside(self, beginning: bytes, file: BinaryIO) -> tuple[str, int]:
        """Copy a large content aside; return its hash and size."""
        hashed, size = sha256(), 0
        target = self.aside / f"large-{len(self.large)}"
        with target.open("wb") as copy:
            piece = beginning
            while piece:
                copy.write(piece)
                hashed.update(piece)
                size += len(piece)
                piece = file.read(PIECE)
        digest = hashed.hexdigest()
        if digest in self.places:
            target.unlink()
        else:
            self.places[digest] = _Place(None)
            self.large[digest] = target
        return digest, size

    def _pack(self) -> _NewPack:
        if not self.packs or self.packs[-1].size >= PACK_BYTES:
            self.packs.append(_NewPack(self.aside / f"pack-{len(self.packs)}"))
        return self.packs[-1]

    def _in_wasteful_packs(self, found: Mapping[str, Entry]) -> list[str]:
        """Return the paths of files whose packs are mostly unused, or small and many; their
        contents are forgotten, so that they move to a new pack."""
        used: dict[Blob, dict[str, int]] = defaultdict(dict)
        for entry in found.values():
            if entry.sha256 is not None and isinstance(
                pack := self.places[entry.sha256].pack, Blob
            ):
                used[pack][entry.sha256] = entry.size
        small = [pack for pack in used if pack.size < SMALL]
        wasteful = {pack for pack, sizes in used.items() if 2 * sum(sizes.values()) < pack.size}
        if len(small) > MANY_SMALL_PACKS:
            wasteful.update(small)
        moving = {digest for pack in wasteful for digest in used[pack]}
        for digest in moving:
            del self.places[digest]
        return [path for path, entry in found.items() if entry.sha256 in moving]

    def _tree(self, found: Mapping[str, Entry], blobs: Mapping[_NewPack, Blob]) -> Tree:
        packs: dict[Blob, int] = {}
        entries = []
        for path in sorted(found):
            entry = found[path]
            if entry.sha256 is not None:
                place = self.places[entry.sha256]
                pack = blobs[place.pack] if isinstance(place.pack, _NewPack) else place.pack
                number = None if pack is None else packs.setdefault(pack, len(packs))
                if (entry.pack, entry.offset) != (number, place.offset):
                    entry = entry.model_copy(update={"pack": number, "offset": place.offset})
            entries.append(entry)
        return Tree(packs=tuple(packs), entries=tuple(entries))


def next_seen(entry: Entry) -> SeenEntry:
    """Return an entry as if it was seen again."""
    return SeenEntry(
        entry.path,
        entry.kind,
        size=entry.size,
        modified_ns=entry.modified_ns,
        executable=entry.executable,
    )


def empty_folder(path: Path) -> Path:
    """Return the folder, made anew."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    return path
