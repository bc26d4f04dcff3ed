"""A run goes on at another layout, and its curve does not show where.

Slow: shorter routes are in test_zero.py, test_large_batch.py, test_delayed_gradients.py and
test_image_training.py, and test_adapters.py kills a rank.
"""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import Action, RunPlan, write_control
from strategies.plan.spec import ModelName, Precision
from tests.strategies.support.law import BANDS, Bench, band_of, departure
from tests.strategies.support.layouts import Split, Variant
from tests.strategies.support.matrix import MATRIX
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan

pytestmark = [pytest.mark.gloo, pytest.mark.slow]

GPT = Variant(ModelName.GPT)
LLAMA = Variant(ModelName.LLAMA, tied=True, packed=True)
BY_NAME = {str(split): split for split in MATRIX}
ROUTES = [
    (GPT, Precision.FLOAT64, ["replicate2", "replicate4", "single"]),
    (LLAMA, Precision.FLOAT64, ["shard2", "tensor2", "replicate2", "single"]),
    # DeepSpeed computes in float32, whatever it is given.
    (GPT, Precision.FLOAT32, ["zero1-shard2", "zero3-shard4", "shard2", "zero2-shard2", "zero3"]),
]


def variant_of(split: Split, model: Variant) -> Variant | None:
    """A legal variant of the split that trains this model."""
    return next((v for v in split.legal_variants if v.twin == model), None)


TOURS = 4  # through all layouts, for one model


def exact_splits(model: Variant) -> list[Split]:
    """Those that can train this model in float64 if it has four layers."""
    band = BANDS[Precision.FLOAT64]
    return [
        replace(split, layers=4)
        for split in MATRIX
        if split.layers <= 4 and band_of(split, Precision.FLOAT64) == band
        if variant_of(split, model) is not None
    ]


def plan_of(split: Split, model: Variant, bench: Bench, *, steps: int, **changes: Any) -> RunPlan:
    variant = variant_of(split, model)
    assert variant is not None
    spec = split.spec(variant, steps=steps, **changes)
    return make_run_plan(spec, ranks=split.ranks, **bench.dataset)


def travel(
    route: list[Split], model: Variant, bench: Bench, path: Path, precision: Precision
) -> None:
    """Train a step in each layout, from the checkpoint of the one before; compare the curve."""
    path.mkdir()
    run, steps = Run(path), len(route)
    for split in route:
        write_control(run.directory.control, Action.STOP)  # is heard in the first step
        bench.pool.train(plan_of(split, model, bench, steps=steps, precision=precision), path)
    one = bench.twin(route[0], model, precision=precision, steps=steps)
    found = departure(run, one)
    assert found.within(BANDS[precision]), str(found)


@pytest.mark.parametrize(
    ("model", "precision", "names"), ROUTES, ids=["2-4-1", "fsdp-tensor-ddp-1", "zero"]
)
def test_a_run_goes_on_where_another_layout_stopped(
    model: Variant, precision: Precision, names: list[str], bench: Bench, tmp_path: Path
) -> None:
    route = [BY_NAME[name] for name in names for _ in range(2)]
    travel(route, model, bench, tmp_path / "run", precision)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "part"), list(product((GPT, LLAMA), range(TOURS))), ids=str)
def test_a_run_may_change_its_layout_at_every_step(
    model: Variant, part: int, bench: Bench, tmp_path: Path
) -> None:
    """Every layout of the matrix writes what another reads, in tours that chance decides."""
    route = exact_splits(model)[part::TOURS]
    random.Random(str(model)).shuffle(route)
    travel(route, model, bench, tmp_path / "run", Precision.FLOAT64)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_run_goes_on_at_another_layout(
    seed: int, bench: Bench, warm: WarmRanks, tmp_path: Path
) -> None:
    """SIGKILL to a rank that chance decides, at a step that chance decides."""
    chance, steps = random.Random(seed), 8
    model = chance.choice([GPT, LLAMA])
    before, after = chance.sample(exact_splits(model), 2)
    victim, step = chance.randrange(before.ranks), chance.randint(1, steps)
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    run_plan = plan_of(before, model, bench, steps=steps, checkpoint__every_steps=2)
    run.directory.plan.write_bytes(json_bytes(run_plan))
    started = warm.start(
        "train_until_killed",
        ranks=before.ranks,
        run_dir=str(run.directory.path),
        victim=victim,
        step=step,
    )
    assert started.wait()[victim] == -9, warm.said()
    bench.pool.train(plan_of(after, model, bench, steps=steps), run.directory.path)
    forget_steps_taken_twice(run)
    one = bench.twin(before, model, precision=Precision.FLOAT64, steps=steps)
    found = departure(run, one)
    assert found.within(BANDS[Precision.FLOAT64]), f"{before} -> {after} at step {step}: {found}"


def forget_steps_taken_twice(run: Run) -> None:
    """Keep the last line of each step's metrics: those before were lost with the killed run."""
    text = run.directory.metrics.read_text().splitlines()
    last = {run.lines[i]["step"]: line for i, line in enumerate(text) if "loss" in run.lines[i]}
    others = [line for i, line in enumerate(text) if "loss" not in run.lines[i]]
    run.directory.metrics.write_text("\n".join([*last.values(), *others]) + "\n")
