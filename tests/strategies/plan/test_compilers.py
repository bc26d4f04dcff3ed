"""Compilers: the parts that a node lacks for generated kernels."""

import sysconfig
from pathlib import Path

import pytest

from strategies.plan.compilers import why_no_compiler


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, and a Python with headers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    return tmp_path


def put(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    (folder / name).chmod(0o755)


def test_a_gpu_needs_a_c_compiler_and_a_cpu_one_for_cpp(programs: Path) -> None:
    assert why_no_compiler("cuda") == "a C compiler (gcc)"
    put(programs, "gcc")
    assert why_no_compiler("cuda") == ""
    assert why_no_compiler("cpu") == "a C++ compiler (g++)"
    put(programs, "g++")
    assert why_no_compiler("cpu") == ""


def test_a_named_compiler_counts_instead(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(programs, "gcc")
    monkeypatch.setenv("CC", "missing-cc -O2")
    assert why_no_compiler("cuda") == "a C compiler (gcc)"
    put(programs, "missing-cc")
    assert why_no_compiler("cuda") == ""


def test_headers_of_python_are_needed_on_both(programs: Path) -> None:
    for name in ("gcc", "g++"):
        put(programs, name)
    (programs / "Python.h").unlink()
    for lacks in (why_no_compiler("cuda"), why_no_compiler("cpu")):
        assert "Python.h (Debian: python3-dev of this Python)" in lacks
