"""A run that goes wrong stops before the update, on every rank, and says where and when."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.run_directory import ExitCode, newest_checkpoint
from strategies.plan.spec import GuardSpec
from strategies.train.guards import Diverged, remember, require_no_spike
from strategies.train.mesh import Mesh
from strategies.train.patience import Patience
from tests.strategies.support.training_runs import WarmRanks, make_run_plan, make_spec

GUARDS = GuardSpec(loss_spike_factor=2.0, loss_spike_window=4)
gloo = [pytest.mark.gloo]


def test_a_loss_above_so_many_medians_is_a_spike() -> None:
    recent = (3.0, 1.0, 2.0, 2.0)
    require_no_spike(4.0, recent, guards=GUARDS, step=9)
    with pytest.raises(Diverged, match=r"step 9: the loss jumped to 4\.1, 2\.05 times the median"):
        require_no_spike(4.1, recent, guards=GUARDS, step=9)


def test_nothing_is_a_spike_before_the_window_is_full_or_where_none_is_asked_for() -> None:
    require_no_spike(100.0, (1.0, 1.0, 1.0), guards=GUARDS, step=4)
    require_no_spike(100.0, (1.0,) * 20, guards=GuardSpec(), step=21)


def test_only_the_window_is_remembered_and_nothing_without_a_guard() -> None:
    recent: tuple[float, ...] = ()
    for loss in (5.0, 4.0, 3.0, 2.0, 1.0):
        recent = remember(recent, loss, GUARDS)
    assert recent == (4.0, 3.0, 2.0, 1.0)
    assert remember(recent, 0.5, GuardSpec()) == ()


class Told(Mesh):
    """A mesh that remembers how long it was told to wait."""

    def set_timeout(self, seconds: float) -> None:
        self.__dict__.setdefault("told", []).append(seconds)


@pytest.mark.parametrize(("step_time_s", "later_s"), [(1.0, 100.0), (60.0, 1200.0)])
def test_ranks_wait_long_at_first_and_after_an_interruption_else_by_the_length_of_a_step(
    step_time_s: float, later_s: float
) -> None:
    mesh = Told(**{name: None for name in ("layout", "rank", "device")})  # type: ignore[arg-type]
    patience = Patience(mesh, first_s=300.0)
    for _ in range(7):
        patience.after_step(step_time_s)
    patience.start_over()
    for _ in range(4):
        patience.after_step(step_time_s)
    assert mesh.__dict__["told"] == [300.0, later_s, 300.0]


class TestRanks:
    pytestmark = gloo

    @pytest.mark.parametrize("engine", ["SpikingEngine", "SpikingAheadEngine"])
    def test_a_spike_stops_the_run_before_its_weights_are_saved(
        self, engine: str, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(
            training__steps=8,
            model__layers=1,
            parallelism__strategy="ddp",
            checkpoint__every_steps=2,
            guards={"loss_spike_factor": 3.0, "loss_spike_window": 3},
        )
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run, started = warm.start_training(run_plan, tmp_path / "run", engine=engine)
        assert started.wait() == [ExitCode.DIVERGED] * 2, warm.said()
        for rank in (0, 1):
            message = warm.error(rank)["message"]
            assert message.startswith("step 5: the loss jumped to ")
            assert "the weights of step 4 were kept" in message
        assert run.series("step")[-1] == 4
        assert (run.result.reason, run.result.step) == ("diverged", 4)
        newest = newest_checkpoint(run.directory.checkpoints)
        assert newest is not None
        assert newest.name == "step-000004"

    @pytest.mark.parametrize(
        "engine", ["SpoiledEngine", pytest.param("SpoiledAheadEngine", marks=pytest.mark.slow)]
    )
    def test_a_gradient_that_breaks_alone_is_traced_to_weight_and_rank(
        self, engine: str, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(training__steps=5, model__layers=2, parallelism__strategy="fsdp")
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run, started = warm.start_training(run_plan, tmp_path / "run", engine=engine)
        assert started.wait() == [ExitCode.DIVERGED] * 2, warm.said()
        for rank in (0, 1):
            assert warm.error(rank)["message"].startswith(
                "step 2: the loss is finite, but the gradient norm is nan: broken is the gradient "
                "of layers.0.attention.query.weight on rank 1; the weights of step 1"
            )
        assert all(math.isfinite(norm) for norm in run.series("grad_norm"))

    @pytest.mark.slow
    def test_every_group_of_a_mesh_gives_up_when_it_is_told_to(self, warm: WarmRanks) -> None:
        began = time.monotonic()
        started = warm.start("wait_in_vain", ranks=4, timeout_s=1.0)
        assert started.wait() == [0] * 4, warm.said()
        assert time.monotonic() - began < 60
