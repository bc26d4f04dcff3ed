"""The built-in dataset is real text, made once."""

import sysconfig
from pathlib import Path

import pytest

from strategies.plan.built_in.stdlib_text import prepare, read_sources


def test_it_is_the_standard_library_written_once(tmp_path: Path) -> None:
    path = prepare(tmp_path / "cache")
    text = path.read_bytes()
    assert len(text) > 3_000_000
    assert b"class Popen:" in text
    assert b"class TaskGroup:" in text  # asyncio
    assert text == read_sources(Path(sysconfig.get_path("stdlib")))
    written = path.stat().st_mtime_ns
    assert prepare(tmp_path / "cache") == path
    assert path.stat().st_mtime_ns == written
    assert list((tmp_path / "cache").iterdir()) == [path]


def test_a_python_without_sources_is_told(tmp_path: Path) -> None:
    (tmp_path / "os.py").write_text("pass")
    with pytest.raises(ValueError, match="only 4 bytes of Python sources"):
        read_sources(tmp_path)
