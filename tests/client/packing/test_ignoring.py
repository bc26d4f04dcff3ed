"""Ignore files mean what they mean to git: the same questions to both."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from trainyard.packing.archive import IGNORED, pack

NAMES = [
    "a",
    "b",
    "ab",
    "foo",
    "a.log",
    "b.txt",
    "x1",
    "[b]",
    "foo*",
    "\u00e9",
    "a b",
    "!n",
    "#h",
    "a b ",
]
GLOBS = [
    "a", "b", "ab", "foo", "*", "*.log", "?", "a*", "[ab]", "[!a]", "[^a]*", "**", "x[[:digit:]]",
    "[[:alpha:]]*", "foo\\*", "\\[b\\]", "[a-f]oo", "[a\\-z]oo", "[]b[]*", "a b", "a\\ b\\ ",
    "b\\", "ab**", "a**b", "*o", "\\!n", "\\#h", "\u00e9", "??", "[a", "x[0-9]", "[[:nope:]]", " a",
    "[-a]", "[a-]oo", "***", "#", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    chosen = random.Random(1)
    for name in ("a", "foo"):
        (folder / name).mkdir()
    for _ in range(150):
        file = folder.joinpath(*(chosen.choice(NAMES) for _ in range(chosen.randint(1, 4))))
        if not any(above.is_file() for above in file.parents):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.is_dir() or file.touch()
    return folder


def by_git(folder: Path) -> set[str]:
    files = [
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
        if not os.path.relpath(root, folder).startswith(".git") and name != ".gitignore"
    ]
    asked = ["git", "-c", "core.excludesFile=", "check-ignore", "--no-index", "-z", "--stdin"]
    answer = subprocess.run(
        asked, cwd=folder, input="\0".join(files), capture_output=True, text=True
    )
    assert answer.returncode in (0, 1), answer.stderr
    return set(files) - set(answer.stdout.split("\0"))


def written(chosen: random.Random) -> str:
    """A random ignore file."""
    lines = []
    for _ in range(chosen.randint(1, 5)):
        line = "/".join(chosen.choice(GLOBS) for _ in range(chosen.choice([1, 1, 1, 2, 2, 3])))
        line = chosen.choice(["", "", "", "!"]) + chosen.choice(["", "", "/"]) + line
        lines.append(line + chosen.choice(["", "", "/", " ", "  ", "\r"]))
    return "\n".join(lines)


def test_generated_ignore_files_leave_out_what_git_ignores(repository: Path) -> None:
    """Also with files of their own in folders below."""
    inner = [folder / ".gitignore" for folder in (repository / "a", repository / "foo")]
    (repository / "kept").touch()
    ignored = 0
    for seed in range(30):
        chosen = random.Random(seed)
        texts = {repository / ".gitignore": written(chosen) + "\n!/kept"}
        texts |= {file: written(chosen) for file in inner if chosen.random() < 0.5}
        for file in inner:
            file.unlink(missing_ok=True)
        for file, text in texts.items():
            file.write_text(text, "utf-8", newline="")
        packed = pack(repository)
        assert set(packed.paths) == by_git(repository), texts
        ignored += len(packed.ignored)
    assert ignored > 50


LINES = [
    "foo\\*", "trailing\\ ", "trailing ", "ab**cd", "a\\[1\\]", "[[:digit:]]", "# note", "\\#h",
    "*.log\n!keep.log", "/data", "build/", "docs/**/*.png", "**/cache", "notes?.txt", "[ab].csv",
    "deep/er/", "dir/*\n!dir/keep/", "*\n!*/\n!*.py", "out/\n!out/keep.txt", "a/**", "x[!1]",
    "\ufeffa", "caf\u00e9", "caf?", "caf??",
]  # fmt: skip
PATHS = [
    "foo*", "foobar", "trailing ", "trailing", "abxcd", "ab", "abx/cd", "a[1]", "a1", "7", "x",
    "# note", "#h", "a.log", "keep.log", "sub/b.log", "data/x", "sub/data/x", "build/x",
    "sub/build/x", "docs/a.png", "docs/b/c.png", "cache/x", "sub/cache/x", "notes1.txt",
    "notes12.txt", "a.csv",
    "deep/er/x", "dir/keep/x", "dir/y", "out/keep.txt", "a/b/c.py", "x1", "x2", "caf\u00e9",
]  # fmt: skip


def test_every_kind_of_line_means_what_it_means_to_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "kept").touch()
    for line in LINES:
        (tmp_path / ".gitignore").write_text(f"{line}\n!kept\n", "utf-8")
        packed = pack(tmp_path)
        assert set(packed.paths) == by_git(tmp_path), line
        assert {why for _, why in packed.left_out} <= {IGNORED}
