"""A large dataset is read by an index, and trains as the same dataset turned into tokens whole."""

import json
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.plan.data import indexing
from strategies.plan.data.corpus import KEPT, Corpus, open_corpus
from strategies.plan.data.document_files import write_documents
from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.indexed import IndexedTokens
from strategies.plan.data.reading import BadData, rows_of
from strategies.plan.data.rows import Text
from strategies.plan.data.tokens import Bytes
from strategies.plan.data.windows import cut
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import DataSpec
from strategies.train.data.batches import TrainingData, open_windows
from tests.strategies.support.hf_models import make_tokenizer
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import WarmRanks, make_run_plan, make_spec

CPU = torch.device("cpu")
LENGTH = 16
Rows = list[dict[str, Any]]


def spec(**changes: Any) -> DataSpec:
    told = {"dataset": "mine", "tokenizer": "bytes", "sequence_length": LENGTH, **changes}
    return DataSpec.model_validate(told)


def texts(count: int, seed: int = 3) -> Rows:
    chosen = random.Random(seed)
    return [
        {"text": "".join(chosen.choices("abcdé \n", k=chosen.randint(0, 90)))} for _ in range(count)
    ]


def prompts(count: int) -> Rows:
    return [
        {"prompt": "what is " * (n % 5), "completion": f"it is {n}" * (1 + n % 4)}
        for n in range(count)
    ]


def sharded(folder: Path, rows: Rows, cuts: Sequence[int]) -> Path:
    folder.mkdir(parents=True)
    for number, (begin, end) in enumerate(pairwise(cuts)):
        lines = "".join(
            json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for row in rows[begin:end]
        )
        (folder / f"{number:05}.jsonl").write_text(lines)
    return folder


def both(folder: Path, cache: Path, **changes: Any) -> tuple[Corpus, Corpus]:
    """The dataset turned into tokens whole, and by an index."""
    asked = spec(**changes)
    whole = open_corpus(folder, "jsonl", asked, cache)
    indexed = open_corpus(folder, "jsonl", asked, cache, whole_bytes=0)
    assert isinstance(whole.tokens, np.memmap)
    assert isinstance(indexed.tokens, IndexedTokens)
    return whole, indexed


@pytest.mark.usefixtures("counted_here")
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
@pytest.mark.parametrize("kind", ["texts", "prompts", "both"])
def test_every_window_is_that_of_the_whole(
    tmp_path: Path, packing: bool, tokenizer: str, kind: str
) -> None:
    rows = {"texts": texts(500), "prompts": prompts(500), "both": texts(320) + prompts(180)}[kind]
    folder = sharded(tmp_path / "shards", rows, [0, 0, 1, 200, 330, 330, 500])
    whole, indexed = both(folder, tmp_path, tokenizer=tokenizer)
    assert np.array_equal(whole.ends, indexed.ends)
    assert (whole.learned is None) == (indexed.learned is None) == (kind == "texts")
    if whole.learned is not None:
        assert np.array_equal(whole.learned, indexed.learned)
    asked = spec(tokenizer=tokenizer, packing=packing)
    one, other = cut(whole, asked), cut(indexed, asked)
    assert (one.num_train, one.num_held_out) == (other.num_train, other.num_held_out)
    starts, lengths = one.bounds(np.arange(one.num_train + one.num_held_out))
    found_starts, found_lengths = other.bounds(np.arange(len(starts)))
    assert np.array_equal(starts, found_starts)
    assert np.array_equal(lengths, found_lengths)
    places = np.minimum(starts[:, None] + np.arange(LENGTH + 1), len(one.tokens) - 1)
    assert np.array_equal(one.tokens[places], other.tokens[places])
    assert one.tokens.dtype == other.tokens.dtype
    assert np.array_equal(one.num_labels(starts, lengths), other.num_labels(starts, lengths))


@pytest.mark.usefixtures("counted_here")
def test_an_index_has_no_tokens_but_those_of_long_documents(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "shards", texts(300), [0, 100, 300])
    path = folder / "00000.jsonl"
    (tmp_path / "aside").mkdir()
    rows = [rows_of(path, "jsonl", "")]
    written = write_documents(tmp_path / "aside", rows, Bytes(), longest_read=50)
    ends = np.fromfile(tmp_path / "aside/ends", np.int64)
    sizes = np.diff(ends, prepend=0)
    places = np.fromfile(tmp_path / "aside/places", np.int64)
    assert np.array_equal(places < 0, sizes > 50)
    assert (tmp_path / "aside/tokens").stat().st_size == sizes[sizes > 50].sum()
    assert written.tokens == ends[-1]
    _, indexed = both(folder, tmp_path / "cache")
    (kept,) = (folder for folder in (tmp_path / "cache/indexes").iterdir() if folder.is_dir())
    on_disk = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file())
    assert indexed.ends is not None
    assert on_disk < 16 * len(indexed.ends) + 400


def plans(folder: Path, **changes: Any) -> tuple[RunPlan, RunPlan]:
    """The same run on whole tokens, and on an index."""
    ranks = changes.pop("ranks", 1)
    if ranks > 1:
        changes["parallelism__strategy"] = "ddp"
    asked = make_spec(data__sequence_length=LENGTH, model__layers=1, **changes)
    fields = {"dataset_path": str(folder), "dataset_format": "jsonl"}
    whole = make_run_plan(asked, ranks=ranks, **fields)
    return whole, whole.model_copy(update={"whole_tokens_gib": 0.0})


@pytest.mark.usefixtures("counted_here")
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_batch_of_two_passes_is_that_of_the_whole(
    tmp_path: Path, ranks: int, packing: bool
) -> None:
    folder = sharded(tmp_path / "shards", texts(90), [0, 40, 41, 90])
    windows = [
        open_windows(run_plan, tmp_path)
        for run_plan in plans(folder, ranks=ranks, data__packing=packing)
    ]
    run_plan, _ = plans(folder, ranks=ranks, data__packing=packing)
    for rank in range(ranks):
        one, other = (TrainingData(w, run_plan, batch_rank=rank, device=CPU) for w in windows)
        for step in range(2 * windows[0].num_train // 8):
            batches, valid_tokens = one.step(8 * step)
            found, valid = other.step(8 * step)
            assert valid == valid_tokens
            for batch, same in zip(batches, found, strict=True):
                assert torch.equal(batch.inputs_BT, same.inputs_BT)
                assert torch.equal(batch.labels_BT, same.labels_BT)
                if batch.documents_BT is not None:
                    assert same.documents_BT is not None
                    assert torch.equal(batch.documents_BT, same.documents_BT)


@pytest.mark.gloo
def test_a_rank_that_has_counted_nothing_waits_for_the_one_that_has(
    warm_process: WarmRanks, tmp_path: Path
) -> None:
    whole, _ = plans(tmp_path, ranks=2)
    _, started = warm_process.start_training(whole, tmp_path / "run", case="meet_late", meet_s=60)
    assert started.wait() == [0, 0]


@pytest.mark.gloo
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_curve_is_that_of_the_whole_and_so_is_a_resumed_one(
    pool: Pool, tmp_path: Path, ranks: int
) -> None:
    folder = sharded(tmp_path / "shards", texts(300), [0, 100, 101, 300])
    whole, indexed = plans(folder, ranks=ranks, training__steps=12)
    curve = pool.train(whole, tmp_path / "whole").series("loss")
    assert len(curve) == 12
    assert pool.train(indexed, tmp_path / "indexed").series("loss") == curve
    first = pool.train(
        plans(folder, ranks=ranks, training__steps=12, checkpoint__every_steps=8)[1],
        tmp_path / "saved",
    )
    (tmp_path / "resumed").mkdir()
    resumed = indexed.model_copy(
        update={"resume_from": str(first.directory.checkpoints / "step-000008")}
    )
    assert pool.train(resumed, tmp_path / "resumed").series("loss") == curve[8:]


@pytest.mark.parametrize("counted", ["here", pytest.param("by processes", marks=pytest.mark.slow)])
def test_a_checkpoints_tokenizer_gives_the_same_tokens(
    tmp_path: Path, request: pytest.FixtureRequest, counted: str
) -> None:
    if counted == "here":
        request.getfixturevalue("counted_here")
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    make_tokenizer(checkpoint)
    rows = texts(60) + prompts(60) + [{"text": "hello world " * 800}]
    folder = sharded(tmp_path / "shards", rows, [0, 50, 121])
    asked = spec(tokenizer="huggingface")
    whole = open_corpus(folder, "jsonl", asked, tmp_path, checkpoint)
    indexed = open_corpus(folder, "jsonl", asked, tmp_path, checkpoint, whole_bytes=0)
    everything = np.arange(len(whole.tokens))
    assert np.array_equal(whole.tokens[everything], indexed.tokens[everything])
    assert np.array_equal(whole.ends, indexed.ends)
    assert np.array_equal(whole.learned, indexed.learned)


def test_the_first_mistake_is_named_whoever_finds_it(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "shards", texts(40), [0, 10, 20, 30, 40])
    for number in (1, 2):
        with (folder / f"{number:05}.jsonl").open("a") as file:
            file.write('{"prompt": "x"}\n')
    with pytest.raises(BadData, match=r'^00001\.jsonl line 11 has no "completion"'):
        open_corpus(folder, "jsonl", spec(), tmp_path, whole_bytes=0)
    empty = sharded(tmp_path / "empty", [{"text": "a"}] * 4, [0, 2, 4])
    with pytest.raises(BadData, match=r"no document of at least 2 tokens; 4 are shorter"):
        open_corpus(empty, "jsonl", spec(), tmp_path, whole_bytes=0)


def test_a_killed_count_goes_on_with_the_shards_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sharded(tmp_path / "shards", texts(40), [0, 20, 40])
    shards = sorted(folder.iterdir())
    aside = tmp_path / "index.tmp"
    aside.mkdir()
    (aside / "tokenizer.json").write_text(Bytes().stored())
    work = indexing.Work(
        spans=indexing.spans_of(shards, "jsonl"),
        shards=shards,
        format="jsonl",
        tokenizer="bytes",
        num_processes=2,
        parent=os.getppid(),
    )
    (aside / indexing.WORK).write_text(work.model_dump_json())
    assert indexing.count(aside, 0) == 0
    counted = (aside / "00000/ends").stat()
    (aside / "00001-1.tmp").mkdir()  # a killed process was here
    orphan = work.model_copy(update={"parent": 1 << 30})
    (aside / indexing.WORK).write_text(orphan.model_dump_json())
    assert indexing.count(aside, 1) == 1
    assert not (aside / "00001").exists()
    told: list[str] = []
    monkeypatch.setattr(indexing, "TELL_EVERY_S", 0.01)
    indexing.write_index(
        aside, shards, "jsonl", dataset="mine", tokenizer="bytes", tell=told.append
    )
    assert told[0] == "counting documents, before the first step: 1 of 2 parts"
    assert (aside / "00000/ends").stat().st_mtime_ns == counted.st_mtime_ns
    whole = open_corpus(folder, "jsonl", spec(), tmp_path)
    assert np.array_equal(np.fromfile(aside / "ends", np.int64), whole.ends)
    monkeypatch.setattr(indexing, "SPAN_BYTES", 500)
    indexing.write_index(
        aside, shards, "jsonl", dataset="mine", tokenizer="bytes", tell=told.append
    )
    assert len(list(aside.glob("[0-9]*"))) > 2
    assert np.array_equal(np.fromfile(aside / "ends", np.int64), whole.ends)


@pytest.mark.usefixtures("counted_here")
def test_a_file_that_changes_under_a_run_ends_it(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "shards", [{"text": "abcdef"}] * 30, [0, 30])
    _, indexed = both(folder, tmp_path)
    (folder / "00000.jsonl").write_text('{"text": "ab"}\n' * 30)
    with pytest.raises(
        BadData, match=r"00000\.jsonl has changed while it was trained on: document 3"
    ):
        indexed.tokens[np.array([12])]


@pytest.mark.usefixtures("counted_here")
def test_parts_of_a_large_file_are_counted_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "SPAN_BYTES", 2000)
    folder = sharded(tmp_path / "shards", texts(400), [0, 350, 360, 400])
    (folder / "00001.jsonl").write_text(json.dumps({"text": "a long line " * 900}) + "\n\n")
    spans = indexing.spans_of(sorted(folder.iterdir()), "jsonl")
    assert len(spans) > 8
    assert [span.shard for span in spans].count(1) == 2  # the long line, and the empty one
    whole, indexed = both(folder, tmp_path)
    everything = np.arange(len(whole.tokens))
    assert np.array_equal(whole.ends, indexed.ends)
    assert np.array_equal(whole.tokens[everything], indexed.tokens[everything])
    lines = (folder / "00000.jsonl").read_text().splitlines(keepends=True)
    for wrong in (3, 200, 349):
        changed = [*lines[:wrong], "nonsense\n", *lines[wrong + 1 :]]
        (folder / "00000.jsonl").write_text("".join(changed))
        with pytest.raises(BadData, match=rf"^00000\.jsonl line {wrong + 1} is not JSON"):
            open_corpus(folder, "jsonl", spec(), tmp_path, whole_bytes=0)


@pytest.mark.usefixtures("counted_here")
def test_a_corpus_may_have_thousands_of_files(tmp_path: Path) -> None:
    folder = tmp_path / ("a folder with a long name " * 6)
    sharded(folder, texts(1200), range(1201))
    whole, indexed = both(folder, tmp_path)
    chosen = np.random.default_rng(1).integers(0, len(whole.tokens), 300)
    assert np.array_equal(whole.tokens[chosen], indexed.tokens[chosen])


@pytest.mark.usefixtures("counted_here")
def test_an_index_in_use_is_not_deleted(tmp_path: Path) -> None:
    def opened(number: int) -> Corpus:
        folder = tmp_path / f"shards {number}"
        if not folder.exists():
            sharded(folder, texts(9, seed=number), [0, 9])
        return open_corpus(folder, "jsonl", spec(), tmp_path, whole_bytes=0)

    in_use = opened(0)
    for number in range(1, KEPT + 2):
        opened(number)
    folders = [folder for folder in (tmp_path / "indexes").iterdir() if folder.is_dir()]
    assert len(folders) == KEPT + 1
    assert len(in_use.tokens[np.arange(len(in_use.tokens))]) == len(in_use.tokens)


@pytest.mark.parametrize("begins", [False, True])
def test_a_text_has_the_tokens_of_its_parts_between_the_marks(tmp_path: Path, begins: bool) -> None:
    theirs = make_tokenizer(tmp_path, begins=begins)
    tokenizer = HuggingFace.of(tmp_path)
    for row in [*texts(40), {"text": ""}, {"text": "</s> and <s>"}]:
        found = tokenizer.encode_row(Text(row["text"]))
        parts = tokenizer.encode_parts(Text(row["text"]).parts)
        first = [theirs.bos_token_id] if begins else []
        assert found.tokens.tolist() == [*first, *parts.tokens, theirs.eos_token_id]
        assert found.tokens.dtype == tokenizer.encode("").dtype
        assert found.learned.tolist() == [*[False] * len(first), *parts.learned, True]
