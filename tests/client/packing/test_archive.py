"""Packing a program: the same hash everywhere, nothing private, and what is left out is said."""

import io
import zipfile
from pathlib import Path

import pytest

from core.spec import script
from core.spec.code_archive import check
from trainyard.cli.jobs.scripts import MOST_REMEMBERED, stands_alone
from trainyard.errors import BadInput
from trainyard.packing.archive import MAX_BYTES, MAX_FILES, pack, pack_files
from trainyard.packing.private_files import HIDDEN, KEY, why_private


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


def write(folder: Path, *paths: str, content: str = "") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def test_the_hash_depends_on_the_files_alone_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "one")
    fill(tmp_path / "two" / "elsewhere")
    packed = pack(tmp_path / "one")
    assert packed.sha256 == pack(tmp_path / "two" / "elsewhere").sha256
    assert packed.paths == ("lib/net.py", "run.sh", "train.py")
    assert [path for path, _ in packed.left_out] == [".env", "env/", "link"]
    assert check(io.BytesIO(packed.content)).paths == list(packed.paths)
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    assert modes == {"lib/net.py": 0o644, "run.sh": 0o755, "train.py": 0o644}
    (tmp_path / "one" / "train.py").write_text("print('other')\n")
    assert pack(tmp_path / "one").sha256 != packed.sha256


PRIVATE = [
    ".ssh/id_rsa", ".aws/credentials", ".config/trainyard/config.json", ".netrc", ".bash_history",
    "lib/.env", ".env.local", "id_ed25519", "lib/server.pem", "deploy.key", "credentials.json",
    "client_secret_1.apps.json", "secrets.yaml", "token.json", "kubeconfig", "prod.env",
]  # fmt: skip
NOT_PRIVATE = [
    "train.py", "lib/net.py", "tokenizer.json", "keys.py", "credentials.py", "environment.yaml",
    "monkey", "secrets.py", "keyboard.txt", "vocab.bin",
]  # fmt: skip


def test_hidden_files_and_keys_stay_where_they_are(tmp_path: Path) -> None:
    write(tmp_path, *PRIVATE, *NOT_PRIVATE)
    write(tmp_path, "notes.txt", content="-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    packed = pack(tmp_path)
    assert packed.paths == tuple(sorted(NOT_PRIVATE))
    said = dict(packed.left_out)
    assert {".ssh/", ".aws/", ".config/", ".netrc", "deploy.key", "notes.txt"} <= said.keys()
    assert set(said.values()) == {HIDDEN, KEY}
    assert all(why_private(path) for path in PRIVATE)
    assert not any(why_private(path) for path in NOT_PRIVATE)


def test_what_is_named_goes_along(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "data/x/train.bin", "data/x/.cache", "data/x/a.pem", "out/1.bin")
    write(tmp_path, ".gitignore", content="data/\n*.bin\n")
    write(tmp_path, ".config/net.toml", "keys/a.pem")
    left_out = ("data/", "out/1.bin")
    assert pack(tmp_path).ignored == left_out
    packed = pack(tmp_path, include=["data/x"])
    assert packed.paths == ("data/x/train.bin", "train.py")
    assert packed.ignored == left_out
    packed = pack(tmp_path, include=["./data/", "out/1.bin", ".config", "keys/a.pem"])
    assert packed.paths == (
        *(".config/net.toml", "data/x/train.bin", "keys/a.pem", "out/1.bin", "train.py"),
    )
    assert dict(packed.left_out) == {"data/x/.cache": HIDDEN, "data/x/a.pem": KEY}
    (tmp_path / "away").symlink_to("/etc")
    for wrong in ("nothing", "../x", "/etc/passwd", ".", "away/passwd"):
        with pytest.raises(BadInput, match="--include"):
            pack(tmp_path, include=[wrong])


def test_a_home_folder_and_what_holds_it_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "ada"
    write(home, "train.py", "work/train.py")
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(home)
    for folder in (home, home.parent, tmp_path / "link", Path("/")):
        with pytest.raises(BadInput, match="your home folder or holds it"):
            pack(folder)
    assert pack(home / "work").paths == ("train.py",)
    assert pack_files(home, include=["train.py"]).paths == ("train.py",)


ALONE = [
    ("import os, torch\nprint('hello')", True),
    ("import net", False),
    ("from lib import net", False),
    ("import lib.net as net", False),
    ("open('conf.yaml')", False),
    ("exec(open('./conf.yaml').read())", False),
    ("open('data/x/train.bin')", True),  # nothing of it is here
    ("#!/bin/sh\nif true; then python3; fi", False),
]


def test_a_program_stands_alone_where_it_uses_nothing_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "net.py", "lib/net.py", "conf.yaml", "letter.txt")
    for source, expected in ALONE:
        write(tmp_path, "train.py", content=source)
        assert stands_alone(tmp_path / "train.py") == expected, source
    write(tmp_path, "train.py", content="import sys")
    assert stands_alone(tmp_path / "train.py", ["--lr", "1e-3"])
    assert not stands_alone(tmp_path / "train.py", ["--config", "conf.yaml"])


def test_too_much_names_the_largest_and_as_much_as_may_be_is_packed(tmp_path: Path) -> None:
    write(tmp_path, "small.py")
    beside = len(pack(tmp_path).content) + 30 + 46 + 2 * len("weights.bin")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(MAX_BYTES - beside)
        assert len(pack(tmp_path).content) == MAX_BYTES
        file.truncate(MAX_BYTES - beside + 1)
    with pytest.raises(BadInput, match=r"52,428,801 bytes.*weights\.bin \(50\.0 MiB\)"):
        pack(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no file"):
        pack(tmp_path / "empty")


def test_the_client_knows_the_limits_of_the_server() -> None:
    assert (MAX_BYTES, MAX_FILES, MOST_REMEMBERED) == (
        script.MAX_ARCHIVE_BYTES,
        script.MAX_FILES,
        script.MAX_LEFT_OUT,
    )
