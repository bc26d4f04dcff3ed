"""Archives of code that could wear out whoever looks into one."""

import io
import struct
import time
import tracemalloc
import zipfile

import pytest

from core.spec.code_archive import BadArchive, check
from core.spec.script import MAX_FILES

ENTRY = struct.Struct("<4s6H3L5H2L")


def directory_of(count: int, *, name_bytes: int = 8) -> bytes:
    """An archive that is nothing but a directory of `count` empty files."""
    entries = b"".join(
        ENTRY.pack(b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, name_bytes, 0, 0, 0, 0, 0, 0)
        + f"{number:0{name_bytes}d}".encode()
        for number in range(count)
    )
    counted = min(count, 0xFFFF)
    return entries + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, counted, counted, len(entries), 0, 0
    )


def test_a_directory_of_very_many_entries_is_refused_before_it_is_read() -> None:
    """Opened by `zipfile`, the first takes two seconds and 150 MiB."""
    for archive, why in (
        (directory_of(240_000), "its directory has 12,960,000 bytes"),
        (directory_of(2 * MAX_FILES + 1), "more than 10,000 entries"),
        (directory_of(150, name_bytes=60_000), "its directory has 9,006,900 bytes"),
    ):
        tracemalloc.start()
        began = time.process_time()
        with pytest.raises(BadArchive, match=why):
            check(io.BytesIO(archive))
        used_s, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 << 20
        assert used_s < 1.0


def test_as_many_files_as_are_documented_are_taken_and_not_one_more() -> None:
    assert len(check(io.BytesIO(directory_of(MAX_FILES))).paths) == MAX_FILES
    with pytest.raises(BadArchive, match="5,001 files; the limit is 5,000"):
        check(io.BytesIO(directory_of(MAX_FILES + 1)))


def test_an_archive_with_a_comment_is_taken_and_a_damaged_end_is_not() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("train.py", "print()")
        archive.comment = b"as some hosts write it"
    assert check(content).paths == ["train.py"]
    for wrong in (content.getvalue()[:-40], b"", b"PK\x05\x06", content.getvalue()[60:]):
        with pytest.raises(BadArchive, match="not a zip archive"):
            check(io.BytesIO(wrong))
