"""What forked ranks run in tests, and engines that exist only to test the seam.

Loaded by ranks.py; every case returns an exit code.
"""

import importlib
import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from strategies.plan.layout import Layout
from strategies.plan.run_directory import RunDirectory
from strategies.plan.spec import GradientCompression, Precision
from strategies.train import farewell
from strategies.train import mesh as mesh_module
from strategies.train.checkpoints.checkpoint import Progress, save_checkpoint
from strategies.train.engine import Batch, Engine, HeldBytes, engine_for
from strategies.train.engines.local_sgd import LocalSgdEngine
from strategies.train.engines.pipeline import PipelineEngine
from strategies.train.engines.spmd import SpmdEngine
from strategies.train.engines.zero import ZeroEngine
from strategies.train.fine_tuning.source import source_of
from strategies.train.generate import sample_text
from strategies.train.gradients import own_part
from strategies.train.main import run
from strategies.train.mesh import Mesh, join
from strategies.train.models.attention import attend
from strategies.train.models.loss import IGNORED, token_loss_sum
from strategies.train.parallel.context import ContextAttention
from strategies.train.parallel.ddp import Replication
from strategies.train.trust import collective_digest
from strategies.train.watching.phases import Phase, phase
from strategies.train.watching.probe import Probe
from tests.strategies.support.training_runs import make_run_plan, make_spec


def train_run(run_dir: str, engine: str | None = None) -> int:
    """One rank of a run, by its plan.json; `engine` names a class of this file."""
    make: Callable[[], Engine] | None = None if engine is None else globals()[engine]
    directory = RunDirectory(Path(run_dir))
    return run(directory.read_plan(), directory.path, engine=None if make is None else make())


def meet_late(run_dir: str, meet_s: float | None) -> int:
    """Join, the second rank three seconds after the first, which waits for one, or for `meet_s`."""
    mesh_module.BACKEND_LATER_S = 0.0
    if os.environ["RANK"] == "1":
        time.sleep(3)
    try:
        plan = RunDirectory(Path(run_dir)).read_plan().plan
        join(plan, timeout_s=1.0, meet_s=meet_s).barrier()
    except (RuntimeError, dist.DistError):
        return 7
    return 0


def train_with_short_inquiry(run_dir: str) -> int:
    """train_run, where a rank that is silent is waited for a second only."""
    collective_digest.ANSWER_S = 1.0
    return train_run(run_dir)


def train_in_run_directory(run_dir: str, engine: str | None = None) -> int:
    """train_run, where both launchers start a rank: in the run's own folder."""
    os.chdir(run_dir)
    return train_run(run_dir, engine)


def train_with_bitsandbytes(run_dir: str) -> int:
    """train_run, where the library is there before anything is weighed: it takes 18 MiB."""
    importlib.import_module("bitsandbytes")
    return train_run(run_dir)


def train_without_imports(run_dir: str) -> int:
    """train_run, failing where the run imports anything that was not preloaded."""
    before = set(sys.modules)
    code = train_run(run_dir)
    late = sorted(set(sys.modules) - before)
    if late:
        raise AssertionError(f"imported during the run: {late}")
    return code


def train_with_slow_sample(run_dir: str) -> int:
    """train_run, where rank 0 goes on sampling until rank 1 has left or failed."""
    left = Path(run_dir) / "rank-1-left"

    def sample_slowly(*arguments: Any, **options: Any) -> str:
        while not left.exists():
            time.sleep(0.01)
        return sample_text(*arguments, **options)

    farewell.sample_text = sample_slowly
    code = train_run(run_dir)
    if os.environ["RANK"] == "1":
        left.write_bytes(RunDirectory(Path(run_dir)).result.read_bytes() if code == 0 else b"")
    return code


def train_with_endless_sample(run_dir: str) -> int:
    """train_run, where sampling goes on until a signal ends it."""

    def sample_without_end(*arguments: Any, **options: Any) -> str:
        (Path(run_dir) / "sampling").touch()
        while True:
            signal.pause()

    farewell.sample_text = sample_without_end
    return train_run(run_dir)


def train_with_endless_teardown(run_dir: str, engine: str) -> int:
    """train_run, where destroying the process group waits for ever, as NCCL's kernels may."""
    dist.destroy_process_group = lambda *_: threading.Event().wait()
    return train_run(run_dir, engine)


def train_noting_reads(run_dir: str) -> int:
    """train_run, which notes the files that it reads of checkpoints that are being written."""
    note = Path(run_dir) / f"read-by-{os.environ['RANK']}"

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and ".tmp-" in str(arguments[0]) and not arguments[2] & os.O_WRONLY:
            name = Path(arguments[0]).name
            if name.endswith(".distcp"):
                with note.open("a") as file:
                    file.write(f"{name}\n")

    sys.addaudithook(watch)
    return train_run(run_dir)


class MeanOfMeansEngine(SpmdEngine):
    """The classic mistake: every micro-batch counts the same, however many tokens it has."""

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        (batch,) = micro_batches
        own = (batch.labels_BT != IGNORED).sum()
        loss = (
            token_loss_sum(self.spread.data_parallel.module(batch.inputs_BT), batch.labels_BT) / own
        )
        loss.backward()
        return loss.detach() / self.mesh.world_size


class PoisonedEngine(SpmdEngine):
    """Rank 1 loses a weight to a bit flip before step 3."""

    steps = 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        if self.steps == 3 and dist.get_rank() == 1:
            with torch.no_grad():
                self.model.head.weight[0, 0] = torch.nan  # type: ignore[union-attr, index, operator]
        return super().forward_backward(micro_batches, divisor)


class Ahead:
    """Mixed into an engine: values of a step are read in the next one, as on a GPU."""

    runs_ahead = True


class AheadEngine(Ahead, SpmdEngine):
    """What a GPU runs where the layout has no pipeline."""


class AheadPipelineEngine(Ahead, PipelineEngine):
    """What a GPU runs where it has one."""


class FailingEngine(SpmdEngine):
    """Rank 1 raises in step 2."""

    steps = 0

    def step(self, learning_rate: float) -> None:
        self.steps += 1
        if self.steps == 2 and dist.get_rank() == 1:
            raise ZeroDivisionError("rank 1 was told to fail")
        super().step(learning_rate)


class HangingEngine(SpmdEngine):
    """Rank 1 does not come to step 2; it waits until rank 0 has given up."""

    steps = 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        if self.steps == 2 and dist.get_rank() == 1:
            given_up = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "rank-0/error.json"
            while not given_up.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward_backward(micro_batches, divisor)


class Terminated:
    """Mixed into an engine: the last rank gets a SIGTERM at the end of step 7."""

    steps = 0

    def step(self, learning_rate: float) -> None:
        super().step(learning_rate)  # type: ignore[misc]
        self.steps += 1
        if self.steps == 7 and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            os.kill(os.getpid(), signal.SIGTERM)


class SkippingEngine(SpmdEngine):
    """Rank 1 leaves the reduction of the loss out in step 8, and waits with the others for the
    next collective that it knows of."""

    steps = 0

    def clip(self, max_norm: float, loss_scale: float = 1.0) -> Tensor:
        norm = super().clip(max_norm, loss_scale)
        self.steps += 1
        if self.steps == 8 and dist.get_rank() == 1:
            dist.broadcast(torch.zeros(3), src=0)
        return norm


class SleepingEngine(SpmdEngine):
    """Rank 1 never comes out of step 8; its other threads go on."""

    steps = 0

    def clip(self, max_norm: float, loss_scale: float = 1.0) -> Tensor:
        self.steps += 1
        if self.steps == 8 and dist.get_rank() == 1:
            threading.Event().wait()
        return super().clip(max_norm, loss_scale)


class TerminatedEngine(Terminated, SpmdEngine):
    """Stopped after 8 steps."""


class TerminatedAheadEngine(Ahead, Terminated, SpmdEngine):
    """Stopped after 9 steps: a request is agreed on in step 8, and read in the next one."""


class HungryEngine(SpmdEngine):
    """Asks for more memory than any machine has."""

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        return torch.ones(2**56, dtype=torch.uint8).sum()


CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def save_and_die(run_dir: str, die_at: int) -> int:
    """Save step 1, then step 2 with SIGKILL at the `die_at`-th change of the disk; 0: survived.

    The file system is watched through Python's audit events, so no code of ours is replaced.
    """
    directory = RunDirectory(Path(run_dir))
    run_plan = directory.read_plan()
    directory.checkpoints.mkdir()
    mesh = join(run_plan.plan, timeout_s=10)
    engine = engine_for(run_plan.plan)
    engine.setup(run_plan.spec, run_plan.plan, mesh, source_of(run_plan))

    def save(step: int) -> None:
        with torch.no_grad():
            for tensor in engine.state()["model"].values():
                tensor.fill_(step)
        progress = Progress(step=step, samples_seen=8 * step, tokens_seen=100 * step)
        save_checkpoint(
            directory.checkpoints, engine.state(), progress, run_plan.spec, mesh, token=str(step)
        )

    save(1)
    changes = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if event == "open":
            path, _, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) and str(path).startswith(run_dir)
        else:
            writes = event in CHANGES
        if writes:
            changes += 1
            if changes == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    save(2)
    return 0


def attend_across_ranks(ulysses_degree: int) -> int:
    """Attention over the tokens of all ranks, against torch's own over the whole sample.

    Output and gradients, with each number of key heads, with documents told apart and not; and
    computed twice in the backward pass, as activation checkpointing does.
    """
    dist.init_process_group("gloo")
    degree, rank = dist.get_world_size(), dist.get_rank()
    mesh = Mesh(Layout(context=degree), rank, torch.device("cpu"))
    parallel = ContextAttention(mesh, ulysses_degree=ulysses_degree, sequence_length=48)
    mine = parallel.positions
    generator = torch.Generator().manual_seed(1)
    documents_BT = torch.randint(0, 2, (2, 48), generator=generator).cumsum(1)
    for kv_heads, documents in itertools.product((8, 2, 1), (None, documents_BT)):
        whole = [
            torch.randn(2, 48, heads, 6, generator=generator, dtype=torch.float64).transpose(1, 2)
            for heads in (8, kv_heads, kv_heads, 8)
        ]
        *inputs, grad_output = whole
        expected = results(attend, inputs, grad_output, documents)
        parts = [x[:, :, mine] for x in inputs]
        for kind in (parallel.attend, partial(checkpoint, parallel.attend, use_reentrant=False)):
            found = results(kind, parts, grad_output[:, :, mine], documents)
            for own, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(own, wanted[:, :, mine], rtol=0, atol=1e-13)
        with torch.no_grad():
            assert torch.equal(parallel.attend(*parts, documents), found[0])
        halves = [x.bfloat16() for x in parts]
        with torch.autocast("cpu", torch.bfloat16):
            cast = parallel.attend(*(x.float() for x in parts), documents)
        assert torch.equal(cast, parallel.attend(*halves, documents))
        found = results(parallel.attend, halves, grad_output[:, :, mine].bfloat16(), documents)
        for own, wanted in zip(found, expected, strict=True):
            assert own.dtype == torch.bfloat16
            distance = (own.double() - wanted[:, :, mine]).norm() / wanted[:, :, mine].norm()
            assert distance < 0.01
    dist.destroy_process_group()
    return 0


def results(
    attention: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    grad_output: Tensor,
    documents: Tensor | None,
) -> list[Tensor]:
    """Output, and the gradient of each input."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = attention(*inputs, documents)
    return [output.detach(), *torch.autograd.grad(output, inputs, grad_output)]


def train_until_killed(run_dir: str, victim: int, step: int) -> int:
    """train_run with SIGKILL to one rank between the backward pass and the update of a step."""
    directory = RunDirectory(Path(run_dir))
    run_plan = directory.read_plan()
    engine, steps = engine_for(run_plan.plan), itertools.count(1)
    clip = engine.clip

    def clip_or_die(max_norm: float, loss_scale: float) -> Tensor:
        if next(steps) == step and int(os.environ["RANK"]) == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return clip(max_norm, loss_scale)

    engine.clip = clip_or_die  # type: ignore[method-assign]
    return run(run_plan, directory.path, engine=engine)


class SpikingEngine(SpmdEngine):
    """The loss jumps in step 5."""

    steps = 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        if self.steps == 5:
            with torch.no_grad():
                self.model.head.weight.mul_(100)  # type: ignore[union-attr, operator]
        return super().forward_backward(micro_batches, divisor)


class SpikingAheadEngine(Ahead, SpikingEngine):
    """A jump that is found in step 6."""


class SpoiledEngine(SpmdEngine):
    """One weight's gradient is spoiled on the last rank, in the steps that a class names."""

    value, spoiled, steps = math.nan, range(2, 3), 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        share = super().forward_backward(micro_batches, divisor)
        if self.steps in self.spoiled and self.mesh.rank == self.mesh.world_size - 1:
            gradient = dict(self.model.named_weights())["layers.0.attention.query.weight"].grad
            assert gradient is not None
            own_part(gradient)[0, 0] = self.value
        return share


class SpoiledAheadEngine(Ahead, SpoiledEngine):
    """A broken gradient that has been used when it is found."""


class OverflowingEngine(SpoiledEngine):
    """As if float16 had overflowed in step 3."""

    value, spoiled = math.inf, range(3, 4)


class OverflowingLocalEngine(LocalSgdEngine):
    """As if float16 had overflowed on the last rank, in step 3."""

    steps = 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        share = super().forward_backward(micro_batches, divisor)
        if self.steps == 3 and dist.get_rank() == 1:
            gradient = self.weights[0].parameter.grad
            assert gradient is not None
            gradient[0, 0] = math.inf
        return share


class HopelessEngine(SpoiledEngine):
    """As if float16 overflowed at any scale."""

    value, spoiled = math.inf, range(1, 100)


def wait_in_vain(timeout_s: float) -> int:
    """Every group of a mesh gives up on rank 3, which comes to no collective."""
    layout = Layout(replicate=2, tensor=2)
    dist.init_process_group("gloo")
    mesh = Mesh(layout, dist.get_rank(), torch.device("cpu"))
    lines = [mesh.along("replicate"), mesh.along("tensor")]
    mesh.barrier()
    mesh_module.BACKEND_LATER_S = 0.0
    mesh.set_timeout(timeout_s)
    for line in lines:
        assert line is not None
        group = line.get_group()
        with_last = 3 in dist.get_process_group_ranks(group)
        if with_last and mesh.rank != 3:
            began = time.monotonic()
            with pytest.raises(RuntimeError, match="Timed out"):
                dist.all_reduce(torch.ones(1), group=group)
            assert timeout_s - 0.1 <= time.monotonic() - began < timeout_s + 20
    if mesh.rank == 3:
        time.sleep(3 * timeout_s)  # a rank that hangs: one that has gone is noticed at once
    return 0


def wait_for_a_late_rank(folder: str) -> int:
    """Rank 1 comes to each collective half a second after rank 0, which alone has waited."""
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), torch.ones(4)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))

    def backward() -> None:
        with phase(Phase.BACKWARD):
            model(x).sum().backward()

    collectives: list[Callable[[], object]] = [
        lambda: dist.all_reduce(x),
        lambda: dist.all_reduce(x, async_op=True).wait(),
        lambda: funcol.all_reduce(x, "sum", dist.group.WORLD) + 0,
        backward,
    ]
    for number, collective in enumerate(collectives):
        for _ in range(3):  # DistributedDataParallel arranges its buckets in the second
            collective()
        dist.barrier()
        first_is_there = Path(folder) / str(number)
        with Probe(torch.device("cpu"), lambda: HeldBytes(0, 0, 0)).look() as found:
            if rank == 0:
                first_is_there.touch()
            else:
                while not first_is_there.exists():
                    time.sleep(0.001)
                time.sleep(0.5)
            collective()
        waited, whole = found["exposed_comm_time_s"], found["look_time_s"]
        if rank == 0:
            assert 0.2 < waited <= whole, (number, found)
        else:
            assert 0 < waited < whole - 0.5, (number, found)
    return 0


class SpoiledZeroEngine(ZeroEngine):
    """One number of the last rank's gradient is spoiled, in the steps that a class names."""

    value, spoiled, steps = math.nan, range(2, 3), 0

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.steps += 1
        share = super().forward_backward(micro_batches, divisor)
        if self.steps in self.spoiled and self.mesh.rank == self.mesh.world_size - 1:
            self.own_gradients()[0][0].view(-1)[0] = self.value
        return share


class OverflowingZeroEngine(SpoiledZeroEngine):
    """As if float16 had overflowed in step 3."""

    value, spoiled = math.inf, range(3, 4)


class TerminatedZeroEngine(Terminated, ZeroEngine):
    """Stopped after 8 steps."""


def send_extreme_gradients() -> int:
    """float16 has no number above 65504, and none between 0 and 6e-8."""
    dist.init_process_group("gloo")
    module = torch.nn.Linear(4, 1, bias=False)
    mesh = Mesh(Layout(replicate=2), dist.get_rank(), torch.device("cpu"))
    ranks = mesh.along("replicate")
    assert ranks is not None
    parallel = Replication(module, ranks, GradientCompression.FLOAT16, Precision.FLOAT32)
    for rows in (
        [[3e38, 1e38, 2e38, 0.0], [3e38, -1e38, 0.0, 0.0]],
        [[3e-20, 1e-20, 2e-20, 0.0], [3e-20, -1e-20, 0.0, 0.0]],
        [[0.0] * 4, [0.0] * 4],
    ):
        module.weight.grad = None
        parallel.module(torch.tensor(rows[mesh.rank])).sum().backward()
        gradient = module.weight.grad
        assert gradient is not None
        expected = torch.tensor(rows).double().mean(dim=0)
        torch.testing.assert_close(gradient[0].double(), expected, rtol=2**-10, atol=0)
    return 0


def gather_by_matrix(gather: str, checkpointing: str, most: int) -> int:
    """Fail where a rank ever has more than `most` numbers of weights gathered, in one step."""
    spec = make_spec(
        model__layers=3,
        model__width=32,
        training__global_batch_size=2,
        activation_checkpointing=checkpointing,
        tiling__gather=gather,
        parallelism__strategy="fsdp",
    )
    run_plan = make_run_plan(spec, ranks=2)
    mesh = join(run_plan.plan, timeout_s=60)
    engine = SpmdEngine()
    engine.setup(spec, run_plan.plan, mesh, source_of(run_plan))
    units = [module for module in engine.model.modules() if isinstance(module, FSDPModule)]
    states = dict.fromkeys(unit._get_fsdp_state() for unit in units)  # some units are two modules
    groups = [group for state in states for group in state._fsdp_param_groups]
    gathered: list[int] = []

    def look(*_: object) -> None:
        gathered.append(
            sum(
                weight._orig_size.numel()
                for group in groups
                if group.is_unsharded
                for weight in group.fsdp_params
            )
        )

    for module in engine.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(look)
            module.register_full_backward_hook(look)
    tokens_BT = torch.zeros((1, 48), dtype=torch.int64)
    engine.forward_backward([Batch(tokens_BT, tokens_BT)], 96)
    assert max(gathered) <= most, gathered
    return 0
