"""A dataset as one long row of token numbers on disk, read through a memory map.

A text whose bytes are its tokens is mapped as it is. Anything else is turned into tokens once per
node, by whichever rank comes first while the others wait for its lock, and kept in the cache
folder for later runs. Torch-free.
"""

import array
import codecs
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from strategies.spec import DataSpec
from strategies.tokens import Alphabet, Bytes, Tokenizer, Tokens, tokenizer_from

Integers = npt.NDArray[np.int64]
Format = Literal["text", "jsonl"]

CACHE_FORMAT = 1
KEPT = 8  # datasets whose tokens stay in the cache: the ones used last
PIECE_BYTES = 1 << 20  # read at a time, so that a large text never lies in memory as a whole


class BadData(Exception):
    """A dataset that cannot be trained on."""


@dataclass(frozen=True)
class Corpus:
    """All tokens, one document after the other."""

    tokens: Tokens
    ends: Integers | None  # where each document ends; None: it is one text
    tokenizer: Tokenizer


def open_corpus(path: Path, format: Format, spec: DataSpec, cache_dir: Path) -> Corpus:
    """The tokens of a dataset; BadData, with the numbers, where they do not fit the spec."""
    if format == "text" and spec.tokenizer == "bytes":
        return Corpus(np.memmap(path, dtype=np.uint8, mode="r"), None, Bytes())
    with locked(cache_dir / "tokens") as folder:
        kept = folder / signature(path, format, spec.tokenizer)
        if not kept.exists():
            aside = folder / f"{kept.name}.tmp"
            shutil.rmtree(aside, ignore_errors=True)  # of a builder that was killed
            aside.mkdir()
            write_tokens(aside, path, format, spec)
            aside.rename(kept)
        os.utime(kept)
        forget_oldest(folder)
        corpus = read_tokens(kept, format)
    found, told = corpus.tokenizer.size, spec.vocabulary_size
    if told is not None and found > told:
        raise BadData(
            f"dataset {spec.dataset} has {found:,} different characters, but "
            f"data.vocabulary_size is {told:,}; make it {found:,} or more"
        )
    return corpus


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """A folder that one process at a time may change; a killed one lets go of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def signature(path: Path, format: Format, tokenizer: str) -> str:
    """A name for the tokens of a file as it is now."""
    file = path.stat()
    told = (CACHE_FORMAT, str(path.resolve()), file.st_size, file.st_mtime_ns, format, tokenizer)
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def forget_oldest(folder: Path) -> None:
    """Delete all but the datasets used last. Who has one open keeps its pages."""
    datasets = [path for path in folder.iterdir() if path.is_dir()]
    datasets.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in datasets[:-KEPT]:
        shutil.rmtree(path)


def write_tokens(folder: Path, path: Path, format: Format, spec: DataSpec) -> None:
    """Turn a dataset into `tokens`, `ends` (of its documents) and `tokenizer.json`."""
    read = pieces_of_text if format == "text" else documents
    tokenizer: Tokenizer = Bytes()
    if spec.tokenizer == "characters":
        alphabet = Alphabet()
        for text in read(path):
            alphabet.add(text)
        tokenizer = alphabet.tokenizer()
        if tokenizer.size < 2:
            raise BadData(
                f"dataset {spec.dataset} has {tokenizer.size} different character(s); at least 2 "
                "are needed to have anything to predict"
            )
    (folder / "tokenizer.json").write_text(tokenizer.stored())
    ends, end, too_short = array.array("q"), 0, 0
    with (folder / "tokens").open("wb") as file:
        for text in read(path):
            tokens = tokenizer.encode(text)
            # A document of one token has nothing to predict.
            if format == "text" or len(tokens) > 1:
                tokens.tofile(file)
                end += len(tokens)
                ends.append(end)
            else:
                too_short += 1
    if end == 0:
        raise BadData(
            f"dataset {spec.dataset} has no document of at least 2 tokens; {too_short} are shorter"
        )
    with (folder / "ends").open("wb") as file:
        ends.tofile(file)


def read_tokens(folder: Path, format: Format) -> Corpus:
    """Map what was written."""
    tokenizer = tokenizer_from((folder / "tokenizer.json").read_text())
    dtype = np.min_scalar_type(tokenizer.size - 1)
    return Corpus(
        tokens=np.memmap(folder / "tokens", dtype=dtype, mode="r"),
        ends=None if format == "text" else np.memmap(folder / "ends", dtype=np.int64, mode="r"),
        tokenizer=tokenizer,
    )


def pieces_of_text(path: Path) -> Iterator[str]:
    """A UTF-8 text from beginning to end; BadData names the byte that is wrong."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, piece = 0, b"-"
    with path.open("rb") as file:
        while piece:
            piece = file.read(PIECE_BYTES)
            unfinished = len(decoder.getstate()[0])  # a character may lie across two pieces
            try:
                yield decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                raise BadData(
                    f"byte {before - unfinished + error.start:,} of {path.stat().st_size:,} "
                    f"(0x{error.object[error.start]:02x}) is not UTF-8, so it is part of no "
                    "character; save the text as UTF-8, or take tokenizer bytes"
                ) from error
            before += len(piece)


def documents(path: Path) -> Iterator[str]:
    """The "text" of every line; BadData names the line that has none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadData(f"line {number} is not JSON: {error}") from error
            text = document.get("text") if isinstance(document, dict) else None
            if not isinstance(text, str):
                raise BadData(f'line {number} is not an object with a "text" that is a string')
            yield text
