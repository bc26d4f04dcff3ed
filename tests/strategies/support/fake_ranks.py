"""One rank of many, alone in its process: torch's fake groups carry nothing. Not a test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec
from strategies.train.engine import Batch, Engine, engine_for
from strategies.train.init import seed_of
from strategies.train.mesh import Mesh
from strategies.train.watching.scales import WEIGHED_STEP, Scales
from tests.strategies.support.counting import INPUT_AT, SENT

CPU = torch.device("cpu")
KIND_OF = {
    "allreduce_": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
}


class Collective(NamedTuple):
    """One call of one rank."""

    kind: str
    dtype: torch.dtype
    ranks: int
    numel: int
    """Numbers that the rank hands over."""
    num_bytes: float
    """Bytes that the rank sends on a ring."""


class Recorder(TorchDispatchMode):
    """Records collectives, also those that DTensor and the data-parallel reducer call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # its own dispatch follows, and comes here again
        space, name = func._schema.name.split("::")
        found = func(*args, **(kwargs or {}))
        if space in ("c10d", "_c10d_functional") and name in SENT:
            given = args[INPUT_AT.get(name, 0)]
            tensors = given if isinstance(given, list) else [given]
            numel, ranks = sum(tensor.numel() for tensor in tensors), group_size(args)
            num_bytes = SENT[name](ranks) * numel * tensors[0].element_size()
            kind = KIND_OF.get(name, name)
            self.calls.append(Collective(kind, tensors[0].dtype, ranks, numel, num_bytes))
        if func is torch.ops.c10d.allreduce_.default:
            return found[0], work_with(args[0])
        return found


def group_size(args: Sequence[Any]) -> int:
    """Ranks of the group among a collective's arguments, as an object or, last, by its name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            return dist.ProcessGroup.unbox(argument).size()
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()


def work_with(tensors: list[torch.Tensor]) -> Any:
    """A finished call with its result, which a fake group's lacks and the reducer asks for."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future).boxed()


@contextmanager
def fake_ranks(world_size: int, *, rank: int = 0, backend: str = "fake") -> Iterator[None]:
    """This process as one rank of many."""
    dist.init_process_group(backend, rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def collectives_of_a_step(spec: TrainSpec, plan: Plan, *, rank: int = 0) -> list[Collective]:
    """What a rank calls in its second step: forward, backward, clip, update."""
    with fake_ranks(plan.world_size, rank=rank), Recorder() as recorder:
        engine = engine_for(plan)
        engine.setup(spec, plan, Mesh(plan.layout, rank, CPU), seed_of(spec))
        for _ in range(2):
            recorder.calls.clear()
            take_step(engine, spec, plan)
        engine.close()
    return recorder.calls


def peak_gib(spec: TrainSpec, plan: Plan, *, rank: int = 0) -> float:
    """Most memory of a rank's training, GiB."""
    with fake_ranks(plan.world_size, rank=rank):
        engine, mesh = engine_for(plan), Mesh(plan.layout, rank, CPU)
        assert mesh.device_mesh.size() == plan.world_size  # groups are no part of the training
        scales = Scales(CPU, is_compiled=False)
        engine.setup(spec, plan, mesh, seed_of(spec))
        scales.after_setup()
        for _ in range(WEIGHED_STEP):
            with scales.next_step():
                take_step(engine, spec, plan)
        engine.close()
    assert scales.peak_gib is not None
    return scales.peak_gib


def take_step(engine: Engine, spec: TrainSpec, plan: Plan) -> None:
    """Train on tokens that are all zero."""
    tokens = torch.zeros((plan.micro_batch_size, spec.data.sequence_length), dtype=torch.int64)
    engine.forward_backward([Batch(tokens, tokens)] * plan.gradient_accumulation_steps, 1.0)
    engine.clip(1.0, 1.0)
    engine.step(1e-3)
