"""What a closer look at a step finds, against what is known."""

import itertools
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from strategies.plan.estimates.memory import GIB
from strategies.train.engine import HeldBytes
from strategies.train.watching.phases import Phase, listeners, phase
from strategies.train.watching.probe import (
    FIRST_LOOK,
    KeptActivations,
    Probe,
)
from strategies.train.watching.waits import covered
from tests.strategies.support.training_runs import WarmRanks

spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=8
)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {point for begin, end in intervals for point in range(begin, end)}


@given(spans)
def test_waits_within_waits_count_once(some: list[tuple[int, int]]) -> None:
    assert covered(some) == len(points(some))


@pytest.mark.gloo
def test_the_rank_that_comes_first_waits_in_every_kind_of_collective(
    warm: WarmRanks, tmp_path: Path
) -> None:
    started = warm.start("wait_for_a_late_rank", ranks=2, folder=str(tmp_path))
    assert started.wait() == [0, 0], warm.said()


def test_kept_activations_are_those_of_two_known_layers() -> None:
    """Linear keeps its input, tanh its output; weights and the shared storage count no more."""
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 32))
    kept = KeptActivations()
    x = torch.randn(16, 64)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, kept.give):
        y = model(x).sum()
        assert kept.num_bytes == 4 * 16 * (64 + 128)  # tanh's output is the next layer's input
        y.backward()
    del y
    assert kept.num_bytes == 0
    expected = nn.Sequential(*model)
    expected.zero_grad()
    expected(x).sum().backward()
    assert model[0].weight.grad is not None


def test_a_look_tells_phases_and_moments() -> None:
    model = nn.Linear(256, 256)
    weights = 4 * (256 * 256 + 256)

    def held() -> HeldBytes:
        gradients = sum(4 * p.grad.numel() for p in model.parameters() if p.grad is not None)
        return HeldBytes(weights, gradients, 0)

    probe = Probe(torch.device("cpu"), held)
    with probe.look() as found:
        for _ in range(2):
            with phase(Phase.FORWARD):
                loss = model(torch.randn(8, 256)).square().sum()
                time.sleep(0.02)
            with phase(Phase.BACKWARD):
                loss.backward()
        with phase(Phase.OPTIMIZER):
            model.zero_grad()
    assert not listeners
    assert found["forward_time_s"] >= 0.04
    phases = ("forward_time_s", "backward_time_s", "optimizer_time_s")
    assert found["look_time_s"] >= sum(found[phase] for phase in phases)
    assert found["exposed_comm_time_s"] == 0
    assert found["before_forward_gradients_gib"] == 0
    assert found["after_backward_gradients_gib"] * GIB == weights
    assert found["after_optimizer_gradients_gib"] == 0
    assert found["after_forward_rest_gib"] * GIB == pytest.approx(2 * 4 * 8 * 256)
    assert found["after_optimizer_weights_gib"] * GIB == weights
    assert "backward_time_s" in found
    assert "optimizer_time_s" in found


def test_a_few_steps_are_looked_at() -> None:
    probe = Probe(torch.device("cpu"), lambda: HeldBytes(0, 0, 0))
    looked_at = []
    for step in range(1, FIRST_LOOK + 3):
        with probe.next_step() as seen:
            assert bool(listeners) == (step == FIRST_LOOK)
        if seen:
            looked_at.append(step)
    assert looked_at == [FIRST_LOOK]


class PretendEvent:
    """An event of a GPU: its place among all events is its time in milliseconds."""

    places = itertools.count()

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.place = next(self.places)

    def elapsed_time(self, later: "PretendEvent") -> float:
        return later.place - self.place


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_look_starts_no_profiler(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI, once loaded, slows the steps after it."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a profiler was started")

    for name in ("_prepare_profiler", "_enable_profiler"):
        monkeypatch.setattr(torch.autograd.profiler, name, start)
    for name, pretended in {
        "Event": PretendEvent,
        "synchronize": lambda device: None,
        "current_stream": lambda device: None,
        "memory_allocated": lambda device: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)
    probe = Probe(torch.device(device), lambda: HeldBytes(0, 0, 0))
    weight = torch.ones(4, requires_grad=True)
    for _ in range(FIRST_LOOK):
        with probe.next_step() as seen:
            with phase(Phase.FORWARD):
                loss = weight.square().sum()
            with phase(Phase.BACKWARD):
                loss.backward()
            assert not torch._C._autograd._profiler_enabled()
    assert seen["look_time_s"] >= seen["forward_time_s"] + seen["backward_time_s"] > 0
