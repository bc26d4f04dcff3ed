"""Compressed shards hold what plain ones do, in bounded memory."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.data.compression import (
    BadCompression,
    Compression,
    Unpacking,
    compression_of,
    opened,
)
from strategies.plan.data.corpus import open_corpus
from strategies.plan.data.indexed import IndexedTokens
from strategies.plan.data.reading import BadData
from strategies.plan.spec import DataSpec
from tests.strategies.plan.data.test_indexed import spec, texts

PACK = {"gzip": gzip.compress, "zstd": zstandard.compress}
both = pytest.mark.parametrize("compression", ["gzip", "zstd"])


@given(
    st.lists(st.binary(max_size=3000), max_size=4), st.integers(1, 900), st.sampled_from([*PACK])
)
def test_what_was_packed_is_unpacked_however_it_is_cut(
    members: list[bytes], size: int, compression: Compression
) -> None:
    packed = b"".join(PACK[compression](member) for member in members)
    unpacking = Unpacking(compression)
    found = [
        piece
        for at in range(0, len(packed), size)
        for piece in unpacking.feed(packed[at : at + size])
    ]
    unpacking.finish()
    assert b"".join(found) == b"".join(members)


@both
def test_what_is_damaged_is_told(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "file"
    packed = PACK[compression](b"to be, or not to be " * 90)
    for damaged, why in ((packed[:-3], "it ends early"), (packed + b"rest", "")):
        path.write_bytes(damaged)
        with opened(path) as file, pytest.raises(BadCompression, match=f"is not readable.*{why}"):
            file.read()


def test_text_is_not_taken_for_compressed() -> None:
    for beginning in PACK["gzip"](b""), PACK["zstd"](b""):
        assert compression_of(beginning) is not None
        with pytest.raises(UnicodeDecodeError):
            beginning[:4].decode()
    assert compression_of(b"") is compression_of(b"(text") is None


@both
def test_a_bomb_is_unpacked_in_bounded_pieces(compression: Compression) -> None:
    packed = PACK[compression](b"a" * (128 << 20))
    tracemalloc.start()
    try:
        total = sum(len(piece) for piece in Unpacking(compression).feed(packed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 128 << 20
    assert peak < 100 << 20


@both
@pytest.mark.usefixtures("counted_here")
@pytest.mark.parametrize("whole_bytes", [0, 1 << 30])
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_compressed_lines_train_as_plain_ones(
    tmp_path: Path, compression: Compression, whole_bytes: int, tokenizer: str
) -> None:
    rows = texts(200)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for number, some in enumerate((rows[:90], rows[90:])):
        lines = "".join(json.dumps(row) + "\n" for row in some).encode()
        for folder, content in ((plain, lines), (packed, PACK[compression](lines))):
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.jsonl").write_bytes(content)
    (packed / "1.jsonl").write_bytes((plain / "1.jsonl").read_bytes())  # some may be plain
    asked = spec(tokenizer=tokenizer)
    one = open_corpus(plain, "jsonl", asked, tmp_path)
    other = open_corpus(packed, "jsonl", asked, tmp_path, whole_bytes=whole_bytes)
    assert isinstance(other.tokens, IndexedTokens) == (whole_bytes == 0)
    everything = np.arange(len(one.tokens))
    assert np.array_equal(one.ends, other.ends)
    assert np.array_equal(one.tokens[everything], other.tokens[everything])


def text_spec(tokenizer: str) -> DataSpec:
    return spec(tokenizer=tokenizer, vocabulary_size=None if tokenizer == "bytes" else 99)


@both
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_a_compressed_text_is_the_text(
    tmp_path: Path, compression: Compression, tokenizer: str
) -> None:
    text = "Größe zählt nicht. " * 200
    (tmp_path / "plain").write_text(text)
    (tmp_path / "packed").write_bytes(PACK[compression](text.encode()))
    one, other = (
        open_corpus(tmp_path / name, "text", text_spec(tokenizer), tmp_path / "cache")
        for name in ("plain", "packed")
    )
    assert np.array_equal(one.tokens[np.arange(len(one.tokens))], np.asarray(other.tokens))


@both
def test_a_mistake_in_a_compressed_shard_is_named(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "data"
    path.write_bytes(PACK[compression](b'{"text": "abc"}\n\nnonsense\n'))
    with pytest.raises(BadData, match="line 3 is not JSON"):
        open_corpus(path, "jsonl", spec(), tmp_path / "cache")
    path.write_bytes(PACK[compression](b'{"text": "abc"}\n' * 50)[:-6])
    with pytest.raises(BadData, match=f"the dataset is not readable {compression}"):
        open_corpus(path, "jsonl", spec(), tmp_path / "cache")
    path.write_bytes(PACK[compression](b"ab\xffc"))
    with pytest.raises(BadData, match=r"byte 2 of 4 \(0xff\)"):
        open_corpus(path, "text", text_spec("characters"), tmp_path / "cache")
