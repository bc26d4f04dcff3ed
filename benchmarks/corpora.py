"""`python -m benchmarks.corpora --gigabytes 20`: the way from a large corpus to its first batch.

Shards of JSON lines are written, 300 MB each, dropped from the page cache, and opened as a run
opens them: twice, and by a run that is resumed on another node at the middle of the steps. With
--whole, in the order `global`, they are also turned into tokens whole, as a small dataset is. The
batches of all must be the same. Several sizes share their shards, and with --unique those behind so
many GB are links to the earlier ones: the files are as large and as many, only their content comes
again.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from strategies.plan.run_directory import RunPlan
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.data.sampling import Mark
from tests.strategies.support.training_runs import make_run_plan, make_spec

SHARD_BYTES = 300_000_000
BATCH, LENGTH, STEPS, VOCABULARY = 32, 1024, 20, 8192
MIB = 1 << 20


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--gigabytes", type=float, nargs="+", default=[10.0])
    arguments.add_argument("--tokenizer", choices=("bytes", "huggingface"), default="bytes")
    arguments.add_argument("--order", choices=("auto", "global", "streamed"), default="auto")
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--unique", type=float, help="GB that are written; others are links")
    arguments.add_argument("--whole", action="store_true", help="tokens of everything, too")
    asked = arguments.parse_args()
    unique = min(max(asked.gigabytes), asked.unique or max(asked.gigabytes))
    with tempfile.TemporaryDirectory() as name:
        text = random_text()
        shards = write_shards(Path(name, "unique"), text, int(unique * 1e9))
        for gigabytes in asked.gigabytes:
            folder = Path(name, f"{gigabytes:g} GB")
            size = link_shards(folder / "shards", shards, int(gigabytes * 1e9))
            sys.stdout.write(
                f"{size / 1e9:.1f} GB, tokenizer {asked.tokenizer}, order {asked.order}, load "
                f"{os.getloadavg()[0]:.1f}\n"
            )
            write_tokenizer(folder / "tokenizer", text[:2_000_000])
            run_plan = plan_of(folder, asked.tokenizer, asked.order)
            compare(run_plan, folder, asked.steps, whole=asked.whole)


def compare(run_plan: RunPlan, folder: Path, num_steps: int, *, whole: bool) -> None:
    """Print the ways to the first batch of one corpus, whose batches must be the same."""
    steps = range(num_steps)
    first, mark = measured(run_plan, folder / "cache", "first run", steps)
    again, _ = measured(run_plan, folder / "cache", "second run", steps)
    assert again == first, "the batches differ"
    if whole:
        large = run_plan.model_copy(update={"whole_tokens_gib": 1e9})
        assert measured(large, folder / "whole", "whole", steps)[0] == first, "the batches differ"
    if mark is not None:
        rest = steps[num_steps // 2 :]
        resumed, _ = measured(run_plan, folder / "other", "resumed elsewhere", rest, mark)
        assert resumed == first[rest.start :], "the batches differ"


def plan_of(folder: Path, tokenizer: str, order: str) -> RunPlan:
    """Return a run on one rank, of which only the data are used."""
    spec = make_spec(
        data__sequence_length=LENGTH,
        data__tokenizer=tokenizer,
        data__tokenizer_name=None if tokenizer == "bytes" else "mine",
        data__packing=True,
        data__sampling=order,
        training__global_batch_size=BATCH,
        data__vocabulary_size=None if tokenizer == "bytes" else VOCABULARY,
    )
    return make_run_plan(
        spec,
        dataset_path=str(folder / "shards"),
        dataset_format="jsonl",
        tokenizer_path=str(folder / "tokenizer"),
        whole_tokens_gib=0,
    )


def measured(
    run_plan: RunPlan, cache: Path, name: str, steps: range, mark: Mark | None = None
) -> tuple[list[bytes], Mark | None]:
    """Print one way to the first batch and what it took; return a digest of each batch, and what a
    checkpoint in the middle of the steps would tell of their place."""
    found, middle = [], None
    with Memory() as memory:
        began = time.perf_counter()
        windows = open_windows(run_plan, cache)
        opened_s = time.perf_counter() - began
        data = TrainingData(windows, run_plan, batch_rank=0, device=torch.device("cpu"))
        data.begin_at(mark or Mark())
        for step in steps:
            if step == steps.start + 1:
                first_s, began_rest = time.perf_counter() - began, time.perf_counter()
            digest = hashlib.sha256()
            for batch in data.step(step * BATCH)[0]:
                digest.update(batch.inputs_BT.numpy().tobytes())
                digest.update(batch.labels_BT.numpy().tobytes())
            found.append(digest.digest())
            if step == len(steps) // 2:
                middle = data.mark(step * BATCH)
        step_s = (time.perf_counter() - began_rest) / (len(steps) - 1)
    on_disk = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    sys.stdout.write(
        f"{name}: opened after {opened_s:.1f} s, first batch after {first_s:.1f} s, then "
        f"{BATCH * LENGTH / step_s / 1e6:.2f} million tokens/s in {len(steps):,} steps; at most "
        f"{memory.most_mib:.0f} MiB of memory in {memory.most_processes} processes; "
        f"{on_disk / 1e6:.1f} MB on disk\n"
    )
    sys.stdout.flush()
    return found, middle


class Memory:
    """Most memory that this process and its children have had for themselves at a time."""

    def __init__(self) -> None:
        self.most_mib, self.most_processes = 0.0, 0
        self.over = threading.Event()

    def __enter__(self) -> "Memory":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self.over.wait(0.2):
            private = 0
            processes = [own, *own.children(recursive=True)]
            for process in processes:
                try:
                    private += process.memory_full_info().uss
                except psutil.Error:
                    continue
            self.most_mib = max(self.most_mib, private / MIB)
            self.most_processes = max(self.most_processes, len(processes))


def random_text() -> str:
    """Return a text of 26 MB, of words of two to nine letters."""
    chosen, letters = random.Random(0), "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(chosen.choices(letters, k=chosen.randint(2, 9))) for _ in range(20_000)]
    return " ".join(chosen.choices(words, k=4_000_000))


def write_tokenizer(folder: Path, text: str) -> None:
    """Write a byte-level BPE, learned from a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text], trainer)
    theirs: Any = PreTrainedTokenizerFast  # its constructor has no types
    theirs(tokenizer_object=bpe, eos_token="</s>").save_pretrained(folder)


def write_shards(folder: Path, text: str, size: int) -> list[Path]:
    """Write documents of 1,000 to 30,000 characters of a text; return the files."""
    folder.mkdir()
    chosen, written, paths = random.Random(1), 0, list[Path]()
    while written < size:
        path = folder / f"{len(paths):05}.jsonl"
        with path.open("w") as file:
            while file.tell() < min(SHARD_BYTES, size - written):
                at = chosen.randrange(len(text) - 30_000)
                length = int(1000 * chosen.paretovariate(1.5))
                file.write(json.dumps({"text": text[at : at + min(length, 30_000)]}) + "\n")
            written += file.tell()
        paths.append(path)
    return paths


def link_shards(folder: Path, shards: Sequence[Path], size: int) -> int:
    """Make a corpus of links to shards, whose pages are dropped; return the number of bytes."""
    folder.mkdir(parents=True)
    for path in shards:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = number = 0
    while written < size:
        path = folder / f"{number:05}.jsonl"
        path.hardlink_to(shards[number % len(shards)])
        written, number = written + path.stat().st_size, number + 1
    return written


if __name__ == "__main__":
    main()
