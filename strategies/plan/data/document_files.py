"""Tokens of documents as files of a folder, one document after the other. Torch-free.

`tokens`: their tokens; of an index, only those that are kept. `ends`: the end of each document,
counted in tokens of all documents. `learned`: which tokens may be labels; missing if all may.
An index has `places` too: for each document the byte at which its line begins, or, if its tokens
are kept, ~place among them; and `spans`, the first document of each part.
"""

import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from strategies.plan.data.reading import BadData, PlacedRow
from strategies.plan.data.rows import Text, WrongRow
from strategies.plan.data.tokens import Flags, Integers, Tokenizer

FLAGS_AT_ONCE = 1 << 14  # documents


class DocumentCounts(NamedTuple):
    """Counts of the documents that were written."""

    tokens: int
    too_short: int
    """Documents of fewer than two tokens, which were left out."""


def write_documents(
    folder: Path,
    parts: Iterable[Iterator[PlacedRow]],
    tokenizer: Tokenizer,
    *,
    longest_read: int | None,
) -> DocumentCounts:
    """Write the documents of some parts, without those that have nothing to predict.

    `longest_read` makes an index: documents of a line and no more than so many tokens are not kept,
    but read again. Raises BadData naming the place of a document without a learned token.
    """
    ends, places, firsts = array.array("q"), array.array("q"), array.array("q")
    end, kept, too_short = 0, 0, 0
    with ExitStack() as files:
        tokens_file = files.enter_context((folder / "tokens").open("wb"))
        flags: BinaryIO | None = None
        for rows in parts:
            firsts.append(len(ends))
            for place, row, line_at in rows:
                try:
                    tokens, learned = tokenizer.encode_row(row)
                except WrongRow as error:
                    raise BadData(f"{place} {error}") from error
                is_text = isinstance(row, Text)
                if not is_text and not learned[1:].any():
                    raise BadData(f"{place} has no token to learn, whatever the sequence length")
                if len(tokens) < 2:
                    too_short += 1
                    continue
                if flags is None and not is_text:
                    flags = files.enter_context((folder / "learned").open("wb"))
                    write_all_learned(flags, np.array(ends, dtype=np.int64))
                if flags is not None:
                    learned[0] = False  # no token precedes it to predict it from
                    learned.tofile(flags)
                if line_at is None or longest_read is None or len(tokens) > longest_read:
                    tokens.tofile(tokens_file)
                    places.append(~kept)
                    kept += len(tokens)
                else:
                    places.append(line_at)
                end += len(tokens)
                ends.append(end)
    for name, numbers in (("ends", ends), ("places", places), ("spans", firsts)):
        if name == "ends" or longest_read is not None:
            with (folder / name).open("wb") as file:
                numbers.tofile(file)
    return DocumentCounts(end, too_short)


def write_all_learned(file: BinaryIO, ends: Integers) -> None:
    """Write the flags of documents of which all is learned but the first token."""
    for at in range(0, len(ends), FLAGS_AT_ONCE):
        some, begin = ends[at : at + FLAGS_AT_ONCE], int(ends[at - 1]) if at else 0
        flags: Flags = np.ones(int(some[-1]) - begin, dtype=bool)
        flags[0] = False
        flags[some[:-1] - begin] = False
        flags.tofile(file)


def require_documents(written: DocumentCounts, dataset: str) -> None:
    """Raise BadData if there is no document at all."""
    if written.tokens == 0:
        raise BadData(
            f"dataset {dataset} has no document of at least 2 tokens; {written.too_short} are "
            "shorter"
        )
