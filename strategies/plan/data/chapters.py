"""Division of a corpus into chapters, known from the sizes of its files alone. Pure and torch-free.

The files, laid end to end, are cut into pieces of equal size, and a chapter has every n-th piece:
so each chapter is a small corpus with the proportions of the whole. A file that cannot be read from
its middle is one piece.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from strategies.plan.data.reading import Span
from strategies.plan.data.windows import share_of

PIECE_BYTES = 512 << 10
PIECES = 64  # of a chapter: 32 MiB, which an idle core counts in 0.2 s, or 8 s with a BPE
LEAST_PIECES = 1024  # of a small corpus: 16 chapters
EVALUATED_BYTES = 8 << 20  # 256 windows are evaluated, whatever is held out

Spans = tuple[Span, ...]
"""Lines that begin in these parts of files."""


class Division(NamedTuple):
    """Chapters of a corpus."""

    training: tuple[Spans, ...]
    evaluated: Spans
    """Evenly spaced pieces of the last ones, which are held out."""


def divide(sizes: Sequence[int], *, can_seek: bool, held_out: float) -> Division:
    """Divide files of `sizes` bytes, of whose end the share `held_out` is not trained on."""
    pieces = pieces_of(sizes) if can_seek else [(Span(number),) for number in range(len(sizes))]
    piece_bytes = max(1, sum(sizes) // max(1, len(pieces)))
    num_held_out = max(1, share_of(len(pieces), held_out)) if held_out and pieces else 0
    trained_on, last = pieces[: len(pieces) - num_held_out], pieces[len(pieces) - num_held_out :]
    num_evaluated = min(num_held_out, max(1, EVALUATED_BYTES // piece_bytes))
    evaluated = [last[number * num_held_out // num_evaluated] for number in range(num_evaluated)]
    num_chapters = max(
        math.ceil(len(trained_on) / PIECES),
        math.ceil(len(trained_on) * piece_bytes / (PIECES * PIECE_BYTES)),
    )
    num_chapters = min(num_chapters, len(trained_on))
    chapters = tuple(laid_out(trained_on[first::num_chapters]) for first in range(num_chapters))
    return Division(chapters, laid_out(evaluated))


def pieces_of(sizes: Sequence[int]) -> list[Spans]:
    """Cut files, laid end to end, into pieces of equal size; the last one may be smaller."""
    total = sum(sizes)
    size = max(1, min(PIECE_BYTES, math.ceil(total / LEAST_PIECES)))
    pieces: list[list[Span]] = [[] for _ in range(math.ceil(total / size))]
    before = 0
    for shard, of_file in enumerate(sizes):
        at = 0
        while at < of_file:
            number = (before + at) // size
            end = min(of_file, (number + 1) * size - before)
            pieces[number].append(Span(shard, at, None if end == of_file else end))
            at = end
        before += of_file
    return [tuple(piece) for piece in pieces]


def laid_out(pieces: Sequence[Spans]) -> Spans:
    """Return the spans of some pieces, one after the other."""
    return tuple(span for piece in pieces for span in piece)
