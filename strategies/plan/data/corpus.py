"""Dataset as one long row of token numbers on disk, read through a memory map.

A text whose bytes are its tokens is mapped as it is. Any other dataset is converted to tokens once
per node, by the first rank to arrive while the others wait for its lock, and kept in the cache
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

import numpy as np
import numpy.typing as npt

from strategies.plan.built_in.datasets import DatasetFormat as Format
from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.rows import Row, Text, WrongRow, row_from
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Alphabet, Bytes, Flags, Tokenizer, Tokens
from strategies.plan.hugging_face.hf_config import TOKENIZER_FILES
from strategies.plan.spec import DataSpec
from strategies.plan.words import counted

Integers = npt.NDArray[np.int64]

CACHE_FORMAT = 1
KEPT = 8  # datasets whose tokens stay in the cache: the most recently used ones
PIECE_BYTES = 1 << 20  # read at a time, so that a large text never lies in memory as a whole


class BadData(Exception):
    """Dataset that cannot be trained on."""


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

    `checkpoint` is the folder of the model whose tokenizer is requested.
    """
    if format == "text" and spec.tokenizer == "bytes":
        return Corpus(np.memmap(path, dtype=np.uint8, mode="r"), None, Bytes())
    with locked(cache_dir / "tokens") as folder:
        kept = folder / signature(path, format, spec.tokenizer, checkpoint)
        if not kept.exists():
            aside = folder / f"{kept.name}.tmp"
            shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed
            aside.mkdir()
            write_tokens(aside, path, format, spec, checkpoint)
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


def signature(path: Path, format: Format, tokenizer: str, checkpoint: Path | None) -> str:
    """Return a name for a file's tokens, different for every version of it and its tokenizer."""
    told: list[object] = [CACHE_FORMAT, format, tokenizer]
    paths = [path]
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
    folder: Path, path: Path, format: Format, spec: DataSpec, checkpoint: Path | None
) -> None:
    """Write a dataset as `tokens` and `tokenizer.json`.

    Documents also get `ends` and, if some tokens are not learned, `learned`.
    """
    tokenizer = tokenizer_for(path, format, spec, checkpoint)
    (folder / "tokenizer.json").write_text(tokenizer.stored())
    if format == "text":
        write_text(folder, path, spec, tokenizer)
    else:
        write_documents(folder, path, spec, tokenizer)


def tokenizer_for(path: Path, format: Format, spec: DataSpec, checkpoint: Path | None) -> Tokenizer:
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
        for text in pieces_of_text(path):
            alphabet.add(text)
    else:
        for _, row in rows(path):
            alphabet.add("".join(part.text for part in row.parts))
    tokenizer = alphabet.tokenizer()
    if tokenizer.size < 2:
        raise BadData(
            f"dataset {spec.dataset} has {counted(tokenizer.size, 'different character')}; at "
            "least 2 are needed to train on"
        )
    return tokenizer


def write_text(folder: Path, path: Path, spec: DataSpec, tokenizer: Tokenizer) -> None:
    """Write a text as one row of tokens.

    It is encoded in pieces. With a Hugging Face tokenizer, whose tokens are longer than a
    character, pieces end at line ends, and no token spans two pieces.
    """
    pieces = pieces_of_text(path)
    with (folder / "tokens").open("wb") as file:
        for text in whole_lines(pieces) if spec.tokenizer == "huggingface" else pieces:
            tokenizer.encode(text).tofile(file)


def write_documents(folder: Path, path: Path, spec: DataSpec, tokenizer: Tokenizer) -> None:
    """Write documents one after the other. Raises BadData naming a line without a learned token."""
    ends, end, too_short, all_learned = array.array("q"), 0, 0, True
    with (folder / "tokens").open("wb") as file, (folder / "learned").open("wb") as flags:
        for number, row in rows(path):
            try:
                tokens, learned = tokenizer.encode_row(row)
            except WrongRow as error:
                raise BadData(f"line {number} {error}") from error
            is_text = isinstance(row, Text)
            if not is_text and not learned[1:].any():
                raise BadData(f"line {number} has no token to learn, whatever the sequence length")
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


def pieces_of_text(path: Path) -> Iterator[str]:
    """Yield a UTF-8 text in pieces. Raises BadData naming the first invalid byte."""
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
                    f"(0x{error.object[error.start]:02x}) is not valid UTF-8; save the text "
                    "as UTF-8, or use tokenizer bytes"
                ) from error
            before += len(piece)


def whole_lines(pieces: Iterator[str]) -> Iterator[str]:
    """Yield the same text in pieces that end at line ends."""
    rest = ""
    for piece in pieces:
        lines, end, rest_of_line = (rest + piece).rpartition("\n")
        rest = rest_of_line
        if end:
            yield lines + end
    yield rest


def rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the number and row of every line that is not blank.

    Raises BadData naming a bad line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadData(f"line {number} is not JSON: {error}") from error
            try:
                yield number, row_from(document)
            except WrongRow as error:
                raise BadData(f"line {number} {error}") from error
