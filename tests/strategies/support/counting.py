"""What forked ranks run to count what they send. Loaded by ranks.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.planner import Plan
from strategies.plan.run_directory import RunDirectory
from strategies.plan.spec import TrainSpec
from strategies.train.engine import Batch, Engine, engine_for
from strategies.train.init import Source
from strategies.train.main import run
from strategies.train.mesh import Mesh

Numbers = Sequence[Any]
SENT = {  # of the bytes that it is given or gives, the share that one of N ranks sends on a ring
    "allreduce_": lambda n: 2 * (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_reduce_": lambda n: 2 * (n - 1) / n,
    "_allgather_base_": lambda n: n - 1,
    "all_gather_into_tensor": lambda n: n - 1,
    "_reduce_scatter_base_": lambda n: (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "alltoall_base_": lambda n: (n - 1) / n,
    "all_to_all_single": lambda n: (n - 1) / n,
    "send": lambda n: 1,
}
INPUT_AT = {"_allgather_base_": 1, "_reduce_scatter_base_": 1, "alltoall_base_": 1}


class Sent(TorchDispatchMode):
    """Adds up what this rank hands to collectives; all groups have `ranks` ranks."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.num_bytes, self.calls = ranks, 0.0, dict[str, int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Numbers = (), kwargs: Any = None
    ) -> Any:
        space, name = func._schema.name.split("::")
        if space in ("c10d", "_c10d_functional") and name in SENT:
            given = args[INPUT_AT.get(name, 0)]
            tensors = given if isinstance(given, list) else [given]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.num_bytes += SENT[name](self.ranks) * size
            self.calls[name] = self.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


class Watched:
    """An engine whose second step is counted."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine, self.path, self.steps = engine, path, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        self.engine.setup(spec, plan, mesh, source)
        self.sent, self.rank = Sent(mesh.world_size), mesh.rank

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        if self.steps != 2:
            return self.engine.forward_backward(micro_batches, divisor)
        with self.sent:
            return self.engine.forward_backward(micro_batches, divisor)

    def step(self, learning_rate: float) -> None:
        if self.steps != 2:
            return self.engine.step(learning_rate)
        with self.sent:
            self.engine.step(learning_rate)
        told = {"num_bytes": self.sent.num_bytes, "calls": self.sent.calls}
        (self.path / f"sent-{self.rank}.json").write_text(json.dumps(told))


def count(run_dir: str) -> int:
    """One rank of a run, by its plan.json."""
    directory = RunDirectory(Path(run_dir))
    run_plan = directory.read_plan()
    torch.set_num_threads(1)
    watched: Any = Watched(engine_for(run_plan.plan), directory.path)
    return run(run_plan, directory.path, engine=watched)
