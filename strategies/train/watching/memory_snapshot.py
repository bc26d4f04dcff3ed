"""Contents of a rank's memory, on request: four moments of a step, and the largest tensors by name.

On a GPU also every allocation of that step with its place in the code, in torch's own format: open
the .pickle on https://pytorch.org/memory_viz.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.train.engine import State
from strategies.train.gradients import own_part

MOST_TENSORS = 100
MOST_ALLOCATIONS = 100_000  # that torch keeps of the step on a GPU


class LiveTensor(BaseModel):
    """A tensor's storage on this rank."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """"weights", "optimizer" or "rest" (inputs, buffers and all other tensors)."""
    name: str
    """Global name of a weight or of its optimizer state; for the rest, the tensor's shape."""
    dtype: str
    bytes: int


class Snapshot(BaseModel):
    """Content of memory-step-*-rank-*.json."""

    model_config = ConfigDict(frozen=True)

    step: int
    """Step after which the tensors were counted."""
    rank: int
    device: str
    phases: dict[str, float]
    """GiB by moment and kind, as in metrics.jsonl."""
    tensors: list[LiveTensor]
    """Largest tensors, in descending order of size."""


class MemorySnapshots:
    """Writer of a memory snapshot of the step after a request."""

    def __init__(
        self, artifacts: Path, state: Callable[[], State], *, rank: int, device: torch.device
    ) -> None:
        self.artifacts, self.state = artifacts, state
        self.rank, self.device = rank, device
        self.is_due = False

    def start(self) -> None:
        """Request a snapshot of the next step; on a GPU also start to record allocations."""
        self.is_due = True
        if self.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)

    def after_step(self, step: int, seen: dict[str, float]) -> Path | None:
        """Write the requested snapshot and return its path; None if none was requested.

        `seen` holds what the probe measured in this step.
        """
        if not self.is_due:
            return None
        self.is_due = False
        path = self.artifacts / f"memory-step-{step:06d}-rank-{self.rank}.json"
        snapshot = Snapshot(
            step=step,
            rank=self.rank,
            device=str(self.device),
            phases={key: value for key, value in seen.items() if key.endswith("_gib")},
            tensors=largest(live_tensors(self.state())),
        )
        write_atomically(path, json_bytes(snapshot))
        if self.device.type == "cuda":
            torch.cuda.memory._dump_snapshot(  # type: ignore[no-untyped-call]
                str(path.with_suffix(".pickle"))
            )
            torch.cuda.memory._record_memory_history(enabled=None)
        return path


def live_tensors(state: State) -> Iterator[LiveTensor]:
    """Yield each storage once: those of the state by name, then all others known to Python."""
    known: set[int] = set()
    for part, kind in (("model", "weights"), ("optimizer", "optimizer")):
        for name, tensor in state.get(part, {}).items():
            yield from described(own_part(tensor), kind, name, known)
    for found in gc.get_objects():
        if type(found) in (Tensor, torch.nn.Parameter):
            yield from described(found, "rest", str(tuple(found.shape)), known)


def described(tensor: Tensor, kind: str, name: str, known: set[int]) -> Iterator[LiveTensor]:
    """Yield the tensor's storage unless it is already known, empty, or has no memory of its own."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return
    storage = tensor.untyped_storage()
    if storage.nbytes() and storage.data_ptr() not in known:
        known.add(storage.data_ptr())
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield LiveTensor(kind=kind, name=name, dtype=dtype, bytes=storage.nbytes())


def largest(tensors: Iterator[LiveTensor]) -> list[LiveTensor]:
    """Return the MOST_TENSORS largest tensors in descending order of size."""
    return sorted(tensors, key=lambda one: -one.bytes)[:MOST_TENSORS]
