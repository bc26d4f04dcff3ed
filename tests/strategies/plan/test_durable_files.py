"""Files are replaced whole, and only by those who may read them."""

from pathlib import Path

import pytest

from strategies.plan.durable_files import PRIVATE, write_atomically


def test_a_file_is_replaced_and_nothing_is_left_aside(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_what_cannot_be_put_there_leaves_the_old_file_and_nothing_aside(tmp_path: Path) -> None:
    path = tmp_path / "a folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(path, b"one")
    assert [file.name for file in tmp_path.iterdir()] == ["a folder"]


def test_a_private_file_takes_the_place_of_one_that_all_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    write_atomically(path, b"new", mode=PRIVATE)
    assert path.stat().st_mode & 0o777 == 0o600
