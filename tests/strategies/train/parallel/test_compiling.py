"""torch.compile: the same numbers, one compilation for all layers, a sentence where it cannot."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

from strategies.plan.durable_files import json_bytes
from strategies.plan.gpus import known_node
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import NotEquipped
from strategies.plan.spec import ActivationCheckpointing
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from strategies.train.parallel.compiling import compile_layers
from strategies.train.parallel.recompute import forget_activations
from strategies.train.precision import compute_in
from tests.strategies.support.training_runs import (
    HARDWARE,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

CPU = torch.device("cpu")
A100 = known_node("a100-80gb", gpus=2)
TOKENS_BT = torch.arange(4 * 48).reshape(4, 48)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallelism__strategy": "tensor"}, "tensor degree 2"),
        ({"parallelism__strategy": "pipeline"}, None),
        (
            {"parallelism": {"strategy": "pipeline", "pipeline_schedule": "ZBVZeroBubble"}},
            "ZBVZeroBubble",
        ),
        ({"parallelism__strategy": "context"}, None),
        ({"parallelism__strategy": "zero3"}, None),
        ({"parallelism__strategy": "zero2"}, None),
        ({"parallelism__strategy": "ddp"}, None),
        ({"parallelism__strategy": "fsdp"}, None),
    ],
)
def test_the_plan_refuses_it_where_it_is_not_known_to_run(
    changes: dict[str, Any], named: str | None
) -> None:
    found = plan(
        make_spec(compile=True, **changes), nodes=1, ranks_per_node=2, hardware=HARDWARE
    ).problems
    assert [p.param for p in found] == ([] if named is None else ["compile"])
    assert named is None or named in found[0].message


def test_a_machine_without_a_compiler_is_told_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    model = build_model(make_spec(), device=CPU)
    with pytest.raises(NotEquipped, match=r"this one lacks a C\+\+ compiler \(g\+\+\)"):
        compile_layers(model, CPU)
    with pytest.raises(NotEquipped, match=r"this one lacks a C compiler \(gcc\)"):
        compile_layers(model, torch.device("cuda"))


@pytest.mark.parametrize(
    ("changes", "node", "ranks", "compiles"),
    [
        ({}, HARDWARE, 2, False),
        ({}, A100, 2, True),
        ({"training__steps": 10}, A100, 2, False),
        ({"parallelism__strategy": "tensor"}, A100, 2, False),
        ({}, A100.model_copy(update={"no_compiler": "Python.h"}), 2, False),
        ({"compile": False}, A100, 2, False),
        ({"compile": True, "training__steps": 10}, HARDWARE, 2, True),
    ],
    ids=["cpu", "gpu", "short", "tensor", "no-compiler", "off", "on"],
)
def test_auto_compiles_long_runs_on_gpus_where_it_can(
    changes: dict[str, Any], node: Hardware, ranks: int, *, compiles: bool
) -> None:
    long: dict[str, Any] = {"training__steps": 50_000_000, "parallelism__strategy": "ddp"}
    found = plan(make_spec(**long | changes), nodes=1, ranks_per_node=ranks, hardware=node)
    assert found.runnable, found.problems
    assert found.compiles is compiles
    reasons = [said for said in found.warnings if "compile" in said]
    asked_for = "compile" in changes or node is HARDWARE or "training__steps" in changes
    assert len(reasons) == (0 if asked_for else 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_class_without_a_compiler_is_refused(device: Literal["cpu", "cuda"]) -> None:
    hardware = HARDWARE.model_copy(update={"device": device, "no_compiler": "Python.h"})
    [found] = plan(make_spec(compile=True), nodes=1, ranks_per_node=1, hardware=hardware).problems
    assert (found.code, found.param) == ("no_compiler", "compile")
    assert "lacks Python.h; have it installed" in found.message
    spec = make_spec(training__optimizer="adamw_triton")
    params = {p.param for p in plan(spec, nodes=1, ranks_per_node=1, hardware=hardware).problems}
    assert params == {"training.optimizer"}
    assert plan(make_spec(), nodes=1, ranks_per_node=1, hardware=hardware).problems == []


class Graphs:
    """Backend of torch.compile that runs graphs as they are and keeps them."""

    def __init__(self) -> None:
        self.kept: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self.keep, bw_compiler=self.keep)

    def keep(self, graph: torch.fx.GraphModule, inputs: object) -> Any:
        self.kept.append(graph)
        return make_boxed_func(graph.forward)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every intermediate result, without numbers."""
        for graph in self.kept:
            for node in graph.graph.nodes:
                found = node.meta.get("val")
                yield from [found] if isinstance(found, Tensor) else []


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch's tracer, about its own doings
@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_layers_share_real_graphs_and_are_not_compiled_again(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for training, one for evaluation, nothing complex, and no float64 but scalars."""
    torch._dynamo.reset()
    graphs = Graphs()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs.backend))
    spec = make_spec(model__name="llama", model__layers=3, model__kv_heads=2, precision=precision)
    model = build_model(spec, device=CPU)
    compile_layers(model, CPU)
    compute_in(spec.precision, model, CPU)
    numbers = []
    for _ in range(4):
        token_loss_sum(model(TOKENS_BT), TOKENS_BT).backward()
        with torch.no_grad():
            model(TOKENS_BT)
        numbers.append(len(graphs.kept))
    assert numbers == [3, 3, 3, 3]  # forward, backward; and forward alone
    assert len(list(graphs.tensors())) > 50
    for found in graphs.tensors():
        assert not found.is_complex()
        assert found.dtype is not torch.float64 or found.numel() == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch's tracer, about its own doings
@pytest.mark.parametrize("how", ActivationCheckpointing)
def test_gradients_agree_and_equal_layers_are_compiled_once(
    how: ActivationCheckpointing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients(*, compiled: bool) -> list[Tensor]:
        model = build_model(make_spec(precision="float64"), device=CPU)
        forget_activations(model, how)
        if compiled:
            compile_layers(model, CPU)
        token_loss_sum(model(TOKENS_BT), TOKENS_BT).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    plain, compiled = gradients(compiled=False), gradients(compiled=True)
    for found, wanted in zip(compiled, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("fsdp", {}),
        ("context", {}),
        ("context", {"parallelism__ulysses_degree": 2}),
        ("zero1", {}),
        ("zero2", {"parallelism__offload_optimizer": "cpu"}),
        ("zero3", {}),
        ("pipeline", {"parallelism__pipeline_schedule": "GPipe"}),
        ("pipeline", {"parallelism__pipeline_schedule": "1F1B"}),
        ("pipeline", {"parallelism__pipeline_schedule": "Interleaved1F1B", "model__layers": 4}),
        ("pipeline", {"precision": "bfloat16", "training__eval_every_steps": 2}),
        ("naive", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_compiled_run_follows_the_curve(
    strategy: str,
    options: dict[str, Any],
    warm: WarmRanks,
    ragged: dict[str, Any],
    tmp_path: Path,
) -> None:
    def losses(name: str, **changes: Any) -> list[float]:
        changes |= {"parallelism__strategy": strategy, "model__layers": 2, "precision": "float64"}
        changes |= options
        run_plan = make_run_plan(make_spec(training__steps=5, **changes), ranks=2, **ragged)
        run = Run(tmp_path / name)
        run.directory.path.mkdir()
        run.directory.plan.write_bytes(json_bytes(run_plan))
        started = warm.start("train_run", ranks=2, deadline_s=900, run_dir=str(tmp_path / name))
        assert started.wait() == [0, 0], warm.said()
        return run.series("loss")

    band = 1e-6 if strategy.startswith("zero") else 1e-13  # DeepSpeed computes in float32 inside
    band = 1e-3 if "precision" in options else band  # a compiler rounds what it stores, not more
    assert losses("compiled", compile=True) == pytest.approx(losses("plain"), rel=band)
