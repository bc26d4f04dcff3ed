"""`python -m benchmarks.workspaces`: seconds for a workspace of 10,000 files on this disk.

Prints a table: the first look, the next with nothing changed, one with one file changed, and the
placing on another node. Files have 4 KiB of random bytes each, in folders of 100.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from core.wire.workspace_tree import Blob
from worker.workspaces.packing import Draft, LastLook, draft, empty_folder
from worker.workspaces.restoring import restore
from worker.workspaces.scanning import look_at

FOLDERS, IN_EACH, FILE_BYTES = 100, 100, 4096
HOUR_S = 3600.0

Result = TypeVar("Result")


def main() -> int:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        base = Path(name)
        root, aside = base / "workspace", base / "aside"
        make_files(root)
        first, first_s = timed(lambda: taken(root, LastLook(), aside))
        store = {sha256: path.read_bytes() for sha256, path in first.files.items()}
        known = LastLook(first.tree, first.stats)
        again, again_s = timed(lambda: taken(root, known, aside))
        assert not again.files
        (root / "000" / "000").write_bytes(os.urandom(FILE_BYTES))
        changed, changed_s = timed(lambda: taken(root, known, aside))
        [sent] = [path.stat().st_size for path in changed.files.values()]
        fetched = empty_folder(base / "fetched")
        for sha256, content in store.items():
            (fetched / sha256).write_bytes(content)
        other = empty_folder(base / "other")

        def fetch(blob: Blob) -> Path:
            return fetched / blob.sha256

        _, placed_s = timed(lambda: restore(first.tree, other, fetch))
    rows = [
        ("first look: hash and pack", first_s, f"{len(store)} packs"),
        ("nothing changed", again_s, "0 bytes sent"),
        ("one file changed", changed_s, f"{sent:,} bytes sent"),
        ("placed on another node", placed_s, ""),
    ]
    for what, seconds, note in rows:
        sys.stdout.write(f"{what:<28} {seconds:6.2f} s   {note}\n")
    return 0


def make_files(root: Path) -> None:
    """Make the files, an hour old."""
    old = time.time() - HOUR_S
    for folder in range(FOLDERS):
        (root / f"{folder:03}").mkdir(parents=True)
        for number in range(IN_EACH):
            path = root / f"{folder:03}" / f"{number:03}"
            path.write_bytes(os.urandom(FILE_BYTES))
            os.utime(path, (old, old))


def taken(root: Path, known: LastLook, aside: Path) -> Draft:
    """Return a snapshot, as a node's worker drafts it."""
    return draft(root, look_at(root, max_entries=100_000), known, empty_folder(aside))


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what the work returns, and its seconds."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
