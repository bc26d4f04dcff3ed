"""Fixtures of the tests of datasets."""

import os
from pathlib import Path

import pytest

from strategies.plan.data import indexing


class Counted:
    """Stands for a process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self, _timeout_s: float | None = None) -> int:
        return self.code

    def kill(self) -> None:
        pass


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process count the documents of an index, one part after another.

    A process for each part takes a second.
    """

    def count(folder: Path, part: int) -> Counted:
        return Counted(indexing.count(folder, part))

    monkeypatch.setattr(indexing, "_start", count)
    monkeypatch.setattr(os, "getppid", os.getpid)
