"""A workspace on this node's disk, made of its tree."""

import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

from core.wire.workspace_tree import Blob, Entry, EntryKind, Tree
from worker.workspaces.packing import LastLook, Stat

PIECE = 1 << 20


class BadContent(Exception):
    """Content whose hash is another than the tree says."""


def restore(tree: Tree, root: Path, fetch: Callable[[Blob], Path]) -> LastLook:
    """Make the files of `tree` in the empty folder `root`, which nobody else writes to yet; return
    what they look like. `fetch` returns the path of a file of the store on this disk.

    Raises BadContent, and OSError of the disk.
    """
    in_packs: dict[int, list[Entry]] = defaultdict(list)
    alone: list[Entry] = []
    for entry in tree.entries:  # folders come before what is in them
        if entry.kind is EntryKind.FOLDER:
            (root / entry.path).mkdir()
        elif entry.kind is EntryKind.LINK:
            assert entry.target is not None
            os.symlink(entry.target, root / entry.path)
        elif entry.pack is not None:
            in_packs[entry.pack].append(entry)
        else:
            alone.append(entry)
    for number, entries in in_packs.items():
        with fetch(tree.packs[number]).open("rb") as pack:
            for entry in sorted(entries, key=lambda one: one.offset):
                pack.seek(entry.offset)
                _write(entry, root, pack.read)
    for entry in alone:
        assert entry.sha256 is not None
        with fetch(Blob(sha256=entry.sha256, size=entry.size)).open("rb") as file:
            _write(entry, root, file.read)
    return LastLook(tree, {e.path: _stat(root / e.path) for e in tree.entries if e.sha256})


def _write(entry: Entry, root: Path, read: Callable[[int], bytes]) -> None:
    path, hashed, left = root / entry.path, sha256(), entry.size
    mode = 0o755 if entry.executable else 0o644
    with ExitStack() as stack:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        file = stack.enter_context(os.fdopen(descriptor, "wb"))
        os.fchmod(descriptor, mode)  # whatever the umask
        while left and (piece := read(min(PIECE, left))):
            file.write(piece)
            hashed.update(piece)
            left -= len(piece)
    if hashed.hexdigest() != entry.sha256:
        raise BadContent(f"{entry.path!r} came from the store with other bytes")
    os.utime(path, ns=(entry.modified_ns, entry.modified_ns))


def _stat(path: Path) -> Stat:
    found = path.stat(follow_symlinks=False)
    return (found.st_size, found.st_mtime_ns, found.st_ino)
