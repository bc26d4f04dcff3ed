"""When a step's values are read: at once on a CPU; on a GPU while the next step computes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.layout import Layout
from strategies.plan.run_directory import newest_checkpoint
from strategies.train.checkpoints.checkpoint import Progress
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.engine import Batch
from strategies.train.engines.spmd import SpmdEngine
from strategies.train.fine_tuning.source import source_of
from strategies.train.guards import Diverged
from strategies.train.mesh import Mesh
from strategies.train.precision import first_loss_scale
from strategies.train.step import Step, Steps
from tests.strategies.support.law import trained_weights
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan, make_spec

CPU = torch.device("cpu")
READS = {"tolist", "item", "__bool__", "__float__", "__int__", "__index__", "numpy", "cpu"}


class Told(SpmdEngine):
    """Notes what it is asked to do; its loss is broken in one step."""

    def __init__(self, notes: list[str], *, ahead: bool, broken: int = 0) -> None:
        self.notes, self.ahead, self.broken, self.steps = notes, ahead, broken, 0

    @property
    def runs_ahead(self) -> bool:
        return self.ahead

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        self.notes.append("passes")
        self.steps += 1
        share = super().forward_backward(micro_batches, divisor)
        return share * math.nan if self.steps == self.broken else share

    def step(self, learning_rate: float) -> None:
        self.notes.append("update")
        super().step(learning_rate)


class Reads(TorchFunctionMode):
    """Notes each number that Python takes out of a tensor."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in READS:
            self.notes.append("read")
        return func(*args, **(kwargs or {}))


class InnerReads(TorchDispatchMode):
    """Notes each number that torch itself takes out of a tensor."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.notes.append("read within")
        return func(*args, **(kwargs or {}))


def steps_of(
    engine: Told,
    ragged: dict[str, Any],
    folder: Path,
    before_update: Callable[[], None] = lambda: None,
    **changes: Any,
) -> Steps:
    """The steps of one rank, at their first one."""
    spec = make_spec(model__layers=1, model__width=16, training__steps=9, **changes)
    run_plan = make_run_plan(spec, **ragged)
    mesh = Mesh(Layout(), 0, CPU)
    engine.setup(spec, run_plan.plan, mesh, source_of(run_plan))
    data = TrainingData(open_windows(run_plan, folder), run_plan, batch_rank=0, device=CPU)
    progress = Progress(loss_scale=first_loss_scale(spec.precision))
    return Steps(engine, data, progress, spec=spec, mesh=mesh, before_update=before_update)


def taken(steps: Steps, count: int) -> list[Step]:
    found = [known for _ in range(count) for known in steps.take(None)]
    return found + steps.read()


def test_a_gpu_is_never_waited_for_before_it_has_the_next_passes(
    ragged: dict[str, Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    steps = steps_of(Told(notes, ahead=True), ragged, tmp_path)
    with Reads(notes), InnerReads(notes):
        found = taken(steps, 4)
    first, other = ["passes", "update"], ["passes", "read", "update"]
    assert notes == [*first, *other, *other, *other, "read"]
    assert [step.progress.step for step in found] == [1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [True, False])
def test_the_passes_go_on_beside_a_checkpoints_copy_and_the_update_waits(
    ragged: dict[str, Any], tmp_path: Path, ahead: bool
) -> None:
    notes: list[str] = []
    told = Told(notes, ahead=ahead)
    taken(steps_of(told, ragged, tmp_path, before_update=lambda: notes.append("wait")), 2)
    assert notes == ["passes", "wait", "update"] * 2


def test_a_cpu_reads_before_the_update(ragged: dict[str, Any], tmp_path: Path) -> None:
    notes: list[str] = []
    steps = steps_of(Told(notes, ahead=False), ragged, tmp_path)
    with Reads(notes), InnerReads(notes):
        assert len(taken(steps, 3)) == 3
    assert notes == ["passes", "read", "update"] * 3


@pytest.mark.parametrize("changes", [{"precision": "float16"}, {"parallelism__gradient_delay": 1}])
def test_what_the_next_step_depends_on_is_read_at_once_on_a_gpu_too(
    changes: dict[str, Any], ragged: dict[str, Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    steps = steps_of(Told(notes, ahead=True), ragged, tmp_path, **changes)
    assert not steps.reads_late


def test_values_that_are_read_late_are_the_same(ragged: dict[str, Any], tmp_path: Path) -> None:
    guards = {"guards": {"loss_spike_factor": 9.0, "loss_spike_window": 3}}
    by_ahead = [
        taken(steps_of(Told([], ahead=ahead), ragged, tmp_path / str(ahead), **guards), 5)
        for ahead in (False, True)
    ]
    at_once, late = ([step._replace(time_s=0, data_time_s=0) for step in s] for s in by_ahead)
    assert at_once == late
    assert len(late[-1].progress.recent_losses) == 3


@pytest.mark.parametrize(("ahead", "updates"), [(False, 2), (True, 3)])
def test_no_update_is_made_once_a_broken_step_is_known(
    ahead: bool, updates: int, ragged: dict[str, Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    steps = steps_of(Told(notes, ahead=ahead, broken=3), ragged, tmp_path)
    with pytest.raises(Diverged, match="step 3: the loss is nan on rank 0"):
        taken(steps, 9)
    assert notes.count("update") == updates


LAYOUTS = [
    pytest.param("AheadEngine", {"strategy": "fsdp"}, id="fsdp"),
    pytest.param(
        "AheadPipelineEngine", {"strategy": "pipeline"}, id="pipeline", marks=pytest.mark.slow
    ),
]


class TestRanks:
    pytestmark = pytest.mark.gloo

    @pytest.mark.parametrize(("engine", "parallelism"), LAYOUTS)
    def test_a_run_ahead_has_the_same_curve_checkpoints_and_weights(
        self,
        engine: str,
        parallelism: dict[str, Any],
        warm: WarmRanks,
        ragged: dict[str, Any],
        tmp_path: Path,
    ) -> None:
        spec = make_spec(
            training__steps=7,
            training__eval_every_steps=3,
            model__layers=2,
            data__held_out=0.02,
            parallelism=parallelism,
            training__micro_batch_size=2,
            checkpoint__every_steps=4,
            checkpoint__keep_last=5,
        )
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        at_once = warm.train(run_plan, tmp_path / "at-once")
        late = warm.train(run_plan, tmp_path / "late", engine=engine)
        for key in ("loss", "grad_norm", "lr", "tokens_seen", "eval_loss", "checkpoint"):
            assert late.series(key) == at_once.series(key), key
        found, wanted = trained_weights(late), trained_weights(at_once)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert late.result.step == 7

    def test_a_stop_ends_all_ranks_after_the_same_step(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        """Asked in step 7, agreed on in step 8, read in step 9."""
        spec = make_spec(training__steps=50, model__layers=1, parallelism__strategy="ddp")
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="TerminatedAheadEngine")
        assert run.result.reason == "stopped"
        assert run.series("step")[-1] == run.result.step == 9
        assert_saved(run, "step-000009")


def assert_saved(run: Run, name: str) -> None:
    newest = newest_checkpoint(run.directory.checkpoints)
    assert newest is not None
    assert newest.name == name
