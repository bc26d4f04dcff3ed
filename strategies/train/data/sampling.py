"""Mapping from sample numbers to windows, by seed, pass and number.

A run may stop and continue anywhere; only the number of samples it has seen is stored. Torch-free.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import ONE_ORDER
from strategies.plan.data.reading import BadData
from strategies.plan.data.streamed import WINDOW_BITS, StreamedWindows
from strategies.plan.data.tokens import Integers
from strategies.plan.spec import Sampling

PERMUTATION_ROUNDS = 6
EXPECTED = 8  # chapters that are counted ahead: 128 MiB


@dataclass(frozen=True)
class Order:
    """Order of the samples of a run, for all its data-parallel ranks.

    global: one permutation of all windows per pass, dealt out to the ranks: the law.
    partitioned: a rank permutes its own contiguous part of the windows and sees no other.
    independent: a rank permutes all windows by a seed of its own, so in one pass several ranks may
    get the same window and some windows may go to no rank.
    """

    sampling: Sampling
    num_windows: int
    seed: int
    batch_degree: int
    micro_batch_size: int

    def windows(self, samples_seen: int, count: int) -> Integers:
        """Return the windows of the next `count` samples; a step begins at `samples_seen`.

        A step's samples are ordered as (accumulation, data-parallel rank, micro-batch).
        """
        numbers = np.arange(count, dtype=np.int64)
        if self.sampling in ONE_ORDER:
            return windows_of(samples_seen + numbers, self.num_windows, str(self.seed))
        rounds, place = np.divmod(numbers, self.batch_degree * self.micro_batch_size)
        ranks, place = np.divmod(place, self.micro_batch_size)
        own = samples_seen // self.batch_degree + rounds * self.micro_batch_size + place
        windows = np.empty_like(numbers)
        for rank in range(self.batch_degree):
            first, num_windows = self.windows_seen_by(rank)
            mine = ranks == rank
            windows[mine] = first + windows_of(own[mine], num_windows, f"{self.seed}:rank {rank}")
        return windows

    def windows_seen_by(self, rank: int) -> tuple[int, int]:
        """Return the first window and the number of windows that one data-parallel rank uses."""
        if self.sampling is not Sampling.PARTITIONED:
            return 0, self.num_windows
        first = rank * self.num_windows // self.batch_degree
        return first, (rank + 1) * self.num_windows // self.batch_degree - first


class Mark(BaseModel):
    """Place of a chapter in a run, so that those before it need not be counted again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    visit: int = 0
    """Number of chapters before it, in all passes."""
    first_sample: int = 0


class StreamOrder:
    """Order of the samples of a run on a streamed corpus, the same for any number of ranks.

    A pass visits every chapter once, in an order of its own, and permutes the windows of each. It
    depends on seed, pass and number alone, but a chapter's first sample is known only when the
    chapters before it are counted.
    """

    def __init__(self, windows: StreamedWindows, seed: int) -> None:
        self.stream, self.seed = windows, seed
        self.begin_at(Mark())

    def begin_at(self, mark: Mark) -> None:
        """Begin at a chapter; samples before it begin again at the first."""
        self.first_visit, self.begins = mark.visit, [mark.first_sample]

    def windows(self, samples_seen: int, count: int) -> Integers:
        """Return the windows of the next `count` samples."""
        if samples_seen < self.begins[0]:
            self.begin_at(Mark())
        numbers = samples_seen + np.arange(count, dtype=np.int64)
        self._reach(int(numbers[-1]))
        visits = np.searchsorted(self.begins, numbers, "right") - 1
        windows = np.empty_like(numbers)
        for visit in np.unique(visits).tolist():
            here = visits == visit
            pass_number, chapter = self.chapter(self.first_visit + visit)
            windows[here] = (chapter << WINDOW_BITS) + permuted(
                numbers[here] - self.begins[visit],
                count=self.begins[visit + 1] - self.begins[visit],
                keys=round_keys(f"{self.seed}:chapter {chapter}", pass_number),
            )
        return windows

    def mark(self, samples_seen: int) -> Mark:
        """Return the chapter of a sample that was asked for, or is the next."""
        visit = int(np.searchsorted(self.begins, samples_seen, "right")) - 1
        return Mark(visit=self.first_visit + visit, first_sample=self.begins[visit])

    def chapter(self, visit: int) -> tuple[int, int]:
        """Return the pass and the chapter of a visit."""
        num_chapters = self.stream.num_chapters
        return visit // num_chapters, chapters_of(num_chapters, self.seed, visit, 1)[0]

    def _reach(self, sample: int) -> None:
        """Learn where the chapters up to a sample begin. Raises BadData if all are empty."""
        num_chapters = self.stream.num_chapters
        while self.begins[-1] <= sample:
            if (
                len(self.begins) > num_chapters
                and self.begins[-num_chapters - 1] == self.begins[-1]
            ):
                raise BadData(f"dataset {self.stream.spec.dataset} has no text to train on")
            visit = self.first_visit + len(self.begins) - 1
            self.stream.expect(chapters_of(num_chapters, self.seed, visit + 1, EXPECTED))
            size = self.stream.num_windows(self.chapter(visit)[1])
            self.begins.append(self.begins[-1] + size)


def chapters_of(num_chapters: int, seed: int, visit: int, count: int) -> list[int]:
    """Return the chapters of some visits, in an order of each pass."""
    visits = np.arange(visit, visit + count, dtype=np.int64)
    return [int(chapter) for chapter in windows_of(visits, num_chapters, f"{seed}:chapters")]


def windows_of(numbers: Integers, num_windows: int, stream: str) -> Integers:
    """Return the window of each sample number: one permutation per pass, keyed by the stream's
    name."""
    passes, places = np.divmod(numbers, num_windows)
    windows = np.empty_like(places)
    for number in range(int(passes.min()), int(passes.max()) + 1):
        of_pass = passes == number
        keys = round_keys(stream, number)
        windows[of_pass] = permuted(places[of_pass], count=num_windows, keys=keys)
    return windows


def permuted(places: Integers, *, count: int, keys: tuple[int, ...]) -> Integers:
    """Permute places within 0 ... count - 1, each by itself: nothing is shuffled or stored.

    A Feistel network over the next even power of two, repeated until the result is in range (Black
    and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    values = places.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        walking = values[outside]
        left, right = walking >> shift, walking & mask
        for key in keys:
            left, right = right, left ^ (scrambled(right + np.uint64(key)) & mask)
        values[outside] = (left << shift) | right
        outside = values >= count
    return values.astype(np.int64)


def scrambled(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser: every input bit affects every output bit. Wraps on purpose."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=8)
def round_keys(stream: str, pass_number: int) -> tuple[int, ...]:
    """Return the keys of one pass's permutation."""
    digests = (
        hashlib.sha256(f"{stream}:{pass_number}:{i}".encode()).digest()
        for i in range(PERMUTATION_ROUNDS)
    )
    return tuple(int.from_bytes(digest[:8], "big") for digest in digests)
