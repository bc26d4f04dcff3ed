"""Tokens of a dataset that are made when they are read, from an index of its documents.

An index has 16 bytes for each document: the end of its tokens in the row of all tokens, and where
it lies. Torch-free.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.plan.data.reading import BadData
from strategies.plan.data.rows import row_from
from strategies.plan.data.tokens import Integers, Tokenizer, Tokens

HELD = "tokenizer.json"  # locked by those who read an index
MOST_RECENT = 256  # documents in memory: windows of one step may lie in one document


def is_in_use(index: Path) -> bool:
    """Return True if a process reads this index."""
    try:
        with (index / HELD).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def hold(index: Path, reader: object) -> None:
    """Keep an index from being deleted as long as its reader exists."""
    in_use = os.open(index / HELD, os.O_RDONLY)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    weakref.finalize(reader, os.close, in_use)


class IndexedTokens:
    """Row of all tokens, read by their places like an array.

    The kept tokens of each span are in a folder of its own, unless it is an index of one chapter.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Path],
        ends: Integers,
        tokenizer: Tokenizer,
        *,
        is_chapter: bool = False,
    ) -> None:
        self.is_chapter = is_chapter
        self.folder, self.shards, self.ends, self.tokenizer = folder, shards, ends, tokenizer
        self.dtype = np.dtype(np.min_scalar_type(tokenizer.size - 1))
        self.places = np.memmap(folder / "places", np.int64, "r")
        self.first_documents = np.fromfile(folder / "spans", np.int64)
        self.shard_of_span = np.fromfile(folder / "shards", np.int64)
        self.recent: dict[int, Tokens] = {}
        if not is_chapter:
            hold(folder, self)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, places: Integers) -> npt.NDArray[Any]:
        """Return the tokens at some places, in the shape of `places`."""
        wanted = places.ravel()
        found = np.empty(len(wanted), self.dtype)
        documents = np.searchsorted(self.ends, wanted, "right")
        order = np.argsort(documents, kind="stable")
        numbers, firsts = np.unique(documents[order], return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            found[members] = self.document(number)[wanted[members] - self.begin(number)]
        return found.reshape(places.shape)

    def document(self, number: int) -> Tokens:
        """Return the tokens of one document. Raises BadData if it is not what was counted."""
        if number not in self.recent:
            if len(self.recent) == MOST_RECENT:
                self.recent.clear()
            self.recent[number] = self.read(number)
        return self.recent[number]

    def begin(self, document: int) -> int:
        """Return the first token of a document."""
        return int(self.ends[document - 1]) if document > 0 else 0

    def read(self, document: int) -> Tokens:
        """Read a document's tokens where they are kept, else its line."""
        span = int(np.searchsorted(self.first_documents, document, "right")) - 1
        place = int(self.places[document])
        path = self.shards[self.shard_of_span[span]]
        size = int(self.ends[document]) - self.begin(document)
        if place < 0:
            kept = (self.folder if self.is_chapter else self.folder / f"{span:05}") / "tokens"
            tokens: Tokens = np.fromfile(
                kept, self.dtype, size, offset=~place * self.dtype.itemsize
            )
        else:
            with path.open("rb") as file:
                file.seek(place)
                line = file.readline()
            try:
                tokens = self.tokenizer.encode_row(row_from(json.loads(line))).tokens
            except ValueError:
                tokens = np.empty(0, self.dtype)
        if len(tokens) != size:
            raise BadData(
                f"the file {path.name} has changed while it was trained on: document "
                f"{document + 1:,} of the dataset had {size:,} tokens"
            )
        return tokens
