"""What forked ranks run to weigh a run: the most bytes that it holds at a time, by the allocator's
own count. Loaded by ranks.py.

Torch's memory events would miss what is freed on a communication thread; resident memory counts
what was freed long ago.
"""

import ctypes
import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.engine import Batch, Engine, engine_for
from strategies.init import Source
from strategies.parallel.mesh import Mesh
from strategies.planning.planner import Plan
from strategies.run_directory import RunDirectory
from strategies.spec import TrainSpec
from strategies.train import run

STEPS = 3  # the second one has all states; the third looks as the second


class MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = MallInfo


def in_use() -> int:
    """Bytes that this process has from malloc now, on all threads."""
    info = LIBC.mallinfo2()
    return int(info.uordblks + info.hblkhd)


class Highest(TorchDispatchMode):
    """Looks after every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.num_bytes = max(self.num_bytes, in_use())
        return result


class Weighed:
    """An engine whose last step is weighed, against the moment before its setup."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine, self.path, self.steps = engine, path, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        gc.collect()
        self.rank, self.before, self.highest = mesh.rank, in_use(), Highest()
        self.engine.setup(spec, plan, mesh, source)
        self.after_setup = in_use()

    @contextmanager
    def weighing(self) -> Iterator[None]:
        if self.steps < STEPS - 1:
            yield
            return
        with self.highest:
            yield

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.at_begin = in_use()
        with self.weighing():
            return self.engine.forward_backward(micro_batches, divisor)

    def step(self, learning_rate: float) -> None:
        with self.weighing():
            self.engine.step(learning_rate)
        self.steps += 1
        if self.steps == STEPS:
            # Libraries take memory of their own in the first steps; what was set up is held.
            held = self.after_setup - self.before
            told = {"num_bytes": held + self.highest.num_bytes - self.at_begin}
            (self.path / f"weight-{self.rank}.json").write_text(json.dumps(told))


def weigh(run_dir: str) -> int:
    """One rank of a run, by its plan.json."""
    directory = RunDirectory(Path(run_dir))
    run_plan = directory.read_plan()
    torch.set_num_threads(1)
    weighed: Any = Weighed(engine_for(run_plan.plan), directory.path)
    return run(run_plan, directory.path, engine=weighed)
