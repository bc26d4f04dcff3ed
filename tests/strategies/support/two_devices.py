"""Engines on a device of fake tensors beside the host, without an accelerator. Not a test.

Loaded by ranks.py, because a device that Python defines stays registered in its process; every case
returns an exit code. An operation that mixes devices raises as it would on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.pipelining.stage import InferenceMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from strategies.plan.planner import Plan, plan
from strategies.plan.run_directory import Action
from strategies.plan.spec import TrainSpec
from strategies.train import init
from strategies.train.engine import Batch, Engine, engine_for
from strategies.train.engines.zero import ZeroEngine
from strategies.train.init import seed_of
from strategies.train.mesh import Mesh
from strategies.train.models.loss import token_loss_sum
from strategies.train.parallel import ddp
from strategies.train.step import add_up
from tests.strategies.support.fake_ranks import fake_ranks
from tests.strategies.support.training_runs import HARDWARE, make_spec

HOST = torch.device("cpu")
FAKE = "cpu:fake,pretend:fake"


class OneDeviceForEach(TorchDispatchMode):
    """Refuses lists of tensors with a scalar tensor of another device, as CUDA's kernels do.

    Fake tensors check every other operation themselves.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "_foreach_" in str(function) and len(args) > 1 and isinstance(args[1], Tensor):
            for tensor in args[0]:
                if (
                    args[1].device not in (HOST, tensor.device)
                    or tensor.device != args[0][0].device
                ):
                    raise AssertionError(f"{function} of {tensor.device} and {args[1].device}")
        return function(*args, **(kwargs or {}))


@contextmanager
def second_device() -> Iterator[torch.device]:
    """Yield a device whose tensors have no numbers."""
    _setup_privateuseone_for_python_backend("pretend")
    module = torch.get_device_module("pretend")
    for name in ("Stream", "Event", "stream", "current_stream"):  # which do nothing
        setattr(module, name, getattr(torch.cpu, name))
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.get_rng_state = module.set_rng_state = lambda *_: None  # nothing is drawn
    nn.Module.to_empty = to_empty  # type: ignore[method-assign, assignment]
    init.compute_local_shape_and_global_offset = with_numbers(
        init.compute_local_shape_and_global_offset
    )
    ddp.DistributedDataParallel = Unreduced
    _PipelineSchedule._warmup_p2p = with_given_shapes  # type: ignore[method-assign]
    with FakeTensorMode(allow_non_fake_inputs=True), OneDeviceForEach():
        yield torch.device("pretend", 0)


def to_empty(self: nn.Module, *, device: torch.device, recurse: bool = True) -> nn.Module:
    """Replace parameters; torch's own swaps them in place, which fake ones do not support."""
    for module in self.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                empty = torch.empty_like(parameter, device=device)
                module._parameters[name] = nn.Parameter(empty, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = (
                None if buffer is None else torch.empty_like(buffer, device=device)
            )
    return self


def with_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch's that asks tensors of its own for their numbers."""

    def call(*arguments: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments)

    return call


def with_given_shapes(self: Any, stages: list[Any], *_: Any) -> None:
    """Take the stages' shapes as they were given; torch lets the ranks vote, by numbers."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class Unreduced(nn.Module):
    """DistributedDataParallel without its reducer, which reads numbers in C++."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    def no_sync(self) -> nullcontext[None]:
        return nullcontext()


def planned(*, ranks: int = 1, **changes: Any) -> tuple[TrainSpec, Plan]:
    spec = make_spec(model__name="llama", model__layers=2, model__kv_heads=2, **changes)
    found = plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE)
    assert found.runnable, found.problems
    return spec, found


def take_steps(engine: Engine, batch: Batch, mesh: Mesh) -> None:
    """Call every method of an engine as the loop does.

    A fake tensor raises if its number is asked for, so nothing here waits for the device.
    """
    for last in (engine.skip, lambda: engine.step(1e-3)):
        share = engine.forward_backward([batch, batch], 3.0)
        norm = engine.clip(1.0, 2.0)
        assert norm.device == batch.inputs_BT.device
        assert add_up(share, norm, Action.STOP, mesh).device == norm.device
        last()
    engine.load(engine.state())
    assert engine.held().optimizer > 0
    engine.evaluate(batch, token_loss_sum)


def whole_steps(changes: list[dict[str, Any]]) -> int:
    """Steps of engines whose update is torch's."""
    with second_device() as device:
        for each in changes:
            spec, found = planned(**each)
            engine, tokens = engine_for(found), torch.zeros(2, 48, dtype=torch.int64, device=device)
            mesh = Mesh(found.layout, 0, device)
            engine.setup(spec, found, mesh, seed_of(spec))
            take_steps(engine, Batch(tokens, tokens), mesh)
    return 0


def steps_of_many(changes: list[dict[str, Any]]) -> int:
    """Steps of one of two ranks, whose group carries nothing."""
    with second_device() as device, fake_ranks(2, backend=FAKE):
        for each in changes:
            spec, found = planned(ranks=2, **each)
            engine, tokens = engine_for(found), torch.zeros(2, 48, dtype=torch.int64, device=device)
            mesh = Mesh(found.layout, 0, device)
            with unset_fake_temporarily():  # a mesh is made of numbers
                assert mesh.device_mesh.size() == 2
            engine.setup(spec, found, mesh, seed_of(spec))
            take_steps(engine, Batch(tokens, tokens), mesh)
    return 0


def clips_of_zero(changes: list[dict[str, Any]]) -> int:
    """Clipping of DeepSpeed's gradients on the host, with the norm on the device of the rank, and
    loading.

    Not its step: it asks the norm for its number, and stage 3 changes the data of real weights.
    """
    engines = []
    for each in changes:
        spec, found = planned(**each)
        engine = ZeroEngine()
        engine.setup(spec, found, Mesh(found.layout, 0, HOST), seed_of(spec))
        tokens = torch.zeros(found.micro_batch_size, 48, dtype=torch.int64)
        engine.forward_backward([Batch(tokens, tokens)], 3.0)
        engines.append(engine)
    with second_device() as device:
        for engine in engines:
            engine.mesh = replace(engine.mesh, device=device)
            norm = engine.clip(1.0, 2.0)
            assert norm.device == device
            assert engine.clipped_by.device == device
            swapped, engine.is_swapped = engine.is_swapped, lambda i: True  # type: ignore[method-assign]
            for i, row in enumerate(engine.rows()):
                row.grad = torch.zeros_like(row)
                engine.clip_row(i, norm)
            engine.is_swapped = swapped  # type: ignore[method-assign]
            engine.load(engine.state())
    return 0
