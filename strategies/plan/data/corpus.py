"""Dataset as one long row of token numbers on disk, read through a memory map.

A text whose bytes are its tokens is mapped as it is. Any other dataset is converted to tokens once
per node, by the first rank to arrive while the others wait for its lock, and kept in the cache
folder for later runs. Torch-free.
"""

import array
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategies.plan.built_in.datasets import DatasetFormat as Format
from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.joined import joined
from strategies.plan.data.reading import BadData, pieces_of_text, rows, shards_of, whole_lines
from strategies.plan.data.rows import Row, Text, WrongRow
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Alphabet, Bytes, Flags, Tokenizer, Tokens
from strategies.plan.hugging_face.hf_config import TOKENIZER_FILES
from strategies.plan.spec import DataSpec
from strategies.plan.words import counted

Integers = npt.NDArray[np.int64]

CACHE_FORMAT = 1
KEPT = 8  # datasets whose tokens stay in the cache: the most recently used ones


@dataclass(frozen=True)
class Corpus:
    """All tokens, one document after the other."""

    tokens: Tokens
    ends: Integers | None  # end of each document; None: the dataset is one text
    tokenizer: Tokenizer
    learned: Flags | None = None  # which tokens may be labels; None: all


def open_corpus(
    path: Path, format: Format, spec: DataSpec, cache_dir: Path, checkpoint: Path | None = None
) -> Corpus:
    """Return the tokens of a dataset. Raises BadData, with the numbers, if they do not fit the
    spec.

    `path` is a file, or a folder of shards: they are one dataset, in the order of their paths.
    `checkpoint` is the folder of the model whose tokenizer is requested.
    """
    shards = shards_of(path)
    if format == "text" and spec.tokenizer == "bytes":
        return Corpus(joined([np.memmap(file, np.uint8, "r") for file in shards]), None, Bytes())
    with locked(cache_dir / "tokens") as folder:
        kept = folder / signature(shards, format, spec.tokenizer, checkpoint)
        if not kept.exists():
            aside = folder / f"{kept.name}.tmp"
            shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed
            aside.mkdir()
            write_tokens(aside, shards, format, spec, checkpoint)
            aside.rename(kept)
        os.utime(kept)
        forget_oldest(folder)
        corpus = read_tokens(kept, format)
    found, told = corpus.tokenizer.size, spec.vocabulary_size
    if told is not None and found > told:
        counted = "different characters" if spec.tokenizer == "characters" else "possible tokens"
        raise BadData(
            f"dataset {spec.dataset} has {found:,} {counted}, but "
            f"data.vocabulary_size is {told:,}; make it {found:,} or more"
        )
    return corpus


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Lock a folder for one process at a time; the lock of a killed process is released."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def signature(
    shards: Sequence[Path], format: Format, tokenizer: str, checkpoint: Path | None
) -> str:
    """Return a name for a dataset's tokens, different for every version of it and its tokenizer."""
    told: list[object] = [CACHE_FORMAT, format, tokenizer]
    paths = [*shards]
    if tokenizer == "huggingface" and checkpoint is not None:
        paths += [checkpoint / name for name in TOKENIZER_FILES if (checkpoint / name).exists()]
    for each in paths:
        file = each.stat()
        told += [str(each.resolve()), file.st_size, file.st_mtime_ns]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def forget_oldest(folder: Path) -> None:
    """Delete all but the most recently used datasets. A process with one open keeps its pages."""
    datasets = [path for path in folder.iterdir() if path.is_dir()]
    datasets.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in datasets[:-KEPT]:
        shutil.rmtree(path)


def write_tokens(
    folder: Path, shards: Sequence[Path], format: Format, spec: DataSpec, checkpoint: Path | None
) -> None:
    """Write a dataset as `tokens` and `tokenizer.json`.

    Documents also get `ends` and, if some tokens are not learned, `learned`.
    """
    tokenizer = tokenizer_for(shards, format, spec, checkpoint)
    (folder / "tokenizer.json").write_text(tokenizer.stored())
    if format == "text":
        write_text(folder, shards, spec, tokenizer)
    else:
        write_documents(folder, rows(shards, format), spec, tokenizer)


def tokenizer_for(
    shards: Sequence[Path], format: Format, spec: DataSpec, checkpoint: Path | None
) -> Tokenizer:
    """Return the tokenizer the spec asks for; one of characters is built from the dataset."""
    if spec.tokenizer == "bytes":
        return Bytes()
    if spec.tokenizer == "huggingface":
        if checkpoint is None:
            raise BadData("data.tokenizer huggingface needs a checkpoint, but the job names none")
        try:
            return HuggingFace.of(checkpoint)
        except ValueError as error:
            raise BadData(f"no tokenizer for dataset {spec.dataset}: {error}") from error
    alphabet = Alphabet()
    if format == "text":
        for text in pieces_of_text(shards):
            alphabet.add(text)
    else:
        for _, row in rows(shards, format):
            alphabet.add("".join(part.text for part in row.parts))
    tokenizer = alphabet.tokenizer()
    if tokenizer.size < 2:
        raise BadData(
            f"dataset {spec.dataset} has {counted(tokenizer.size, 'different character')}; at "
            "least 2 are needed to train on"
        )
    return tokenizer


def write_text(folder: Path, shards: Sequence[Path], spec: DataSpec, tokenizer: Tokenizer) -> None:
    """Write a text as one row of tokens.

    It is encoded in pieces. With a Hugging Face tokenizer, whose tokens are longer than a
    character, pieces end at line ends, and no token spans two pieces.
    """
    pieces = pieces_of_text(shards)
    with (folder / "tokens").open("wb") as file:
        for text in whole_lines(pieces) if spec.tokenizer == "huggingface" else pieces:
            tokenizer.encode(text).tofile(file)


def write_documents(
    folder: Path, documents: Iterator[tuple[str, Row]], spec: DataSpec, tokenizer: Tokenizer
) -> None:
    """Write documents, with their places, one after the other.

    Raises BadData naming the place of one without a learned token.
    """
    ends, end, too_short, all_learned = array.array("q"), 0, 0, True
    with (folder / "tokens").open("wb") as file, (folder / "learned").open("wb") as flags:
        for place, row in documents:
            try:
                tokens, learned = tokenizer.encode_row(row)
            except WrongRow as error:
                raise BadData(f"{place} {error}") from error
            is_text = isinstance(row, Text)
            if not is_text and not learned[1:].any():
                raise BadData(f"{place} has no token to learn, whatever the sequence length")
            # A document of one token has nothing to predict.
            if len(tokens) < 2:
                too_short += 1
                continue
            learned[0] = False  # no token precedes it to predict it from
            tokens.tofile(file)
            learned.tofile(flags)
            end += len(tokens)
            ends.append(end)
            all_learned &= is_text
    if end == 0:
        raise BadData(
            f"dataset {spec.dataset} has no document of at least 2 tokens; {too_short} are shorter"
        )
    if all_learned:
        (folder / "learned").unlink()
    with (folder / "ends").open("wb") as file:
        ends.tofile(file)


def read_tokens(folder: Path, format: Format) -> Corpus:
    """Map the files that `write_tokens` wrote."""
    tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
    dtype = np.min_scalar_type(tokenizer.size - 1)
    learned = folder / "learned"
    return Corpus(
        tokens=np.memmap(folder / "tokens", dtype=dtype, mode="r"),
        ends=None if format == "text" else np.memmap(folder / "ends", dtype=np.int64, mode="r"),
        tokenizer=tokenizer,
        learned=np.memmap(learned, dtype=np.bool_, mode="r") if learned.exists() else None,
    )
