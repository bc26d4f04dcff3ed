"""Documents that JupyterLab's server had not written to their files when it ended or died.

The server writes a file a second after the last key, so nothing is written while somebody types on,
and what it has still to write is dropped when it ends. But each change goes into its store of
updates at once, and that outlives it: this program, run inside the sandbox by the server's
interpreter, writes the files from there. It runs from a copy and imports nothing of ours.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

STORE = "/tmp/documents.db"
"""Updates of all open documents, as pycrdt's SQLiteYStore keeps them."""
FILE_IDS = "/tmp/file_ids.db"
"""Paths of these documents, as jupyter_server_fileid keeps them."""

WRITTEN_AFTER_S = 0.9
"""The server begins to write a second after a key: a file that is younger by less may be one that
it was writing when the key came, and lack it. A tenth for the time until a change is stored."""


def main(home: str, store: str = STORE, file_ids: str = FILE_IDS) -> int:
    """Write what is newer in the store than in its file; name each such file on standard output.

    Returns 1 if one of them could not be written.
    """
    code = 0
    for kind, path, updates, changed_at in stored(Path(home), store, file_ids):
        try:
            if not path.is_file() or path.stat().st_mtime > changed_at + WRITTEN_AFTER_S:
                continue  # deleted or moved, or written since
            text = text_of(kind, updates)
            if text is not None and text != path.read_text(encoding="utf-8"):
                replace(path.resolve(), text)
                sys.stdout.write(f"Written after the server's end: {path.relative_to(home)}\n")
        except Exception as error:  # the other documents are not to be lost with this one
            sys.stderr.write(f"What was typed last is not in {path}: {error}\n")
            code = 1
    return code


def stored(home: Path, store: str, file_ids: str) -> Iterator[tuple[str, Path, list[bytes], float]]:
    """Yield kind, path, updates and time of the last change, in seconds of the epoch, of each
    document in the store."""
    if not (os.path.exists(store) and os.path.exists(file_ids)):
        return
    with closing(sqlite3.connect(file_ids)) as ids:
        paths = dict(ids.execute("SELECT id, path FROM Files").fetchall())
    with closing(sqlite3.connect(store)) as updates:
        changes: dict[str, list[tuple[bytes, float]]] = {}
        for table, column in (("ycheckpoints", "checkpoint"), ("yupdates", "yupdate")):
            for room, change, at in updates.execute(
                f"SELECT path, {column}, timestamp FROM {table} ORDER BY timestamp"
            ):
                changes.setdefault(room, []).append((change, at))
    for room, found in changes.items():  # such as .notebook:89e5...b1.y
        kind, _, file_id = room.removeprefix(".").removesuffix(".y").partition(":")
        path = paths.get(file_id)
        if path is not None:
            yield kind, home / path, [one for one, _ in found], max(at for _, at in found)


def text_of(kind: str, updates: list[bytes]) -> str | None:
    """Return the text of a document's file; None for a kind that has none."""
    from jupyter_ydoc import ydocs
    from pycrdt import Doc

    if kind not in ydocs:
        return None
    doc: Doc[Any] = Doc()
    document = ydocs[kind](doc)
    for update in updates:
        doc.apply_update(update)
    content = document.source
    if isinstance(content, str):
        return content
    if kind != "notebook":  # an image, which nobody types into
        return None
    import nbformat

    notebook = nbformat.from_dict(content)  # type: ignore[no-untyped-call]
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"  # type: ignore[no-untyped-call]


def replace(path: Path, text: str) -> None:
    """Replace a file by a new one with this text, whole or not at all."""
    aside = path.with_name(f".{path.name}.unwritten")
    aside.write_text(text, encoding="utf-8")
    aside.chmod(path.stat().st_mode & 0o777)
    with aside.open("rb") as written:
        os.fsync(written.fileno())
    aside.replace(path)


if __name__ == "__main__":
    # nbformat's validator brings a grammar along, only to check addresses, which takes it 3 s of
    # CPU to build: four times as long as all else here, at the end of a lease.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    sys.exit(main(*sys.argv[1:]))
