"""Dataset as one long row of token numbers on disk, read through a memory map.

A text whose bytes are its tokens is mapped as it is. Any other dataset is converted to tokens once
per node, by the first rank to arrive while the others wait for its lock, and kept in the cache
folder for later runs. Documents of large files are not converted, but counted (`indexing.py`), and
become tokens when they are read (`indexed.py`). Torch-free.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strategies.plan.built_in.datasets import DatasetFormat as Format
from strategies.plan.data.compression import compression_in
from strategies.plan.data.document_files import require_documents, write_documents
from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.indexed import IndexedTokens, is_in_use
from strategies.plan.data.indexing import drop_parts, write_index
from strategies.plan.data.joined import joined
from strategies.plan.data.reading import BadData, pieces_of_text, rows, shards_of, whole_lines
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Alphabet, Bytes, Flags, Integers, Tokenizer, Tokens
from strategies.plan.hugging_face.hf_config import TOKENIZER_FILES
from strategies.plan.spec import DataSpec
from strategies.plan.words import counted

CACHE_FORMAT = 1
KEPT = 8  # datasets whose tokens stay in the cache: the most recently used ones


@dataclass(frozen=True)
class Corpus:
    """All tokens, one document after the other."""

    tokens: Tokens | IndexedTokens
    ends: Integers | None  # end of each document; None: the dataset is one text
    tokenizer: Tokenizer
    learned: Flags | None = None  # which tokens may be labels; None: all


def open_corpus(
    path: Path,
    format: Format,
    spec: DataSpec,
    cache_dir: Path,
    checkpoint: Path | None = None,
    *,
    whole_bytes: int = 4 << 30,
    tell: Callable[[str], None] = lambda _: None,
) -> Corpus:
    """Return the tokens of a dataset. Raises BadData, with the numbers, if they do not fit the
    spec.

    `path` is a file, or a folder of shards: they are one dataset, in the order of their paths.
    `checkpoint` is the folder of the model whose tokenizer is requested. Documents of more than
    `whole_bytes` are only counted; they become tokens when they are read. `tell` hears how far
    that is.
    """
    shards = shards_of(path)
    is_plain = format == "text" and all(compression_in(file) is None for file in shards)
    if is_plain and spec.tokenizer == "bytes":
        return Corpus(joined([np.memmap(file, np.uint8, "r") for file in shards]), None, Bytes())
    is_large = sum(shard.stat().st_size for shard in shards) > whole_bytes
    has_index = format != "text" and is_large
    with locked(cache_dir / ("indexes" if has_index else "tokens")) as folder:
        kept = folder / signature(shards, format, spec.tokenizer, checkpoint)
        if not kept.exists():
            aside = folder / f"{kept.name}.tmp"  # there already if a process was killed
            if not has_index:
                shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(exist_ok=True)
            tokenizer = tokenizer_for(shards, format, spec, checkpoint)
            (aside / "tokenizer.json").write_text(tokenizer.stored())
            if has_index:
                name, kind = spec.dataset, spec.tokenizer
                write_index(aside, shards, format, dataset=name, tokenizer=kind, tell=tell)
            else:
                write_tokens(aside, shards, format, spec, tokenizer)
            aside.rename(kept)
            drop_parts(kept)
        os.utime(kept)
        forget_oldest(folder)
        corpus = read_index(kept, shards) if has_index else read_tokens(kept, format)
    require_vocabulary(corpus.tokenizer, spec)
    return corpus


def require_vocabulary(tokenizer: Tokenizer, spec: DataSpec) -> None:
    """Raise BadData if the tokens do not fit the spec's vocabulary."""
    found, told = tokenizer.size, spec.vocabulary_size
    if told is not None and found > told:
        counted = "different characters" if spec.tokenizer == "characters" else "possible tokens"
        raise BadData(
            f"dataset {spec.dataset} has {found:,} {counted}, but "
            f"data.vocabulary_size is {told:,}; make it {found:,} or more"
        )


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
    """Delete all but the most recently used datasets.

    A process with one open keeps its pages; an index in use is not deleted.
    """
    datasets = [path for path in folder.iterdir() if path.is_dir()]
    datasets.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in datasets[:-KEPT]:
        if not is_in_use(path):
            shutil.rmtree(path)


def write_tokens(
    folder: Path, shards: Sequence[Path], format: Format, spec: DataSpec, tokenizer: Tokenizer
) -> None:
    """Write a dataset as `tokens`; `document_files` tells what documents get besides."""
    if format == "text":
        write_text(folder, shards, spec, tokenizer)
    else:
        written = write_documents(folder, [rows(shards, format)], tokenizer, longest_read=None)
        require_documents(written, spec.dataset)


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
        for placed in rows(shards, format):
            alphabet.add("".join(part.text for part in placed.row.parts))
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


def read_tokens(folder: Path, format: Format) -> Corpus:
    """Map the files that `write_tokens` wrote."""
    tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
    dtype = np.min_scalar_type(tokenizer.size - 1)
    return Corpus(
        tokens=np.memmap(folder / "tokens", dtype=dtype, mode="r"),
        ends=None if format == "text" else np.memmap(folder / "ends", dtype=np.int64, mode="r"),
        tokenizer=tokenizer,
        learned=flags_in(folder),
    )


def read_index(folder: Path, shards: Sequence[Path]) -> Corpus:
    """Map the files of an index."""
    tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
    ends = np.memmap(folder / "ends", dtype=np.int64, mode="r")
    tokens = IndexedTokens(folder, shards, ends, tokenizer)
    return Corpus(tokens, ends, tokenizer, flags_in(folder))


def flags_in(folder: Path) -> Flags | None:
    """Map the flags of learned tokens, if there are any."""
    learned = folder / "learned"
    return np.memmap(learned, dtype=np.bool_, mode="r") if learned.exists() else None
