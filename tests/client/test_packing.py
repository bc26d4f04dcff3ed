"""Packing a folder: git's ignore rules, the same hash everywhere, and what is left out is said."""

import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from core.code_archive import check
from trainyard.errors import BadInput
from trainyard.ignoring import is_ignored, patterns_of
from trainyard.packing import pack

PATTERNS = """
# results
*.log
!keep.log
/data
build/
docs/**/*.png
**/cache
notes?.txt
[ab].csv
deep/er/
"""
PATHS = [
    "a.log", "keep.log", "sub/b.log", "data/x", "sub/data/x", "build/x", "sub/build/x", "builds",
    "docs/a.png", "docs/b/c.png", "a.png", "cache/x", "sub/cache/x", "notes1.txt", "notes12.txt",
    "a.csv", "c.csv", "deep/er/x", "train.py",
]  # fmt: skip


def ignored_by_ours(path: str) -> bool:
    patterns = patterns_of(PATTERNS, "")
    parts = path.split("/")
    above = ["/".join(parts[:number]) for number in range(1, len(parts))]
    return any(is_ignored(patterns, folder, is_folder=True) for folder in above) or is_ignored(
        patterns, path, is_folder=False
    )


def test_patterns_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(PATTERNS)
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    answer = subprocess.run(
        ["git", "check-ignore", *PATHS], cwd=tmp_path, capture_output=True, text=True
    )
    assert {path for path in PATHS if ignored_by_ours(path)} == set(answer.stdout.split())
    kept = {path for path in pack(tmp_path).paths if path != ".gitignore"}
    assert kept == set(PATHS) - set(answer.stdout.split())


def fill(folder: Path) -> None:
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "lib" / "net.py").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".env").write_text("TOKEN=1")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").touch()


def test_the_hash_depends_on_the_files_alone_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "one")
    fill(tmp_path / "two" / "elsewhere")
    packed = pack(tmp_path / "one")
    assert packed.sha256 == pack(tmp_path / "two" / "elsewhere").sha256
    assert packed.paths == ("lib/net.py", "run.sh", "train.py")
    assert [path for path, _ in packed.left_out] == [".env", "env", "link"]
    assert check(io.BytesIO(packed.content)).paths == list(packed.paths)
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    assert modes == {"lib/net.py": 0o644, "run.sh": 0o755, "train.py": 0o644}
    (tmp_path / "one" / "train.py").write_text("print('other')\n")
    assert pack(tmp_path / "one").sha256 != packed.sha256


def test_too_much_names_the_largest(tmp_path: Path) -> None:
    (tmp_path / "small.py").touch()
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(60 << 20)
    with pytest.raises(BadInput, match=r"weights\.bin \(60\.0 MiB\)"):
        pack(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no file"):
        pack(tmp_path / "empty")
