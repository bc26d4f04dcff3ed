"""The data folder: nobody but its owner reads what is in it."""

import stat
from pathlib import Path

from standalone.data_directory import DataDirectory


def test_what_lies_in_an_open_folder_is_closed_and_the_folder_stays_as_it_is(
    tmp_path: Path,
) -> None:
    data = DataDirectory(tmp_path / "chosen")
    data.logs.mkdir(parents=True)
    others = [data.database, data.path / "trainyard.db-wal"]
    for file in others:
        file.touch()
    for path in (data.path, data.logs):
        path.chmod(0o755)
    for file in others:
        file.chmod(0o644)
    data.create()
    assert stat.S_IMODE(data.path.stat().st_mode) == 0o755
    open_to_others = [p for p in data.path.iterdir() if p.stat().st_mode & 0o077]
    assert open_to_others == []
    assert {p.name for p in data.path.iterdir()} >= {"trainyard.db", "logs", "store", "node"}
