"""Division of a corpus into chapters, known from the sizes of its files alone. Pure and torch-free.

The files, laid end to end, are cut into pieces of equal size, and a chapter has every n-th piece:
so each chapter is a small corpus with the proportions of the whole. A file that cannot be read from
its middle is one piece.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from strategies.plan.data.reading import ShardSpan
from strategies.plan.data.windows import share_of

PIECE_BYTES = 128 << 10
PIECES = 128  # of a chapter: 16 MiB, which an idle core counts in 0.1 s, or 8 s with a BPE
LEAST_PIECES = 2048  # of a small corpus: 16 chapters
EVALUATED_BYTES = 8 << 20  # 256 windows are evaluated, whatever is held out

Spans = tuple[ShardSpan, ...]
"""Lines that begin in these parts of files."""


class Division:
    """Chapters of files of `sizes` bytes, of whose end the share `held_out` is not trained on.

    Files that cannot be read from their middle are a piece each.
    """

    def __init__(self, sizes: Sequence[int], *, can_seek: bool, held_out: float) -> None:
        self.sizes, self.can_seek = sizes, can_seek
        self.begins = [0, *accumulate(sizes)]
        total = self.begins[-1]
        self.cut_bytes = max(1, min(PIECE_BYTES, math.ceil(total / LEAST_PIECES)))
        num_pieces = math.ceil(total / self.cut_bytes) if can_seek else len(sizes)
        piece_bytes = max(1, total // max(1, num_pieces))
        num_held_out = max(1, share_of(num_pieces, held_out)) if held_out and num_pieces else 0
        self.num_trained_on = num_pieces - num_held_out
        num_chapters = max(
            math.ceil(self.num_trained_on / PIECES),
            math.ceil(self.num_trained_on * piece_bytes / (PIECES * PIECE_BYTES)),
        )
        self.num_chapters = min(num_chapters, self.num_trained_on)
        num_evaluated = min(num_held_out, max(1, EVALUATED_BYTES // piece_bytes))
        self.evaluated = self._spans(
            self.num_trained_on + number * num_held_out // num_evaluated
            for number in range(num_evaluated)
        )
        """Evenly spaced pieces of the last ones, which are held out."""

    def chapter(self, number: int) -> Spans:
        """Return the parts of files that a chapter is made of."""
        return self._spans(range(number, self.num_trained_on, self.num_chapters))

    def _spans(self, pieces: Iterable[int]) -> Spans:
        return tuple(span for piece in pieces for span in self._piece(piece))

    def _piece(self, number: int) -> Iterator[ShardSpan]:
        """Yield the parts of files in one piece of all files laid end to end."""
        if not self.can_seek:
            yield ShardSpan(number)
            return
        first, last = number * self.cut_bytes, (number + 1) * self.cut_bytes
        shard = bisect_right(self.begins, first) - 1
        while shard < len(self.sizes) and self.begins[shard] < last:
            size, before = self.sizes[shard], self.begins[shard]
            begin, end = max(0, first - before), min(size, last - before)
            if begin < end:
                yield ShardSpan(shard, begin, None if end == size else end)
            shard += 1
