"""The node's cache: what is used last stays, and use changes nothing that was made of a file."""

import os
import time
from pathlib import Path

from strategies.plan.data.corpus import open_corpus
from strategies.plan.spec import DataSpec
from worker.node.attempts import NodeFolder
from worker.preparing.cache import touch, trim


def test_tokens_of_a_dataset_are_made_once_however_often_it_is_used(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    entry.write_text('{"text": "to be, or not to be"}\n' * 40)
    spec = DataSpec(dataset="mine", sequence_length=8)
    for whole_bytes in (0, 1 << 20):
        for _ in range(3):
            touch(entry)
            open_corpus(entry, "jsonl", spec, tmp_path, whole_bytes=whole_bytes)
    for kind in ("indexes", "tokens"):
        assert len([path for path in (tmp_path / kind).iterdir() if path.is_dir()]) == 1


def test_what_is_used_last_stays(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.cache.mkdir(parents=True)
    folder.attempts.mkdir()
    day_ago = time.time() - 86_400
    for number, name in enumerate(("used", "old file", "old folder", "used folder")):
        path = folder.cache / name
        if name.endswith("folder"):
            path.mkdir()
            (path / "inside").write_bytes(b"x" * 100)
        else:
            path.write_bytes(b"x" * 100)
        os.utime(path, (day_ago + number, day_ago + number))
    touch(folder.cache / "used")
    touch(folder.cache / "used folder")
    touch(folder.cache / "not there")
    assert (folder.cache / "used").stat().st_mtime == day_ago
    assert trim(folder, 200) == 200
    assert {path.name for path in folder.cache.iterdir()} == {"used", "used folder"}
