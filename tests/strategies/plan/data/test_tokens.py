"""Tokenizers, and the tokens that are kept on disk."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.data.corpus import KEPT, open_corpus
from strategies.plan.data.reading import PIECE_BYTES
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Bytes, Characters
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import DataSpec
from strategies.train.data.batches import open_windows
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, REPOSITORY, make_run_plan, make_spec

SHAKESPEARE = REPOSITORY.parent / "shared/data/tinyshakespeare.txt"
needs_shakespeare = pytest.mark.skipif(
    not SHAKESPEARE.exists(), reason="tinyshakespeare.txt does not come with the repository"
)


def characters(**changes: Any) -> DataSpec:
    fields = {"dataset": "text", "tokenizer": "characters", "sequence_length": 16, **changes}
    return DataSpec.model_validate({"vocabulary_size": 1000, **fields})


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_what_is_encoded_can_be_decoded(text: str) -> None:
    for tokenizer in (Bytes(), Characters(text)):
        tokens = tokenizer.encode(text)
        again = tokenizer_from(tokenizer.stored())
        assert again.size == tokenizer.size > int(tokens.max())
        assert again.decode(tokens.tolist()) == text


def test_characters_are_numbered_in_order_and_unknown_ones_left_out() -> None:
    tokenizer = Characters("hello world")
    assert tokenizer.alphabet == " dehlorw"
    assert tokenizer.size == 8
    assert tokenizer.encode("world, WORLD €").tolist() == [7, 5, 6, 4, 1, 0, 0]


@pytest.mark.parametrize(("size", "dtype"), [(2, "uint8"), (256, "uint8"), (257, "uint16")])
def test_tokens_are_as_small_as_the_alphabet_allows(size: int, dtype: str) -> None:
    tokenizer = Characters("".join(map(chr, range(1000, 1000 + size))))
    assert tokenizer.encode(chr(999 + size)).dtype == dtype
    assert tokenizer.encode(chr(999 + size)).tolist() == [size - 1]


def test_half_a_surrogate_pair_can_be_trained_on_and_written_down(tmp_path: Path) -> None:
    path = tmp_path / "surrogates.jsonl"
    path.write_text('{"text": "ab\\ud800"}\n{"text": "cd"}\n')
    for tokenizer in ("bytes", "characters"):
        spec = characters(tokenizer=tokenizer, vocabulary_size=None)
        corpus = open_corpus(path, "jsonl", spec, tmp_path)
        corpus.tokenizer.decode(corpus.tokens.tolist()).encode()


def test_a_character_across_two_pieces_is_one(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("x" * (PIECE_BYTES - 1) + "€" + "yz")
    corpus = open_corpus(path, "text", characters(), tmp_path)
    assert len(corpus.tokens) == PIECE_BYTES + 2
    assert corpus.tokenizer.decode(corpus.tokens[-5:].tolist()) == "xx€yz"
    with path.open("ab") as file:
        file.write(b"\xe2\x82")
    with pytest.raises(Exception, match=rf"byte {PIECE_BYTES + 4:,} of {PIECE_BYTES + 6:,}"):
        open_corpus(path, "text", characters(), tmp_path)


def test_tokens_are_written_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "text", tmp_path / "cache"
    path.write_text("to be, or not to be" * 9)
    first = open_corpus(path, "text", characters(), cache)
    (kept,) = (folder for folder in (cache / "tokens").iterdir() if folder.is_dir())
    written = (kept / "tokens").stat().st_mtime_ns
    assert isinstance(first.tokens, np.memmap)
    open_corpus(path, "text", characters(), cache)
    assert (kept / "tokens").stat().st_mtime_ns == written
    path.write_text("that is the question" * 9)
    again = open_corpus(path, "text", characters(), cache)
    assert again.tokenizer.decode(again.tokens[:20].tolist()) == "that is the question"
    assert first.tokenizer.decode(first.tokens[:5].tolist()) == "to be"  # still mapped


def test_the_cache_keeps_the_datasets_used_last(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        path = tmp_path / f"text {number}"
        path.write_text(f"number {number} " * 20)
        open_corpus(path, "text", characters(), tmp_path / "cache")
        open_corpus(tmp_path / "text 0", "text", characters(), tmp_path / "cache")
    folders = [folder for folder in (tmp_path / "cache/tokens").iterdir() if folder.is_dir()]
    assert len(folders) == KEPT


def test_what_a_killed_builder_left_behind_does_no_harm(tmp_path: Path) -> None:
    path, cache = tmp_path / "text", tmp_path / "cache"
    path.write_text("to be, or not to be" * 9)
    open_corpus(path, "text", characters(), cache)
    (kept,) = (folder for folder in (cache / "tokens").iterdir() if folder.is_dir())
    kept.rename(kept.with_name(f"{kept.name}.tmp"))
    (cache / "tokens" / f"{kept.name}.tmp/tokens").write_bytes(b"half")
    assert len(open_corpus(path, "text", characters(), cache).tokens) == 19 * 9


def test_ranks_that_come_together_build_once(tmp_path: Path) -> None:
    path, cache = tmp_path / "text.jsonl", tmp_path / "cache"
    path.write_text("".join(json.dumps({"text": f"number {n}"}) + "\n" for n in range(5000)))
    found: list[int] = []

    def open_it() -> None:
        spec = characters(tokenizer="bytes", vocabulary_size=None)
        found.append(len(open_corpus(path, "jsonl", spec, cache).tokens))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert sorted(os.listdir(cache / "tokens"))[-1] == "lock"
    assert len(os.listdir(cache / "tokens")) == 2


def planned(**changes: Any) -> Plan:
    return plan(make_spec(**changes), nodes=1, ranks_per_node=2, hardware=HARDWARE)


def test_a_plan_must_be_told_how_many_characters_there_are() -> None:
    (problem,) = planned(data__tokenizer="characters", parallelism={"strategy": "ddp"}).problems
    assert (problem.code, problem.param) == ("vocabulary_missing", "data.vocabulary_size")
    (problem,) = planned(data__vocabulary_size=300, parallelism={"strategy": "ddp"}).problems
    assert problem.message == "tokenizer bytes has a vocabulary of 256, not 300; leave it out"


def test_the_vocabulary_counts_in_parameters_and_tensor_degrees() -> None:
    shakespeare = {"data__tokenizer": "characters", "parallelism": {"strategy": "tensor"}}
    (problem,) = planned(data__vocabulary_size=65, **shakespeare).problems
    assert "vocabulary 65 cannot be split in 2" in problem.message
    padded, plain = planned(data__vocabulary_size=66, **shakespeare), planned()
    assert padded.runnable
    assert plain.parameters - padded.parameters == 2 * 64 * (256 - 66)


@needs_shakespeare
def test_shakespeare_has_65_characters_and_nanogpts_split(tmp_path: Path) -> None:
    """nanoGPT's prepare.py for the same file: 1,003,854 tokens to train on, 111,540 held out."""
    spec = make_spec(
        data__tokenizer="characters",
        data__vocabulary_size=65,
        data__held_out=0.1,
        data__sequence_length=64,
    )
    windows = open_windows(make_run_plan(spec, dataset_path=str(SHAKESPEARE)), tmp_path)
    assert windows.tokenizer.size == 65
    assert len(windows.tokens) == 1_115_394
    first, _ = windows.bounds(np.array([windows.num_train]))
    assert first.tolist() == [1_003_854]
    assert len(windows.tokens) - int(first[0]) == 111_540
    assert windows.tokenizer.decode(windows.tokens[:14].tolist()) == "First Citizen:"


@pytest.mark.gloo
def test_a_run_on_characters_learns_and_writes_in_them(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("Größe zählt nicht, — ¿verdad? " * 200)
    spec = make_spec(
        data__tokenizer="characters",
        data__vocabulary_size=24,
        training__steps=12,
        model__layers=1,
        parallelism={"strategy": "tensor"},
    )
    fields = {"dataset_path": str(path), "prompt": "Größe x", "sample_bytes": 20}
    run = pool.train(make_run_plan(spec, ranks=2, **fields), tmp_path / "run")
    losses = run.series("loss")
    assert losses[0] == pytest.approx(np.log(24), rel=0.1)
    assert losses[-1] < losses[0]
    sample = (run.directory.artifacts / "sample.txt").read_text()
    assert sample.startswith("Größe ")
    assert set(sample) <= set(path.read_text())
    assert len(sample) == 6 + 20
