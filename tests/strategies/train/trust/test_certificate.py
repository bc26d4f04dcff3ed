"""The certificate: the rule, and real runs that keep or break it."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.promise import Promise
from strategies.plan.run_directory import Action, write_control
from strategies.plan.spec import Precision, Strategy
from strategies.plan.trust.certificate import (
    Certificate,
    Comparison,
    Curve,
    compare,
    differing_fields,
    relative,
)
from strategies.train.control import ControlWatch
from strategies.train.data.batches import open_windows
from strategies.train.trust.one_rank import curve_of_one_rank, one_rank
from tests.strategies.support.training_runs import (
    HARDWARE,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

EXACT = Promise("exact", Precision.FLOAT32, Strategy.DDP)
number = st.floats(allow_nan=True, allow_infinity=True)


def curve(*losses: float, norms: list[float | None] | None = None) -> Curve:
    """Steps 1, 2, ... with these losses; gradient norm 1 unless given."""
    made = Curve()
    for step, loss in enumerate(losses, start=1):
        made.add(step, loss, 1.0 if norms is None else norms[step - 1])
    return made


def held(found: Curve, expected: Curve, promise: Promise = EXACT) -> Comparison:
    return compare(found, expected, promise, promise)


# -------------------------------------------------------------------------------------- the rule


def test_equal_curves_pass_with_no_difference() -> None:
    comparison = held(curve(4.0, 3.0, 2.0), curve(4.0, 3.0, 2.0))
    assert (comparison.verdict, comparison.steps) == ("pass", 3)
    assert comparison.grad_norm is not None
    assert comparison.loss.largest == comparison.grad_norm.largest == 0.0


@pytest.mark.parametrize(
    ("promise", "loss", "grad_norm"),
    [
        (EXACT, 1e-6, 1e-5),
        (Promise("exact", Precision.FLOAT64, Strategy.DDP), 1e-13, 1e-12),
        # DeepSpeed computes in float32 inside.
        (Promise("exact", Precision.FLOAT64, Strategy.ZERO3), 1e-6, 1e-5),
    ],
)
def test_a_promise_is_kept_up_to_its_tolerance_and_broken_beyond(
    promise: Promise, loss: float, grad_norm: float
) -> None:
    for share, verdict in ((0.9, "pass"), (1.1, "fail")):
        off = curve(4.0, 3.0 * (1 + share * loss))
        assert held(off, curve(4.0, 3.0), promise).verdict == verdict
        off = curve(4.0, 3.0, norms=[1.0, 1 + share * grad_norm])
        assert held(off, curve(4.0, 3.0), promise).verdict == verdict


def test_the_largest_difference_is_shown_with_its_step_and_both_values() -> None:
    found = held(curve(4.0, 3.3, 2.0), curve(4.0, 3.0, 2.1)).loss
    assert (found.step, found.found, found.expected) == (2, 3.3, 3.0)
    assert found.largest == pytest.approx(0.3 / 3.3)
    assert found.tolerance == 1e-6


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_fails_and_can_be_stored(broken: float) -> None:
    comparison = held(curve(4.0, broken), curve(4.0, 3.0))
    assert comparison.verdict == "fail"
    assert (comparison.loss.step, comparison.loss.largest, comparison.loss.found) == (2, None, None)
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison


def test_only_common_steps_count() -> None:
    comparison = held(curve(4.0, 3.0, 2.0), curve(4.0, 3.0))
    assert (comparison.verdict, comparison.steps) == ("pass", 2)
    with pytest.raises(ValueError, match="no step in common"):
        held(curve(), curve(4.0))


def test_a_step_that_float16_skipped_has_no_gradient_norm_to_compare() -> None:
    promise = Promise("band", Precision.FLOAT16, Strategy.DDP)
    skipped = curve(4.0, 3.0, norms=[None, 1.0])
    comparison = held(skipped, curve(4.0, 3.0), promise)
    assert (comparison.verdict, comparison.steps) == ("pass", 2)


def test_when_all_steps_were_skipped_the_loss_alone_decides() -> None:
    comparison = held(curve(4.0, norms=[None]), curve(4.0, norms=[None]))
    assert (comparison.verdict, comparison.grad_norm) == ("pass", None)


@pytest.mark.parametrize(
    ("precision", "steps"), [("float64", 1000), ("float32", 100), ("bfloat16", 50)]
)
def test_only_as_many_first_steps_are_compared_as_the_tolerance_holds_for(
    precision: str, steps: int
) -> None:
    one, other = curve(*[2.0] * steps), curve(*[2.0] * steps)
    one.add(steps + 1, 3.0, 1.0)
    other.add(steps + 1, 2.0, 1.0)
    comparison = held(one, other, Promise("exact", Precision(precision), Strategy.DDP))
    assert (comparison.verdict, comparison.steps) == ("pass", steps)


def test_what_is_exempt_gets_numbers_and_no_verdict() -> None:
    promise = Promise("exempt", Precision.FLOAT32, Strategy.DDP)
    comparison = held(curve(4.0, 3.3), curve(4.0, 3.0), promise)
    assert comparison.verdict == "exempt"
    assert comparison.loss.largest == pytest.approx(0.3 / 3.3)
    assert comparison.loss.tolerance is None


def test_the_weaker_of_two_promises_counts() -> None:
    finer = Promise("exact", Precision.FLOAT64, Strategy.DDP)
    comparison = compare(curve(4.0 + 1e-6), curve(4.0), finer, EXACT)
    assert (comparison.verdict, comparison.result_class) == ("pass", "exact")
    assert comparison.loss.tolerance == 1e-6
    band = Promise("band", Precision.BFLOAT16, Strategy.DDP)
    comparison = compare(curve(4.0), curve(4.0), finer, band)
    assert comparison.result_class == "band"
    nothing = Promise("exempt", Precision.FLOAT32, Strategy.DDP)
    assert compare(curve(4.0), curve(4.0), nothing, EXACT).verdict == "exempt"


@given(number, number)
def test_a_difference_is_the_same_from_both_sides_and_never_nan(one: float, other: float) -> None:
    assert relative(one, other) == relative(other, one) >= 0
    assert (relative(one, other) == 0) == (one == other and math.isfinite(one))


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_has_its_tolerance(precision: Precision) -> None:
    allowed = Promise("band", precision, Strategy.DDP).tolerance
    assert allowed is not None
    assert 0 < allowed.loss < 0.1
    assert 0 < allowed.grad_norm < 1


# ----------------------------------------------------------------------- two trainings, one curve


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism__strategy": "ddp"},
        {"precision": "float64"},
        {"training__micro_batch_size": 2},
        {"training__eval_every_steps": 5},
        {"checkpoint__every_steps": 5},
        {"verify__steps": 3},
        {"compile": True},
    ],
)
def test_how_it_is_computed_and_kept_may_differ(changes: dict[str, Any]) -> None:
    assert differing_fields(make_spec(), make_spec(**changes)) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model__layers", 5),
        ("data__dataset", "other"),
        ("data__sequence_length", 32),
        ("training__seed", 2),
        ("training__steps", 51),
        ("training__global_batch_size", 16),
        ("training__learning_rate", 1e-3),
        ("training__optimizer", "sgd"),
    ],
)
def test_what_decides_the_curve_must_be_the_same(field: str, value: object) -> None:
    (difference,) = differing_fields(make_spec(), make_spec(**{field: value})).items()
    name, (_, other) = difference
    assert (name, other) == (field.replace("__", "."), value)


def test_a_constant_rate_lets_runs_of_other_lengths_be_compared() -> None:
    constant = {"training__schedule": "constant"}
    assert differing_fields(make_spec(**constant), make_spec(**constant, training__steps=9)) == {}


# -------------------------------------------------------------------------------------- the plan


def test_one_rank_has_nothing_to_verify() -> None:
    found = plan(make_spec(verify__steps=5), nodes=1, ranks_per_node=1, hardware=HARDWARE)
    (problem,) = found.problems
    assert (problem.code, problem.param) == ("nothing_to_verify", "verify")


def test_a_run_shorter_than_its_certificate_is_refused_with_the_numbers() -> None:
    spec = make_spec(verify__steps=51, parallelism__strategy="ddp")
    (problem,) = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE).problems
    assert (problem.code, problem.param) == ("out_of_range", "verify.steps")
    assert "51 steps" in problem.message
    assert "take 50 or fewer" in problem.message


@pytest.mark.parametrize(
    ("precision", "steps", "codes"),
    [
        ("float64", 200, []),
        ("float32", 100, []),
        ("float32", 101, ["out_of_range"]),
        ("bfloat16", 50, []),
        ("bfloat16", 51, ["out_of_range"]),
    ],
)
def test_more_steps_than_a_precision_can_promise_are_refused(
    precision: str, steps: int, codes: list[str]
) -> None:
    changes = {"training__steps": 200, "parallelism__strategy": "ddp", "precision": precision}
    spec = make_spec(verify__steps=steps, **changes)
    found = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE)
    assert [problem.code for problem in found.problems] == codes


def test_a_model_that_only_fits_spread_out_cannot_be_verified() -> None:
    """1 GiB of weights, gradients and averages fit 8 ranks of 4 GiB when sharded, one rank not."""
    gpus = Hardware(class_name="small8", device="cuda", slots=8, memory_gib=4)
    changes = {"model__width": 1024, "model__heads": 16, "model__layers": 24}
    sharded = {**changes, "parallelism__strategy": "fsdp"}
    assert plan(make_spec(**sharded), nodes=1, ranks_per_node=8, hardware=gpus).runnable
    spec = make_spec(verify__steps=5, **sharded)
    (problem,) = plan(spec, nodes=1, ranks_per_node=8, hardware=gpus).problems
    assert (problem.code, problem.param) == ("does_not_fit", "verify")
    assert "leaves 3.60 GiB" in problem.message


# ------------------------------------------------------------------------------------- real runs


def test_a_stop_is_seen_while_one_rank_trains_alone_and_still_there_afterwards(
    tmp_path: Path,
) -> None:
    control = ControlWatch(tmp_path / "control.json")
    assert not control.is_asked_to_stop()
    write_control(tmp_path / "control.json", Action.CHECKPOINT)
    assert not control.is_asked_to_stop()
    write_control(tmp_path / "control.json", Action.STOP)
    assert control.is_asked_to_stop()
    assert control.look() is Action.STOP
    assert not control.is_asked_to_stop()  # it was obeyed
    (tmp_path / "control.json").write_text("{")
    assert not control.is_asked_to_stop()


def test_one_rank_that_must_stop_leaves_no_curve(ragged: dict[str, Any], tmp_path: Path) -> None:
    spec = make_spec(model__layers=1, verify__steps=3, parallelism__strategy="ddp")
    alone = one_rank(make_run_plan(spec, ranks=2, **ragged))
    assert (alone.plan.world_size, alone.plan.gradient_accumulation_steps) == (1, 2)
    windows = open_windows(alone, tmp_path)
    looks = iter([False, True])
    cpu = torch.device("cpu")
    assert curve_of_one_rank(alone, windows, steps=3, device=cpu, must_stop=looks.__next__) is None
    whole = curve_of_one_rank(alone, windows, steps=2, device=cpu, must_stop=lambda: False)
    assert whole is not None
    assert list(whole.loss) == list(whole.grad_norm) == [1, 2]


def certified(run: Run) -> Certificate:
    return Certificate.model_validate_json(run.directory.certificate.read_bytes())


# Two ranks, four steps in parts, three of them certified.
STEPS = {
    "model__layers": 1,
    "training__steps": 4,
    "training__warmup_steps": 1,
    "verify__steps": 3,
}
IN_PARTS = {"training__micro_batch_size": 2, "parallelism__strategy": "ddp"}


@pytest.fixture(scope="module")
def trained(
    warm_process: WarmRanks, ragged: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The certified run in float32, which nothing changes."""
    folder = tmp_path_factory.mktemp("certified")
    warm_process.logs = folder / "rank-logs"
    run_plan = make_run_plan(make_spec(**STEPS, **IN_PARTS), ranks=2, **ragged)
    return warm_process.train(run_plan, folder / "run")


@pytest.mark.gloo
class TestRealRuns:
    def test_a_layout_that_keeps_the_law_passes(self, trained: Run) -> None:
        self.assert_passes(trained)

    @pytest.mark.slow
    def test_it_passes_in_float64_too(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(precision="float64", **STEPS, **IN_PARTS)
        self.assert_passes(warm.train(make_run_plan(spec, ranks=2, **ragged), tmp_path / "run"))

    def assert_passes(self, run: Run) -> None:
        certificate = certified(run)
        assert certificate.verdict == "pass"
        assert (certificate.steps, certificate.result_class) == (3, "exact")
        assert (certificate.strategy, certificate.layout.replicate) == ("ddp", 2)
        # What was compared is what the run reports.
        at = certificate.loss.step
        assert certificate.loss.found == run.series("loss")[at - 1]
        (told,) = [line for line in run.lines if line.get("event") == "certified"]
        assert (told["step"], told["verdict"]) == (3, "pass")
        assert run.result.finished

    def test_the_certificate_does_not_move_the_run(
        self, trained: Run, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        changes = {**STEPS, **IN_PARTS}
        del changes["verify__steps"]
        other = warm.train(make_run_plan(make_spec(**changes), ranks=2, **ragged), tmp_path / "run")
        assert trained.series("loss") == other.series("loss")
        assert not other.directory.certificate.exists()

    def test_a_broken_layout_fails_it_and_trains_on(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(**STEPS, parallelism__strategy="ddp")
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="MeanOfMeansEngine")
        certificate = certified(run)
        assert certificate.verdict == "fail"
        assert certificate.loss.largest is not None
        assert certificate.loss.largest > 100 * 1e-6
        assert run.result.finished

    def test_a_run_that_goes_on_keeps_its_old_certificate(
        self, trained: Run, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        run = Run(shutil.copytree(trained.directory.path, tmp_path / "run"))
        before = run.directory.certificate.stat()
        longer = make_spec(**{**STEPS, "training__steps": 5}, **IN_PARTS)
        warm.train(make_run_plan(longer, ranks=2, **ragged), tmp_path / "run")
        assert len(run.series("loss")) == 5
        after = run.directory.certificate.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
