"""A dataset in shards is the dataset in one file: the same tokens, windows and order."""

import json
import random
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.plan.data.corpus import open_corpus
from strategies.plan.data.joined import JoinedArrays
from strategies.plan.data.reading import BadData
from strategies.plan.data.windows import DocumentWindows, TokenWindows, cut
from strategies.plan.spec import DataSpec

LENGTH = 16


def spec(**changes: Any) -> DataSpec:
    told = {"dataset": "mine", "tokenizer": "bytes", "sequence_length": LENGTH, **changes}
    return DataSpec.model_validate(told)


def documents(count: int, seed: int = 3) -> list[dict[str, str]]:
    chosen = random.Random(seed)
    return [
        {"text": "".join(chosen.choices("abcdé", k=chosen.randint(2, 90)))} for _ in range(count)
    ]


def in_lines(rows: Sequence[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def sharded(folder: Path, contents: Sequence[bytes], ending: str) -> Path:
    for number, content in enumerate(contents):
        path = folder / "train" / f"{number:05}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def same(one: TokenWindows, other: TokenWindows) -> None:
    """Every window, of training and held out, has the same tokens in the same place."""
    assert (one.num_train, one.num_held_out) == (other.num_train, other.num_held_out)
    windows = np.arange(one.num_train + one.num_held_out)
    for starts, lengths in [one.bounds(windows)]:
        found_starts, found_lengths = other.bounds(windows)
        assert np.array_equal(starts, found_starts)
        assert np.array_equal(lengths, found_lengths)
        places = np.minimum(starts[:, None] + np.arange(LENGTH + 1), len(one.tokens) - 1)
        assert np.array_equal(one.tokens[places], other.tokens[places])
    assert np.array_equal(one.num_labels(starts, lengths), other.num_labels(starts, lengths))


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_shards_of_lines_are_one_file_of_lines(
    tmp_path: Path, packing: bool, tokenizer: str
) -> None:
    rows = documents(700)
    whole = tmp_path / "all.jsonl"
    whole.write_bytes(in_lines(rows))
    cuts = [0, 1, 300, 301, 700]
    shards = [in_lines(rows[a:b]) for a, b in pairwise(cuts)]
    folder = sharded(tmp_path / "shards", shards, "jsonl")
    asked = spec(packing=packing, tokenizer=tokenizer)
    one = cut(open_corpus(whole, "jsonl", asked, tmp_path / "one"), asked)
    other = cut(open_corpus(folder, "jsonl", asked, tmp_path / "other"), asked)
    same(one, other)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_shards_of_text_are_one_text(tmp_path: Path, tokenizer: str) -> None:
    text = "".join(row["text"] for row in documents(200))
    parts = [text[:1], text[1:1000], text[1000:1001], text[1001:]]
    (tmp_path / "all.txt").write_text(text)
    folder = sharded(tmp_path / "shards", [part.encode() for part in parts], "txt")
    asked = spec(tokenizer=tokenizer)
    one = cut(open_corpus(tmp_path / "all.txt", "text", asked, tmp_path / "one"), asked)
    other = cut(open_corpus(folder, "text", asked, tmp_path / "other"), asked)
    same(one, other)


@pytest.mark.parametrize("format", ["parquet", "arrow", "stream"])
def test_tables_are_lines(tmp_path: Path, format: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    rows = documents(600)
    (tmp_path / "all.jsonl").write_bytes(in_lines(rows))
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, some in enumerate([rows[:1], rows[1:580], rows[580:]]):
        table = pyarrow.Table.from_pylist([{**row, "id": 7} for row in some])
        path = folder / f"{number}.table"
        if format == "parquet":
            parquet.write_table(table, path, row_group_size=100)
            continue
        new = pyarrow.ipc.new_file if format == "arrow" else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    kind = "parquet" if format == "parquet" else "arrow"
    one = cut(open_corpus(tmp_path / "all.jsonl", "jsonl", spec(), tmp_path / "one"), spec())
    same(one, cut(open_corpus(folder, kind, spec(), tmp_path / "two"), spec()))  # type: ignore[arg-type]
    (folder / "3.table").write_bytes(b"PAR1 not a table")
    with pytest.raises(BadData, match=r"3\.table is not a readable"):
        open_corpus(folder, kind, spec(), tmp_path / "three")  # type: ignore[arg-type]


def test_a_mistake_is_named_by_file_and_place(tmp_path: Path) -> None:
    good = in_lines(documents(3))
    folder = sharded(tmp_path / "a", [good, good + b"nonsense\n"], "jsonl")
    with pytest.raises(BadData, match=r"00001\.jsonl line 4 is not JSON"):
        open_corpus(folder, "jsonl", spec(), tmp_path / "cache")
    folder = sharded(tmp_path / "b", [good, b'{"prompt": "x"}\n'], "jsonl")
    with pytest.raises(BadData, match=r'00001\.jsonl line 1 has no "completion"'):
        open_corpus(folder, "jsonl", spec(), tmp_path / "cache")
    folder = sharded(tmp_path / "c", [b"abc", b"ab\xffc"], "txt")
    with pytest.raises(BadData, match=r"00001\.txt byte 2 of 4 \(0xff\)"):
        open_corpus(folder, "text", spec(tokenizer="characters"), tmp_path / "cache")


def test_windows_of_documents_are_cut_as_by_hand(tmp_path: Path) -> None:
    rows = documents(3000, seed=11)
    path = tmp_path / "all.jsonl"
    path.write_bytes(in_lines(rows))
    found = cut(open_corpus(path, "jsonl", spec(), tmp_path / "cache"), spec())
    assert isinstance(found, DocumentWindows)
    expected, begin = [], 0
    for row in rows:
        size = len(row["text"].encode())
        for at in range(0, size - 1, LENGTH):
            expected.append((begin + at, min(LENGTH + 1, size - at)))
        begin += size
    chosen = np.random.default_rng(0).permutation(len(expected))
    starts, lengths = found.bounds(chosen)
    assert list(zip(starts, lengths, strict=True)) == [expected[n] for n in chosen]
    assert found.num_train + found.num_held_out == len(expected)


def test_joined_arrays_are_read_by_place() -> None:
    arrays = [np.arange(3, dtype=np.uint8), np.arange(0, dtype=np.uint8), np.arange(9, 14)]
    one = JoinedArrays(arrays)
    whole = np.concatenate(arrays)
    places = np.array([[0, 2, 3], [7, 4, 2]])
    assert len(one) == len(whole)
    assert np.array_equal(one[places], whole[places])


def test_many_documents_take_little_memory(tmp_path: Path) -> None:
    rows = in_lines([{"text": "abcdefgh" * 8}] * 4000)
    folder = sharded(tmp_path / "shards", [rows] * 5, "jsonl")  # 20,000 documents, 1.5 MB
    corpus = open_corpus(folder, "jsonl", spec(), tmp_path / "cache")
    tracemalloc.start()
    try:
        windows = cut(corpus, spec())
        windows.bounds(np.arange(256) * 300)
        _, peak = tracemalloc.get_traced_memory()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert windows.num_train + windows.num_held_out == 80_000
    assert kept < 100_000  # a table of all windows would have 1.3 MB
    assert peak < 10_000_000
