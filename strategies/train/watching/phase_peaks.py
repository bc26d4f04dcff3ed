"""Highest memory of a rank in each phase of the first steps, beside the plan.

For a run that its plan says does not fit. It is written down as it grows, so that a rank that is
killed for its memory has told how far it came. Such a run is slowed down for a few steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.durable_files import json_bytes
from strategies.plan.estimates.memory import GIB, MemoryPhase
from strategies.plan.planner import Plan
from strategies.plan.run_directory import RankMemory
from strategies.train.mesh import Mesh
from strategies.train.watching.phases import Phase, listeners
from strategies.train.watching.scales import WEIGHED_STEP, malloc_of_this_process

WORTH_WRITING = 1.01  # growth since the last time
NAMES: dict[Phase, MemoryPhase] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


class PhasePeaks:
    """Watch over the memory of one rank's set-up and first steps; idle if the plan fits."""

    def __init__(self, path: Path, plan: Plan, mesh: Mesh) -> None:
        self.path, self.plan, self.mesh = path, plan, mesh
        self.is_on = not plan.fits
        self.step = -1
        self.phase: MemoryPhase = "setup"
        self.used: dict[MemoryPhase, float] = {}
        self.written = 0.0
        self.before_reset_gib = 0.0
        """Highest use of a GPU before its count was last reset."""
        is_cpu = mesh.device.type == "cpu"
        self.malloc = malloc_of_this_process() if self.is_on and is_cpu else None
        self.at_begin = 0 if self.malloc is None else self.malloc.in_use()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the set-up and every step."""
        self.step += 1
        if not self.is_on or self.step > WEIGHED_STEP:
            yield
            return
        listeners.append(self.enter)
        try:
            with self.every_operation():
                yield
        finally:  # also if memory ran out
            listeners.remove(self.enter)
            self.note()
            self.write()

    def every_operation(self) -> "EveryOperation | nullcontext[None]":
        """Return a context in which a CPU's memory is read after every operation.

        Operations of compiled layers are not seen one by one, and a GPU's allocator keeps count.
        """
        if self.malloc is None or self.plan.compiles:
            return nullcontext()
        return EveryOperation(self)

    def enter(self, phase: Phase, begins: bool) -> None:
        """Begin a phase, as a listener; the time until the next one counts as part of it."""
        if not begins:
            return
        self.note()
        if self.mesh.device.type == "cuda":
            self.before_reset_gib = max(self.before_reset_gib, max(self.used.values()))
            torch.cuda.reset_peak_memory_stats(self.mesh.device)
        self.phase = NAMES[phase]
        self.write()

    def note(self) -> None:
        """Read the memory in use, and write it down if it has grown."""
        if self.malloc is not None:
            now = (self.malloc.in_use() - self.at_begin) / GIB
        elif self.mesh.device.type == "cuda":
            now = torch.cuda.max_memory_allocated(self.mesh.device) / GIB
        else:
            return
        self.used[self.phase] = max(self.used.get(self.phase, 0.0), now)
        if now > self.written * WORTH_WRITING:
            self.write()

    def write(self) -> None:
        """Replace the file of this rank; it need not survive the node."""
        self.written = max(self.used.values(), default=0.0)
        stages = self.plan.needed_by_phase_gib
        found = RankMemory(
            rank=self.mesh.rank,
            step=self.step,
            phase=self.phase,
            planned_gib=stages[min(self.mesh.at.pipeline, len(stages) - 1)] if stages else {},
            used_gib=self.used,
        )
        aside = self.path.with_suffix(".tmp")
        aside.write_bytes(json_bytes(found))
        aside.replace(self.path)


class EveryOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode in which the memory is noted after every operation."""

    def __init__(self, peaks: PhasePeaks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks = peaks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.peaks.note()
        return result
