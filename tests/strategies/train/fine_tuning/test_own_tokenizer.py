"""Tokenizers that `trainyard tokenizers train` makes: always the same, and saved with models."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from transformers import AutoModelForCausalLM, AutoTokenizer

from strategies.train.data.batches import open_windows
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import make_run_plan, make_spec
from trainyard import bpe_program

TEXT = "the cat sat on the mat; the hat sat on the cat. "
SIZE = 280


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rows = [{"text": TEXT}, {"prompt": "the mat", "completion": " is flat"}, {"text": "Grüße"}]
    rows += [{"text": TEXT[number:]} for number in range(40)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def made(lines: Path, folder: Path, *, threads: int) -> Path:
    """Train in a process of its own, as a job does."""
    folder.mkdir()
    environment = {
        **os.environ,
        "TRAINYARD_OUTPUT": str(folder),
        "RAYON_NUM_THREADS": str(threads),
        "PYTHONHASHSEED": str(threads),
    }
    command = [sys.executable, str(bpe_program.__file__), str(lines), str(SIZE)]
    subprocess.run(command, check=True, env=environment)
    return folder


def test_the_same_text_gives_the_same_tokenizer(lines: Path, tmp_path: Path) -> None:
    one = made(lines, tmp_path / "one", threads=1)
    two = made(lines, tmp_path / "two", threads=4)
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()
    theirs = AutoTokenizer.from_pretrained(one)
    assert len(theirs) == SIZE
    assert len(theirs(TEXT)["input_ids"]) < len(TEXT) / 2
    unseen = "€ naïve\n\tbytes"
    assert theirs.decode(theirs(unseen)["input_ids"]) == unseen
    assert theirs.eos_token == bpe_program.END


def test_compressed_files_have_the_texts_of_plain_ones(lines: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (lines / "more.txt").write_text(TEXT * 30)
    content = (lines / "data.jsonl").read_bytes()
    (packed / "data.jsonl.gz").write_bytes(gzip.compress(content))
    (packed / "more.txt.zst").write_bytes(zstandard.compress((TEXT * 30).encode()))
    found = list(bpe_program.texts(packed))
    assert found == list(bpe_program.texts(lines))
    assert len(found) > 40


@pytest.mark.gloo
def test_a_model_is_pretrained_with_it_and_saved_with_it(
    lines: Path, pool: Pool, tmp_path: Path
) -> None:
    tokenizer = made(lines, tmp_path / "tokenizer", threads=2)
    spec = make_spec(
        model={"name": "llama", "layers": 1, "width": 32, "heads": 2, "kv_heads": 1},
        data__tokenizer="huggingface",
        data__tokenizer_name="mine",
        data__vocabulary_size=SIZE,
        data__sequence_length=8,
        training__steps=5,
    )
    run_plan = make_run_plan(
        spec,
        tokenizer_path=str(tokenizer),
        dataset_path=str(lines / "data.jsonl"),
        dataset_format="jsonl",
    )
    run = pool.train(run_plan, tmp_path / "run")
    folder = run.directory.artifacts
    text = AutoTokenizer.from_pretrained(folder)
    again = AutoTokenizer.from_pretrained(tokenizer)
    assert text(TEXT)["input_ids"] == again(TEXT)["input_ids"]
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == SIZE

    tuned = spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"tokenizer_name": None}),
            "model": spec.model.model_copy(update={"checkpoint": "pretrained"}),
        }
    )
    windows = open_windows(
        make_run_plan(
            tuned,
            model_path=str(folder),
            dataset_path=str(lines / "data.jsonl"),
            dataset_format="jsonl",
        ),
        tmp_path,
    )
    same = open_windows(run_plan, tmp_path / "cache")
    assert (windows.tokens[:50] == same.tokens[:50]).all()  # type: ignore[attr-defined]
