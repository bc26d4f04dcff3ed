"""The data: windows of a text, in an order that only seed, pass and sample number decide.

Samples are numbered 0, 1, 2, ... over the whole run. Sample n is window p(n mod W) of pass n // W,
where p is a permutation of the W training windows keyed by (seed, pass). A step takes the next
global_batch_size numbers; a rank takes its slice of them by coordinate. Nothing depends on how
many ranks there are, so a run may go on with another number of them.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from strategies.engine import Batch
from strategies.layout import Layout
from strategies.loss import IGNORED
from strategies.run_directory import RunPlan
from strategies.spec import DataSpec
from strategies.stdlib_text import prepare

__all__ = ["BadData", "HeldOut", "TrainingData", "open_windows", "prepare"]

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PERMUTATION_ROUNDS = 6
AHEAD = 4096  # samples whose windows are worked out together: one at a time costs 50 us each
LARGEST_EVALUATION = 256  # windows; about a second on two cores with the demo's model


class BadData(Exception):
    """A dataset that cannot be trained on."""


class Windows(Protocol):
    """A text cut into windows of at most sequence_length + 1 bytes: inputs, and labels shifted."""

    text: Bytes
    num_train: int
    num_held_out: int  # these come after the training windows

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        """First byte, and number of bytes, of each window."""


class TextWindows:
    """One file, cut every sequence_length bytes; its end is held out."""

    def __init__(self, path: Path, spec: DataSpec) -> None:
        size = path.stat().st_size
        window = spec.sequence_length + 1
        parts = 2 if spec.held_out else 1
        if size < parts * window:
            raise BadData(
                f"dataset {spec.dataset} has {size} bytes; sequence_length "
                f"{spec.sequence_length} needs at least {parts * window} "
                f"({parts} window(s) of {window})"
            )
        self.text: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.length = spec.sequence_length
        held_out = max(window, round(size * spec.held_out)) if spec.held_out else 0
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


class DocumentWindows:
    """JSON lines with a "text" each; windows never cross documents, so the last of each is short.

    The last documents are held out. The whole text is kept in memory.
    """

    def __init__(self, path: Path, spec: DataSpec) -> None:
        documents = read_documents(path)
        self.text: Bytes = np.frombuffer(b"".join(documents), dtype=np.uint8)
        starts, lengths, before = [], [], 0
        windows_until = []
        for document in documents:
            for start in range(0, len(document) - 1, spec.sequence_length):
                starts.append(before + start)
                lengths.append(min(spec.sequence_length + 1, len(document) - start))
            before += len(document)
            windows_until.append(len(starts))
        self.starts: Integers = np.array(starts, dtype=np.int64)
        self.lengths: Integers = np.array(lengths, dtype=np.int64)
        trained_on = len(documents)
        if spec.held_out:
            trained_on -= max(1, round(len(documents) * spec.held_out))
        self.num_train = windows_until[trained_on - 1] if trained_on > 0 else 0
        self.num_held_out = len(starts) - self.num_train
        if self.num_train == 0 or (spec.held_out and self.num_held_out == 0):
            raise BadData(
                f"dataset {spec.dataset} has {len(documents)} documents of {before} bytes: "
                f"{self.num_train} samples to train on and {self.num_held_out} held out; "
                f"at least 1 {'of each ' if spec.held_out else ''}is needed"
            )

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        return self.starts[windows], self.lengths[windows]


def open_windows(run_plan: RunPlan, cache_dir: Path) -> Windows:
    """The dataset of a run; BadData, with the numbers, where it cannot be trained on."""
    spec = run_plan.spec.data
    if run_plan.dataset_path is not None:
        path = Path(run_plan.dataset_path)
    else:
        try:
            path = prepare(spec.dataset, cache_dir)
        except ValueError as error:
            raise BadData(str(error)) from error
    try:
        if path.stat().st_size == 0:
            raise BadData(f"dataset {spec.dataset} is empty (0 bytes)")
        if run_plan.dataset_format == "jsonl":
            return DocumentWindows(path, spec)
        return TextWindows(path, spec)
    except OSError as error:
        raise BadData(f"dataset {spec.dataset} cannot be read: {error}") from error


def read_documents(path: Path) -> list[bytes]:
    """The "text" of every line, as bytes; BadData names the line that has none."""
    documents = []
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
            documents.append(text.encode("utf-8", errors="surrogatepass"))
    return documents


class TrainingData:
    """One rank's share of each step's samples."""

    def __init__(
        self, windows: Windows, run_plan: RunPlan, *, batch_rank: int, device: torch.device
    ) -> None:
        spec, plan = run_plan.spec, run_plan.plan
        self.windows, self.device = windows, device
        self.seed, self.length = spec.training.seed, spec.data.sequence_length
        self.global_batch = plan.global_batch_size
        self.ahead, self.ahead_from = np.empty(0, dtype=np.int64), 0
        self.own = own_numbers(
            plan.layout, batch_rank, plan.micro_batch_size, plan.gradient_accumulation_steps
        )

    def step(self, samples_seen: int) -> tuple[list[Batch], int]:
        """This rank's micro-batches of the next step, and the valid tokens of all ranks'."""
        starts, lengths = self.windows.bounds(self.next_windows(samples_seen))
        valid_tokens = int(lengths.sum()) - len(lengths)
        batches = [
            read_batch(self.windows.text, starts[own], lengths[own], self.length, self.device)
            for own in self.own
        ]
        return batches, valid_tokens

    def next_windows(self, samples_seen: int) -> Integers:
        """The windows of all ranks' samples of one step; worked out for many steps at once."""
        place = samples_seen - self.ahead_from
        if not 0 <= place <= len(self.ahead) - self.global_batch:
            numbers = samples_seen + np.arange(max(AHEAD, self.global_batch), dtype=np.int64)
            self.ahead = windows_of(numbers, num_windows=self.windows.num_train, seed=self.seed)
            self.ahead_from, place = samples_seen, 0
        return self.ahead[place : place + self.global_batch]


class HeldOut:
    """One rank's share of the held-out windows, evenly spread ones where there are many.

    Every rank gets the same number of batches: missing samples are padding without a label.
    """

    def __init__(
        self, windows: Windows, run_plan: RunPlan, *, batch_rank: int, device: torch.device
    ) -> None:
        plan = run_plan.plan
        count = min(windows.num_held_out, LARGEST_EVALUATION)
        spread = np.arange(count, dtype=np.int64) * windows.num_held_out // max(1, count)
        starts, lengths = windows.bounds(windows.num_train + spread)
        self.valid_tokens = int(lengths.sum()) - count
        per_round = plan.layout.batch_degree * plan.micro_batch_size
        padding = -count % per_round
        starts, lengths = np.pad(starts, (0, padding)), np.pad(lengths, (0, padding))
        rounds = np.arange(count + padding).reshape(
            -1, plan.layout.batch_degree, plan.micro_batch_size
        )
        length = run_plan.spec.data.sequence_length
        self.batches = [
            read_batch(windows.text, starts[own], lengths[own], length, device)
            for own in rounds[:, batch_rank]
        ]


def own_numbers(
    layout: Layout, batch_rank: int, micro_batch_size: int, accumulation: int
) -> list[Integers]:
    """Which places of a step's samples one rank takes, micro-batch by micro-batch."""
    places = np.arange(accumulation * layout.batch_degree * micro_batch_size, dtype=np.int64)
    return list(places.reshape(accumulation, layout.batch_degree, micro_batch_size)[:, batch_rank])


def read_batch(
    text: Bytes, starts: Integers, lengths: Integers, length: int, device: torch.device
) -> Batch:
    """Inputs and labels (B, T), int64; what lies behind a window's end is ignored."""
    offsets = np.arange(length + 1)
    places = starts[:, None] + offsets
    short = offsets >= lengths[:, None]
    if short.any():
        tokens = torch.from_numpy(text[np.where(short, 0, places)].astype(np.int64))
        ignored = torch.from_numpy(short[:, 1:])
        labels_BT = tokens[:, 1:].masked_fill(ignored, IGNORED)
    else:
        tokens = torch.from_numpy(text[places].astype(np.int64))
        labels_BT = tokens[:, 1:]
    return Batch(tokens[:, :-1].to(device), labels_BT.to(device))


def windows_of(numbers: Integers, *, num_windows: int, seed: int) -> Integers:
    """The training window of each sample number."""
    passes, places = np.divmod(numbers, num_windows)
    windows = np.empty_like(places)
    for number in range(int(passes.min()), int(passes.max()) + 1):
        of_pass = passes == number
        keys = round_keys(seed, number)
        windows[of_pass] = permuted(places[of_pass], count=num_windows, keys=keys)
    return windows


def permuted(places: Integers, *, count: int, keys: tuple[int, ...]) -> Integers:
    """A permutation of 0 ... count - 1, place by place: nothing is shuffled or stored.

    A Feistel network over the next even power of two, walked on until it lands inside (Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002).
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
    """SplitMix64's finaliser: every input bit moves every output bit. Wraps around on purpose."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=8)
def round_keys(seed: int, pass_number: int) -> tuple[int, ...]:
    """The keys of one pass's permutation."""
    digests = (
        hashlib.sha256(f"{seed}:{pass_number}:{i}".encode()).digest()
        for i in range(PERMUTATION_ROUNDS)
    )
    return tuple(int.from_bytes(digest[:8], "big") for digest in digests)
