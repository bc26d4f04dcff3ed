"""One rank's share of the data, as batches.

Samples are numbered 0, 1, 2, ... over the whole run; `sampling` maps each number to a window. A
step takes the next global_batch_size numbers; a rank takes its slice of them by coordinate. Nothing
depends on the number of ranks, unless the spec asks for a sampling that does.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from strategies.plan.built_in.datasets import BUILT_IN, DatasetFormat, prepare
from strategies.plan.data.corpus import open_corpus
from strategies.plan.data.images import Images, open_images
from strategies.plan.data.mixture import MixedWindows
from strategies.plan.data.reading import BadData, shards_of
from strategies.plan.data.streamed import StreamedWindows, is_streamed, open_stream
from strategies.plan.data.tokens import Integers
from strategies.plan.data.windows import TokenWindows, Windows, cut
from strategies.plan.layout import Layout
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import DataSpec, TrainSpec
from strategies.plan.words import counted
from strategies.train.data.sampling import EXPECTED, Mark, Order, StreamOrder, chapters_of
from strategies.train.engine import Batch
from strategies.train.models.loss import IGNORED
from strategies.train.transfer import to_device

__all__ = ["BadData", "HeldOut", "TrainingData", "Windows", "open_windows", "prepare"]

AHEAD = 4096  # samples whose windows are computed together: one at a time costs 50 us each


def open_windows(
    run_plan: RunPlan, cache_dir: Path, tell: Callable[[str], None] = lambda _: None
) -> Windows:
    """Open the dataset of a run; `tell` hears what takes long.

    Raises BadData, with the numbers, if it cannot be trained on.
    """
    spec, format = run_plan.spec.data, run_plan.dataset_format
    if run_plan.dataset_path is not None:
        path = Path(run_plan.dataset_path)
    else:
        try:
            path = prepare(spec.dataset, cache_dir)
            format = BUILT_IN[spec.dataset]
        except ValueError as error:
            raise BadData(str(error)) from error
    try:
        if not any(shard.stat().st_size for shard in shards_of(path)):
            raise BadData(f"dataset {spec.dataset} is empty (0 bytes)")
        require_readable(run_plan.spec, format)
        if format == "npz":
            return open_images(path, spec, cache_dir)
        tokens_of = run_plan.tokenizer_path or run_plan.model_path
        checkpoint = None if tokens_of is None else Path(tokens_of)
        if is_streamed(spec, format, path):
            seed = run_plan.spec.training.seed
            return open_stream(
                *(path, format, spec, cache_dir, checkpoint),
                expected=lambda num_chapters: chapters_of(num_chapters, seed, 0, EXPECTED),
            )
        windows = corpus_windows(run_plan, path, format, spec, cache_dir, checkpoint, tell)
        if not spec.mixture:
            return windows
        parts = [windows]
        for told, one in zip(spec.mixture, run_plan.mixture, strict=True):
            own = spec.model_copy(update={"dataset": told.dataset})
            path = Path(one.path)
            parts.append(
                corpus_windows(run_plan, path, one.format, own, cache_dir, checkpoint, tell)
            )
        others = [part.share for part in spec.mixture]
        return MixedWindows(parts, [1 - sum(others), *others])
    except OSError as error:
        raise BadData(f"dataset {spec.dataset} cannot be read: {error}") from error


def corpus_windows(
    run_plan: RunPlan,
    path: Path,
    format: DatasetFormat,
    spec: DataSpec,
    cache_dir: Path,
    checkpoint: Path | None,
    tell: Callable[[str], None],
) -> TokenWindows:
    """Return the windows of one dataset of a run."""
    whole_bytes = int(run_plan.whole_tokens_gib * (1 << 30))
    corpus = open_corpus(
        path, format, spec, cache_dir, checkpoint, whole_bytes=whole_bytes, tell=tell
    )
    return cut(corpus, spec)


def require_readable(spec: TrainSpec, format: DatasetFormat) -> None:
    """Raise BadData if a model of text is given images, or a model of images text."""
    if spec.model.name.reads_images != (format == "npz"):
        holds, reads = ("images", "text") if format == "npz" else ("text", "images")
        raise BadData(
            f"dataset {spec.data.dataset} holds {holds}, but {spec.model.name} reads {reads}"
        )


class TrainingData:
    """One rank's share of each step's samples."""

    def __init__(
        self, windows: Windows, run_plan: RunPlan, *, batch_rank: int, device: torch.device
    ) -> None:
        spec, plan = run_plan.spec, run_plan.plan
        self.windows, self.device = windows, device
        self.global_batch = plan.global_batch_size
        self.order: Order | StreamOrder
        if isinstance(windows, StreamedWindows):
            self.order = StreamOrder(windows, spec.training.seed)
        else:
            self.order = order_of(windows, run_plan)
        self.ahead, self.ahead_from = np.empty(0, dtype=np.int64), 0
        self.prepared: tuple[int, list[Batch], int] | None = None
        self.time_s = 0.0
        """Time that it took to read the last step's samples."""
        self.own = own_numbers(
            plan.layout, batch_rank, plan.micro_batch_size, plan.gradient_accumulation_steps
        )

    def step(self, samples_seen: int) -> tuple[list[Batch], int]:
        """Return this rank's micro-batches of the next step, and the valid tokens of all ranks."""
        self.prepare(samples_seen)
        assert self.prepared is not None
        (_, batches, valid_tokens), self.prepared = self.prepared, None
        return batches, valid_tokens

    def prepare(self, samples_seen: int) -> None:
        """Read the samples of a step before `step` is asked for them."""
        if self.prepared is not None and self.prepared[0] == samples_seen:
            return
        began = time.perf_counter()
        starts, lengths = self.windows.bounds(self.next_windows(samples_seen))
        valid_tokens = int(self.windows.num_labels(starts, lengths).sum())
        batches = [read(self.windows, starts[own], lengths[own], self.device) for own in self.own]
        self.prepared = samples_seen, batches, valid_tokens
        self.time_s = time.perf_counter() - began

    def begin_at(self, mark: Mark) -> None:
        """Begin a stream at the place of a checkpoint."""
        if isinstance(self.order, StreamOrder):
            self.order.begin_at(mark)

    def mark(self, samples_seen: int) -> Mark | None:
        """Return the place in a stream of which a checkpoint tells; None: it needs none."""
        return self.order.mark(samples_seen) if isinstance(self.order, StreamOrder) else None

    def next_windows(self, samples_seen: int) -> Integers:
        """Return the windows of all ranks' samples of one step; computed for many steps at once."""
        place = samples_seen - self.ahead_from
        if isinstance(self.order, StreamOrder):  # those of later steps may not be counted
            return self.order.windows(samples_seen, self.global_batch)
        if not 0 <= place <= len(self.ahead) - self.global_batch:
            steps = -(-AHEAD // self.global_batch)
            self.ahead = self.order.windows(samples_seen, steps * self.global_batch)
            self.ahead_from, place = samples_seen, 0
        return self.ahead[place : place + self.global_batch]


def order_of(windows: Windows, run_plan: RunPlan) -> Order:
    """Return the order of a dataset whose windows are all known.

    Raises BadData if a rank has no part of its own.
    """
    spec, plan = run_plan.spec, run_plan.plan
    order = Order(
        sampling=spec.data.sampling,
        num_windows=windows.num_train,
        seed=spec.training.seed,
        batch_degree=plan.layout.batch_degree,
        micro_batch_size=plan.micro_batch_size,
    )
    if min(order.windows_seen_by(rank)[1] for rank in range(plan.layout.batch_degree)) < 1:
        raise BadData(
            f"dataset {spec.data.dataset} has {counted(windows.num_train, 'window')} to train "
            f"on, too few to give each of {plan.layout.batch_degree} data-parallel ranks its "
            "own part"
        )
    return order


class HeldOut:
    """One rank's share of the held-out windows; of many, an evenly spaced selection.

    Every rank gets the same number of batches: missing samples are padding without a label.
    """

    def __init__(
        self, windows: Windows, run_plan: RunPlan, *, batch_rank: int, device: torch.device
    ) -> None:
        plan = run_plan.plan
        count = min(windows.num_held_out, windows.most_evaluated)
        spread = np.arange(count, dtype=np.int64) * windows.num_held_out // max(1, count)
        starts, lengths = windows.bounds(windows.num_train + spread)
        self.valid_tokens = int(windows.num_labels(starts, lengths).sum())
        per_round = plan.layout.batch_degree * plan.micro_batch_size
        padding = -count % per_round
        starts, lengths = np.pad(starts, (0, padding)), np.pad(lengths, (0, padding))
        rounds = np.arange(count + padding).reshape(
            -1, plan.layout.batch_degree, plan.micro_batch_size
        )
        self.batches = [
            read(windows, starts[own], lengths[own], device) for own in rounds[:, batch_rank]
        ]


def own_numbers(
    layout: Layout, batch_rank: int, micro_batch_size: int, accumulation: int
) -> list[Integers]:
    """Return the positions of one rank's samples within a step, one array per micro-batch."""
    places = np.arange(accumulation * layout.batch_degree * micro_batch_size, dtype=np.int64)
    return list(places.reshape(accumulation, layout.batch_degree, micro_batch_size)[:, batch_rank])


def read(windows: Windows, starts: Integers, lengths: Integers, device: torch.device) -> Batch:
    """Return inputs and labels of the given windows; a window of length 0 is padding."""
    if isinstance(windows, Images):
        return read_images(windows, starts, lengths, device)
    assert isinstance(windows, TokenWindows)
    return read_batch(windows, starts, lengths, device)


def read_images(
    images: Images, numbers: Integers, lengths: Integers, device: torch.device
) -> Batch:
    """Return pixels (B, 1, P), float32, and labels (B, 1), int64."""
    labels = np.where(lengths > 0, images.labels[numbers].astype(np.int64), IGNORED)
    pixels_B1P = torch.from_numpy(images.inputs(numbers))
    return Batch(
        to_device(pixels_B1P, device), to_device(torch.from_numpy(labels).unsqueeze(1), device)
    )


def read_batch(
    windows: TokenWindows, starts: Integers, lengths: Integers, device: torch.device
) -> Batch:
    """Return inputs and labels (B, T), int64, with document numbers where windows hold several.

    Positions behind a window's end, first tokens of a document, and tokens that are not learned get
    no label (IGNORED).
    """
    offsets = np.arange(windows.length + 1)
    behind = offsets >= lengths[:, None]
    places = np.where(behind, 0, starts[:, None] + offsets)
    tokens = torch.from_numpy(windows.tokens[places].astype(np.int64))
    documents = windows.documents(places)
    no_label, documents_BT = behind[:, 1:], None
    if windows.learned is not None:
        no_label = no_label | ~windows.learned[places[:, 1:]]
    if documents is not None:
        no_label = no_label | (documents[:, 1:] != documents[:, :-1])
        documents_BT = to_device(torch.from_numpy(documents[:, :-1].copy()), device)
    labels_BT = tokens[:, 1:]
    if no_label.any():
        labels_BT = labels_BT.masked_fill(torch.from_numpy(no_label), IGNORED)
    return Batch(to_device(tokens[:, :-1], device), to_device(labels_BT, device), documents_BT)
