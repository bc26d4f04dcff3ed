"""Documents that JupyterLab's server had not written when it was killed are written from its store
of updates."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from worker.workbench import unwritten
from worker.workbench.unwritten import main

if find_spec("jupyter_ydoc") is None or find_spec("pycrdt") is None:
    pytest.skip("jupyter-collaboration is not installed here", allow_module_level=True)

from jupyter_ydoc import YNotebook, YUnicode
from pycrdt import Doc
from pycrdt.store import SQLiteYStore

A_MINUTE_AGO = time.time() - 60
NOTEBOOK: dict[str, Any] = {
    "cells": [
        {"cell_type": "code", "id": "c1", "metadata": {}, "outputs": [], "source": "begun",
         "execution_count": None}
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}  # fmt: skip


class Server:
    """What a killed server leaves: files as they were written last, and its databases."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.store, self.ids = str(folder / "documents.db"), str(folder / "file_ids.db")
        with sqlite3.connect(self.ids) as ids:
            ids.execute("CREATE TABLE Files (id TEXT PRIMARY KEY, path TEXT)")

    def leaves(self, name: str, kind: str, document: Any, content: Any, typed: str) -> Path:
        """Open a document, type at the end of its text, and die before it is written."""
        import nbformat  # takes a second

        path = self.home / name
        written = content if isinstance(content, str) else nbformat.writes(content) + "\n"
        path.write_text(written)
        os.utime(path, (A_MINUTE_AGO, A_MINUTE_AGO))
        with sqlite3.connect(self.ids) as ids:
            ids.execute("INSERT INTO Files VALUES (?, ?)", (f"id-of-{name}", str(path)))
        updates: list[bytes] = []
        watching = document.ydoc.observe(lambda event: updates.append(event.update))
        document.source = content
        text = document.ycells[0]["source"] if kind == "notebook" else document._ysource
        for letter in typed:  # each key is an update
            text += letter
        document.ydoc.unobserve(watching)
        asyncio.run(self._keep(f".{kind}:id-of-{name}.y", updates))
        return path

    async def _keep(self, room: str, updates: list[bytes]) -> None:
        class Store(SQLiteYStore):
            db_path = self.store

        async with Store(room) as store:
            for update in updates:
                await store.write(update)

    def save(self) -> None:
        assert main(str(self.home), self.store, self.ids) == 0


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_what_was_typed_without_a_pause_is_written(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    import nbformat

    notebook = nbformat.from_dict(NOTEBOOK)
    first = server.leaves("a b.ipynb", "notebook", YNotebook(Doc()), notebook, " x = 'ü'")
    second = server.leaves("note.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    server.save()
    read = nbformat.reads(first.read_text(), as_version=4)
    assert read.cells[0].source == "begun x = 'ü'"
    assert read.cells[0].id == "c1"
    assert second.read_text() == "begun\ntwo\n"
    assert capsys.readouterr().out.count("Written after the server's end") == 2
    server.save()
    assert capsys.readouterr().out == ""
    assert sorted(one.name for one in server.home.iterdir()) == ["a b.ipynb", "note.txt"]


def test_a_file_that_was_written_since_or_is_gone_stays_so(server: Server) -> None:
    newer = server.leaves("newer.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    newer.write_text("by another program\n")
    os.utime(newer, (time.time() + 5, time.time() + 5))
    gone = server.leaves("gone.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    gone.unlink()
    server.save()
    assert newer.read_text() == "by another program\n"
    assert not gone.exists()


def test_what_was_typed_while_the_server_wrote_the_file_is_written(server: Server) -> None:
    note = server.leaves("note.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    with sqlite3.connect(server.store) as store:
        [typed_at] = store.execute("SELECT max(timestamp) FROM yupdates").fetchone()
    os.utime(note, (typed_at + 0.1, typed_at + 0.1))
    server.save()
    assert note.read_text() == "begun\ntwo\n"


def test_an_image_beside_it_stops_nothing(server: Server) -> None:
    image = server.leaves("a.png", "file", YUnicode(Doc()), "begun\n", "")
    with sqlite3.connect(server.store) as store:
        store.execute("UPDATE yupdates SET path = replace(path, '.file:', '.blob:')")
    note = server.leaves("note.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    server.save()
    assert (image.read_text(), note.read_text()) == ("begun\n", "begun\ntwo\n")


def test_as_a_program_it_does_without_what_takes_longest_to_import(server: Server) -> None:
    import nbformat

    notebook = nbformat.from_dict(NOTEBOOK)
    path = server.leaves("a.ipynb", "notebook", YNotebook(Doc()), notebook, " more")
    program = [sys.executable, "-X", "importtime", unwritten.__file__]
    done = subprocess.run(
        [*program, str(server.home), server.store, server.ids],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "begun more" in path.read_text()
    assert "lark" not in done.stderr


def test_a_document_that_cannot_be_written_does_not_stop_the_others(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = server.leaves("spoilt.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    spoilt.write_bytes(b"\xff")
    os.utime(spoilt, (A_MINUTE_AGO, A_MINUTE_AGO))
    note = server.leaves("note.txt", "file", YUnicode(Doc()), "begun\n", "two\n")
    assert main(str(server.home), server.store, server.ids) == 1
    assert note.read_text() == "begun\ntwo\n"
    assert str(spoilt) in capsys.readouterr().err


def test_a_server_that_had_opened_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert main(str(tmp_path), str(tmp_path / "none.db"), str(tmp_path / "nothing.db")) == 0
