"""Windows of a corpus that is read chapter by chapter. Torch-free.

A chapter is cut as a small dataset of its own. Windows and tokens are numbered within their
chapter, which is in the upper bits of the number, so neither needs to know the chapters before.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.data import chapters
from strategies.plan.data.corpus import (
    forget_oldest,
    locked,
    require_vocabulary,
    signature,
    tokenizer_for,
)
from strategies.plan.data.indexed import hold
from strategies.plan.data.reading import BadData, shards_of
from strategies.plan.data.streaming import STREAM, Chapters, Stream, can_seek
from strategies.plan.data.tokens import Integers
from strategies.plan.data.windows import TokenWindows, cut
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import DataSpec, Sampling
from strategies.plan.words import counted

STREAMED_FROM = 4 << 30  # bytes of all files; a constant, because it decides the order
WINDOW_BITS, TOKEN_BITS = 32, 40
OPEN = 8  # chapters at a time

Read = Callable[[TokenWindows, Integers], npt.NDArray[Any]]


def is_streamed(spec: DataSpec, format: DatasetFormat, path: Path) -> bool:
    """Return True if a dataset is read chapter by chapter.

    This depends on spec and data alone, so all nodes of a job and all its attempts agree. Raises
    BadData if the spec asks for it and the dataset cannot be.
    """
    if spec.sampling is Sampling.STREAMED:
        if format in ("text", "npz"):
            raise BadData(
                f"dataset {spec.dataset} is not made of documents, so it cannot be streamed; leave "
                "data.sampling out, or upload JSON lines"
            )
        return True
    if spec.sampling is not Sampling.AUTO or spec.tokenizer == "characters" or spec.mixture:
        return False
    shards = shards_of(path)
    size = sum(shard.stat().st_size for shard in shards)
    return size > STREAMED_FROM and can_seek(shards, format)


def open_stream(
    path: Path,
    format: DatasetFormat,
    spec: DataSpec,
    cache_dir: Path,
    checkpoint: Path | None,
    *,
    expected: Callable[[int], Sequence[int]],
) -> "StreamedWindows":
    """Return the windows of a dataset, chapter by chapter.

    `expected` has the chapters that come first, by the number of all. Raises BadData, with the
    numbers, if there is nothing to train on or to evaluate.
    """
    shards = shards_of(path)
    with locked(cache_dir / "streams") as all_streams:
        name = signature(shards, format, spec.tokenizer, checkpoint)
        division = [name, spec.held_out, chapters.PIECE_BYTES, chapters.PIECES]
        folder = all_streams / hashlib.sha256(json.dumps(division).encode()).hexdigest()[:32]
        if not (folder / STREAM).exists():
            folder.mkdir(exist_ok=True)
            tokenizer = tokenizer_for(shards, format, spec, checkpoint)
            (folder / "tokenizer.json").write_text(tokenizer.stored())
            stream = Stream(
                shards=[shard.resolve() for shard in shards],
                format=format,
                tokenizer=spec.tokenizer,
                held_out=spec.held_out,
            )
            aside = folder / f"{STREAM}.tmp"
            aside.write_text(stream.model_dump_json())
            aside.rename(folder / STREAM)
        os.utime(folder)
        found = Chapters(folder)
        hold(folder, found)
        forget_oldest(all_streams)
    require_vocabulary(found.tokenizer, spec)
    if not found.num_training:
        raise BadData(
            f"dataset {spec.dataset} has {counted(len(shards), 'file')}, which cannot be divided; "
            f"held_out {spec.held_out:g} leaves none to train on; make several of them, or take "
            "data.sampling global"
        )
    return StreamedWindows(found, spec, expected(found.num_training))


class StreamedWindows(TokenWindows):
    """Windows of chapters, which are opened when they are needed."""

    def __init__(self, found: Chapters, spec: DataSpec, expected: Sequence[int]) -> None:
        self.chapters, self.spec = found, spec.model_copy(update={"held_out": 0.0})
        self.tokenizer, self.length = found.tokenizer, tokens_per_sample(spec)
        self.is_counted = True
        self.num_chapters = found.num_training
        self.num_train = self.num_chapters << WINDOW_BITS
        self.open: dict[int, TokenWindows | None] = {}
        # This process counts the first chapter, another one meanwhile what is evaluated: both are
        # needed before the ranks meet.
        self.expect([*([self.num_chapters] if spec.held_out else []), *expected[1:]])
        self.num_windows(expected[0])
        self.num_held_out = self.num_windows(self.num_chapters) if spec.held_out else 0
        if spec.held_out and not self.num_held_out:
            raise BadData(
                f"dataset {spec.dataset} has no document to evaluate in the last part, which "
                f"held_out {spec.held_out:g} takes; raise it, or make it 0"
            )
        dtype = np.dtype(np.min_scalar_type(found.tokenizer.size - 1))
        self.tokens: Any = Row(self, tokens_in, dtype)
        self.learned: Any = Row(self, learned_in, np.dtype(bool))

    def expect(self, numbers: Sequence[int]) -> None:
        """Have chapters counted in the background that are needed soon."""
        self.chapters.count_ahead(numbers)

    def chapter(self, number: int) -> TokenWindows | None:
        """Return the windows of one chapter; None if it has none. Raises BadData."""
        if number not in self.open:
            if len(self.open) == OPEN:
                del self.open[next(iter(self.open))]
            corpus = self.chapters.corpus(number)
            self.open[number] = None if corpus is None else cut(corpus, self.spec)
        return self.open[number]

    def num_windows(self, number: int) -> int:
        """Return the number of windows of one chapter."""
        chapter = self.chapter(number)
        return 0 if chapter is None else chapter.num_train

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        starts, lengths = np.empty_like(windows), np.empty_like(windows)
        numbers = windows >> WINDOW_BITS
        for number in np.unique(numbers).tolist():
            here, chapter = numbers == number, self.chapter(number)
            assert chapter is not None
            inside, lengths[here] = chapter.bounds(windows[here] & ((1 << WINDOW_BITS) - 1))
            starts[here] = inside + (number + 1 << TOKEN_BITS)
        return starts, lengths

    def num_labels(self, starts: Integers, lengths: Integers) -> Integers:
        counts = np.empty_like(lengths)
        for chapter, here, inside in self.by_chapter(starts):
            counts[here] = chapter.num_labels(inside, lengths[here])
        return counts

    def documents(self, places: Integers) -> Integers | None:
        if not self.spec.packing:
            return None
        found = np.zeros_like(places)
        for chapter, here, inside in self.by_chapter(places):
            documents = chapter.documents(inside)
            assert documents is not None
            found[here] = documents
        return found

    def by_chapter(
        self, places: Integers
    ) -> Iterator[tuple[TokenWindows, npt.NDArray[np.bool_], Integers]]:
        """Yield each chapter that some tokens are from, which they are, and their own places.

        Place 0, which stands for tokens behind a window's end, is in none.
        """
        numbers = (places >> TOKEN_BITS) - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            here, chapter = numbers == number, self.chapter(number)
            assert chapter is not None
            yield chapter, here, places[here] & ((1 << TOKEN_BITS) - 1)


class Row:
    """Values of all tokens of a stream, read by their places like an array; 0 at place 0."""

    def __init__(self, windows: StreamedWindows, read: Read, dtype: np.dtype[Any]) -> None:
        self.windows, self.read, self.dtype = windows, read, dtype

    def __getitem__(self, places: Integers) -> npt.NDArray[Any]:
        """Return the values at some places, in the shape of `places`."""
        found = np.zeros(places.shape, self.dtype)
        for chapter, here, inside in self.windows.by_chapter(places):
            found[here] = self.read(chapter, inside)
        return found


def tokens_in(chapter: TokenWindows, places: Integers) -> npt.NDArray[Any]:
    """Return some tokens of a chapter."""
    found: npt.NDArray[Any] = chapter.tokens[places]
    return found


def learned_in(chapter: TokenWindows, places: Integers) -> npt.NDArray[Any]:
    """Return which tokens of a chapter are learned."""
    if chapter.learned is None:
        return np.ones(len(places), bool)
    return chapter.learned[places]
