"""The law: the loss curve does not depend on the layout.

50 clipped steps on ragged documents, against one rank that takes the whole batch at once.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_runs import Run, WarmRanks, make_run_plan, make_spec

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("gloo")]

LOSS = {"float32": 1e-6, "float64": 1e-13}
GRAD_NORM = {"float32": 1e-5, "float64": 1e-12}
WEIGHTS = {"float32": 1e-5, "float64": 1e-11}

ONE_RANK_IN_PARTS = {"training__gradient_accumulation_steps": 4}
DDP = {"parallelism__strategy": "ddp"}
DDP_IN_PARTS = {**DDP, "training__micro_batch_size": 2}
LAYOUTS: list[Any] = [
    pytest.param(1, ONE_RANK_IN_PARTS, None, id="1-rank-accumulating"),
    pytest.param(2, DDP, None, id="2-ranks"),
    pytest.param(2, DDP_IN_PARTS, None, id="2-ranks-accumulating"),
    pytest.param(4, DDP, None, id="4-ranks"),
    pytest.param(1, ONE_RANK_IN_PARTS, "ScheduledEngine", id="1-rank-scheduled"),
    pytest.param(2, DDP_IN_PARTS, "ScheduledEngine", id="2-ranks-scheduled"),
]
Reference = Callable[[str, str], Run]


@pytest.fixture(scope="module")
def reference(
    warm_process: WarmRanks, ragged: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    """The run of one rank that takes the whole batch at once, by model and precision."""
    runs: dict[tuple[str, str], Run] = {}

    def of(model: str, precision: str) -> Run:
        if (model, precision) not in runs:
            path = tmp_path_factory.mktemp("one-rank")
            run_plan = make_run_plan(spec_of(model, precision), **ragged)
            runs[model, precision] = warm_process.train(run_plan, path)
        return runs[model, precision]

    return of


def spec_of(model: str, precision: str, **changes: Any) -> Any:
    if model == "llama":
        changes["model__kv_heads"] = 2
    return make_spec(model__name=model, precision=precision, **changes)


def relative(found: list[float], expected: list[float]) -> float:
    assert len(found) == len(expected) == 50
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("ranks", "changes", "engine"), LAYOUTS)
def test_every_layout_follows_the_curve_of_one_rank(
    ranks: int,
    changes: dict[str, Any],
    engine: str | None,
    precision: str,
    warm: WarmRanks,
    reference: Reference,
    ragged: dict[str, Any],
    tmp_path: Path,
) -> None:
    one = reference("gpt", precision)
    run_plan = make_run_plan(spec_of("gpt", precision, **changes), ranks=ranks, **ragged)
    run = warm.train(run_plan, tmp_path / "run", engine=engine)
    compare(run, one, precision)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_llama_follows_it_too(
    precision: str,
    warm: WarmRanks,
    reference: Reference,
    ragged: dict[str, Any],
    tmp_path: Path,
) -> None:
    run_plan = make_run_plan(spec_of("llama", precision, **DDP_IN_PARTS), ranks=2, **ragged)
    compare(warm.train(run_plan, tmp_path / "run"), reference("llama", precision), precision)


def compare(run: Run, one: Run, precision: str) -> None:
    assert relative(run.series("loss"), one.series("loss")) <= LOSS[precision]
    assert relative(run.series("grad_norm"), one.series("grad_norm")) <= GRAD_NORM[precision]
    assert run.series("tokens_seen") == one.series("tokens_seen")
    assert run.series("lr") == one.series("lr")
    (loss,), (expected,) = run.series("eval_loss"), one.series("eval_loss")
    assert loss == pytest.approx(expected, rel=10 * LOSS[precision])
    found = load_file(run.directory.artifacts / "model.safetensors")
    wanted = load_file(one.directory.artifacts / "model.safetensors")
    assert found.keys() == wanted.keys()
    difference = math.sqrt(sum(float((found[k] - wanted[k]).square().sum()) for k in wanted))
    size = math.sqrt(sum(float(wanted[k].square().sum()) for k in wanted))
    assert difference / size <= WEIGHTS[precision]


def test_the_reference_is_ragged_clipped_and_learns(reference: Reference) -> None:
    one = reference("gpt", "float32")
    seen = one.series("tokens_seen")
    assert len({after - before for before, after in itertools.pairwise(seen)}) > 20
    assert sum(norm > 0.3 for norm in one.series("grad_norm")) >= 40
    losses = one.series("loss")
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert losses[-1] < 0.6 * losses[0]


def test_a_mean_of_means_is_found_out(
    warm: WarmRanks, reference: Reference, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(spec_of("gpt", "float32", **DDP), ranks=2, **ragged)
    run = warm.train(run_plan, tmp_path / "run", engine="MeanOfMeansEngine")
    assert relative(run.series("loss"), reference("gpt", "float32").series("loss")) > 1e-3


def test_the_same_run_twice_is_bit_equal(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    run_plan = make_run_plan(spec_of("gpt", "float32", **DDP), ranks=2, **ragged)
    runs = [warm.train(run_plan, tmp_path / name) for name in ("first", "second")]
    assert runs[0].series("loss") == runs[1].series("loss")
    assert runs[0].series("grad_norm") == runs[1].series("grad_norm")
    first, second = (load_file(run.directory.artifacts / "model.safetensors") for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
