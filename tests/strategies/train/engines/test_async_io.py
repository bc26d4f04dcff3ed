"""What a node must have before it can swap to files, and how a run says what it lacks."""

import resource
from pathlib import Path

import pytest

from strategies.plan.planner import plan
from strategies.plan.run_directory import ExitCode, NotEquipped
from strategies.train.engines import async_io
from strategies.train.engines.async_io import (
    joined,
    missing_packages,
    require,
    writes_directly,
)
from strategies.train.engines.zero import make_swap_folder
from strategies.train.failures import exit_code_of
from tests.strategies.support.training_runs import HARDWARE, make_spec


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, and no Python with programs beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(async_io.sys, "executable", str(tmp_path / "python" / "bin" / "python"))
    monkeypatch.setattr(async_io, "HEADER", tmp_path / "libaio.h")
    monkeypatch.delenv("CXX", raising=False)
    return folder


def add_program(folder: Path, name: str, *, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)


def test_every_missing_package_is_named(programs: Path) -> None:
    assert missing_packages() == ["g++", "ninja-build", "libaio-dev"]
    add_program(programs, "ninja")
    async_io.HEADER.touch()
    assert missing_packages() == ["g++"]
    add_program(programs, "c++", code=1)  # it does not find the library, whatever lies about
    assert missing_packages() == ["libaio-dev"]
    add_program(programs, "c++")
    assert missing_packages() == []


def test_ninja_may_come_with_python(programs: Path) -> None:
    beside_python = Path(async_io.sys.executable).parent
    beside_python.mkdir(parents=True)
    add_program(beside_python, "ninja")
    add_program(programs, "c++")
    assert missing_packages() == []


def test_a_run_that_cannot_swap_says_what_to_install_and_leaves_nothing(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    add_program(programs, "c++", code=1)
    spec = make_spec(parallelism={"strategy": "zero3", "offload_optimizer": "nvme"})
    found = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE)
    assert found.runnable
    assert any("libaio-dev, g++ and ninja-build" in warning for warning in found.warnings)
    with pytest.raises(
        NotEquipped, match=r"lacks ninja-build, libaio-dev .* or take offload_optimizer cpu$"
    ) as raised:
        make_swap_folder(spec, found)
    assert exit_code_of(raised.value) is ExitCode.NOT_EQUIPPED
    assert list(work.iterdir()) == []


def test_without_swapping_nothing_is_asked_of_a_node(programs: Path) -> None:
    spec = make_spec(parallelism={"strategy": "zero3", "offload_optimizer": "cpu"})
    found = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE)
    assert make_swap_folder(spec, found) is None


def test_files_must_be_writable_past_the_page_cache(programs: Path, tmp_path: Path) -> None:
    add_program(programs, "c++")
    add_program(programs, "ninja")
    assert not writes_directly(tmp_path / "missing")
    with pytest.raises(NotEquipped, match=r"does not support .no O_DIRECT.; .* or take the host"):
        require(tmp_path / "missing", locked_bytes=0, instead="take the host")


def test_memory_that_may_not_be_locked_is_told_with_its_limit(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_program(programs, "c++")
    add_program(programs, "ninja")
    monkeypatch.setattr(async_io, "writes_directly", lambda folder: True)
    monkeypatch.setattr(async_io, "CAP_IPC_LOCK", 63)  # not even root's
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8 << 20, 8 << 20))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    with pytest.raises(NotEquipped, match=r"locks 9 MiB .* the limit is 8 MiB; raise it"):
        require(tmp_path, locked_bytes=9 << 20, instead="take the host")
    assert async_io.may_lock(8 << 20)


def test_what_reads_torchs_headers_is_compiled_as_one_file(tmp_path: Path) -> None:
    for name in ("py_lib", "common"):
        (tmp_path / name).mkdir()
    library, into = tmp_path / "py_lib", tmp_path / "joined.cpp"
    (library / "unguarded.h").write_text("struct handle {};\n")
    for number in (1, 2):
        text = f'#include "unguarded.h"\n#include <torch/extension.h>\nint n{number};\n'
        (library / f"{number}.cpp").write_text(text)
    sources = [library / "1.cpp", tmp_path / "common" / "types.cpp", library / "2.cpp"]
    assert joined(sources, into) == [str(sources[1]), str(into)]
    torch = "#include <torch/extension.h>"
    lines = [line for line in into.read_text().splitlines() if line]
    assert lines == ["struct handle {};", torch, "int n1;", torch, "int n2;"]
    before = into.stat().st_mtime_ns
    joined(sources, into)
    assert into.stat().st_mtime_ns == before  # or it would be compiled again
