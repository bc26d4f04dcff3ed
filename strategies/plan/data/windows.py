"""Samples as windows of a row of tokens: sequence_length inputs, and as labels the same tokens
shifted by one. The last part of the row is held out. Torch-free."""

import math
from abc import ABC, abstractmethod
from decimal import Decimal

import numpy as np

from strategies.plan.data.corpus import Corpus
from strategies.plan.data.indexed import IndexedTokens
from strategies.plan.data.reading import BadData
from strategies.plan.data.tokens import Integers
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import DataSpec
from strategies.plan.words import counted

COUNTED_AT_ONCE = 4096  # windows
DOCUMENTS_AT_ONCE = 1 << 16
BLOCK = 256  # documents; DOCUMENTS_AT_ONCE is a multiple


class Windows(ABC):
    """Samples by number; each is a window of inputs and their labels one position further on."""

    num_train: int
    num_held_out: int  # these come after the training windows
    is_counted = False
    """True if its documents are counted, which may take long on one node and not on another."""
    most_evaluated = 256  # about a second on two cores with the demo's model

    @abstractmethod
    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        """Return the first token and the number of tokens of each window."""

    @abstractmethod
    def num_labels(self, starts: Integers, lengths: Integers) -> Integers:
        """Return the number of tokens to predict in each window."""


class TokenWindows(Windows):
    """Windows of at most sequence_length + 1 tokens."""

    def __init__(self, corpus: Corpus, spec: DataSpec) -> None:
        self.tokens, self.tokenizer = corpus.tokens, corpus.tokenizer
        self.learned = corpus.learned
        self.is_counted = isinstance(corpus.tokens, IndexedTokens)
        self.length = tokens_per_sample(spec)

    def num_labels(self, starts: Integers, lengths: Integers) -> Integers:
        if self.learned is None:
            return self.num_predictable(starts, lengths)
        counts = np.empty_like(lengths)
        for at in range(0, len(starts), COUNTED_AT_ONCE):
            some = slice(at, at + COUNTED_AT_ONCE)
            offsets = np.arange(1, self.length + 1)
            inside = offsets < lengths[some, None]
            places = np.where(inside, starts[some, None] + offsets, 0)
            counts[some] = (self.learned[places] & inside).sum(axis=1)
        return counts

    def num_predictable(self, starts: Integers, lengths: Integers) -> Integers:
        """Return the number of labels of each window if every token is learned."""
        return lengths - 1

    def documents(self, places: Integers) -> Integers | None:
        """Return the document number of each token; None if no window holds two documents."""
        return None


class TextWindows(TokenWindows):
    """Windows of one text, cut every sequence_length tokens; its end is held out."""

    def __init__(self, corpus: Corpus, spec: DataSpec) -> None:
        super().__init__(corpus, spec)
        size, window = len(self.tokens), self.length + 1
        parts = 2 if spec.held_out else 1
        if size < parts * window:
            raise BadData(
                f"dataset {spec.dataset} has {size:,} {unit_of(spec)}; sequence_length "
                f"{self.length:,} needs at least {parts * window:,} "
                f"({counted(parts, 'window')} of {window:,})"
            )
        held_out = max(window, share_of(size, spec.held_out)) if spec.held_out else 0
        self.held_out_at = size - held_out
        self.num_train = (self.held_out_at - 1) // self.length
        self.num_held_out = max(0, held_out - 1) // self.length

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        starts = np.where(
            windows < self.num_train,
            windows * self.length,
            self.held_out_at + (windows - self.num_train) * self.length,
        )
        return starts, np.full_like(starts, self.length + 1)


class DocumentWindows(TokenWindows):
    """Windows of documents, each cut every sequence_length tokens, so its last window is short.

    The last documents are held out. Documents are found by the number of windows before every
    BLOCK of them: of a hundred million documents that is 3 MB in memory.
    """

    def __init__(self, corpus: Corpus, spec: DataSpec, ends: Integers) -> None:
        super().__init__(corpus, spec)
        self.ends = ends
        trained_on = documents_trained_on(ends, spec)
        before, total = [], 0
        self.num_train = 0
        for at in range(0, len(ends), DOCUMENTS_AT_ONCE):
            some = np.arange(at, min(len(ends), at + DOCUMENTS_AT_ONCE))
            until = np.cumsum(self.windows_of(some))
            before.append(total + np.concatenate([[0], until])[:-1:BLOCK])
            if at < trained_on <= at + len(until):
                self.num_train = total + int(until[trained_on - 1 - at])
            total += int(until[-1])
        self.before = np.concatenate(before)
        self.kept: Integers | None = None  # windows that have a label; None: all
        if self.learned is not None:  # a prompt may fill a window
            parts = [
                at + np.flatnonzero(self.num_labels(*self.bounds(np.arange(at, end))))
                for at in range(0, total, COUNTED_AT_ONCE)
                for end in [min(total, at + COUNTED_AT_ONCE)]
            ]
            self.kept = np.concatenate(parts)
            self.num_train = int(np.searchsorted(self.kept, self.num_train))
            total = len(self.kept)
        self.num_held_out = total - self.num_train

    def windows_of(self, documents: Integers) -> Integers:
        """Return the number of windows of each document."""
        lengths = self.ends[documents] - self.begins(documents)
        found: Integers = -(-(lengths - 1) // self.length)
        return found

    def begins(self, documents: Integers) -> Integers:
        """Return the first token of each document."""
        return np.where(documents > 0, self.ends[np.maximum(documents - 1, 0)], 0)

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        if self.kept is not None:
            windows = self.kept[windows]
        blocks = np.searchsorted(self.before, windows, "right") - 1
        numbers = windows - self.before[blocks]  # within the block
        near, place = np.unique(blocks, return_inverse=True)
        members = near[:, None] * BLOCK + np.arange(BLOCK)
        inside = members < len(self.ends)
        counts = np.where(inside, self.windows_of(np.where(inside, members, 0)), 0)
        until = np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0)))[place]
        nth = (until[:, 1:] <= numbers[:, None]).sum(axis=1)
        documents = blocks * BLOCK + nth
        first = np.take_along_axis(until, nth[:, None], axis=1)[:, 0]
        starts = self.begins(documents) + (numbers - first) * self.length
        return starts, np.minimum(self.length + 1, self.ends[documents] - starts)


class PackedWindows(TokenWindows):
    """Windows of documents laid end to end, cut every sequence_length tokens wherever they end.

    A window may hold many documents, or parts of them. The first token of a document is not a
    label: no token precedes it to predict it from. The last documents are held out; only the last
    window before them, and the last of all, may be short.
    """

    def __init__(self, corpus: Corpus, spec: DataSpec, ends: Integers) -> None:
        super().__init__(corpus, spec)
        self.ends = ends
        self.held_out_at = int(ends[documents_trained_on(ends, spec) - 1])
        self.num_before = -(-(self.held_out_at - 1) // self.length)
        count = self.num_before - (-max(0, len(self.tokens) - self.held_out_at - 1) // self.length)
        self.kept: Integers | None = None  # windows that have a label; None: all
        if self.learned is not None:
            windows = np.arange(count)
            self.kept = np.flatnonzero(self.num_labels(*self.bounds(windows)))
        self.num_train = self.num_before
        if self.kept is not None:
            self.num_train = int(np.searchsorted(self.kept, self.num_before))
            count = len(self.kept)
        self.num_held_out = count - self.num_train

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        if self.kept is not None:
            windows = self.kept[windows]
        training = windows < self.num_before
        starts = np.where(
            training,
            windows * self.length,
            self.held_out_at + (windows - self.num_before) * self.length,
        )
        end = np.where(training, self.held_out_at, len(self.tokens))
        return starts, np.minimum(self.length + 1, end - starts)

    def num_predictable(self, starts: Integers, lengths: Integers) -> Integers:
        last = starts + lengths - 1
        borders = np.searchsorted(self.ends, last, "right") - np.searchsorted(
            self.ends, starts, "right"
        )
        return lengths - 1 - borders

    def documents(self, places: Integers) -> Integers:
        return np.searchsorted(self.ends, places, "right")


def cut(corpus: Corpus, spec: DataSpec) -> TokenWindows:
    """Return the windows of a dataset. Raises BadData, with the numbers, if there are none."""
    if corpus.ends is not None:
        return (PackedWindows if spec.packing else DocumentWindows)(corpus, spec, corpus.ends)
    if spec.packing:
        raise BadData(
            f"dataset {spec.dataset} is one text of {len(corpus.tokens):,} {unit_of(spec)}, so "
            'there is nothing to pack; leave packing out, or upload JSON lines with a "text" each'
        )
    return TextWindows(corpus, spec)


def documents_trained_on(ends: Integers, spec: DataSpec) -> int:
    """Return the number of documents before the held-out ones. Raises BadData if it is 0."""
    held_out = max(1, share_of(len(ends), spec.held_out)) if spec.held_out else 0
    if held_out >= len(ends):
        raise BadData(
            f"dataset {spec.dataset} has {counted(len(ends), 'document')} of at least 2 "
            f"tokens, {ends[-1]:,} {unit_of(spec)} in all; held_out {spec.held_out:g} takes "
            f"{held_out:,}, so no text is left to train on"
        )
    return len(ends) - held_out


def unit_of(spec: DataSpec) -> str:
    """Return the name of a token, plural, for messages."""
    return "tokens" if spec.tokenizer == "huggingface" else spec.tokenizer


def share_of(count: int, share: float) -> int:
    """Return a share of `count`, rounded up: 0.1 of Shakespeare's 1,115,394 characters is 111,540.

    Computed in decimal, because 0.07 of 100 would be 7.000000000000001 otherwise.
    """
    return math.ceil(count * Decimal(repr(share)))
