"""Half precision: what is computed in it, the loss scale of float16, and how far layouts differ."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from strategies.plan.catalog import COMPUTED_IN_HALF
from strategies.plan.gpus import known_node
from strategies.plan.layout import Layout
from strategies.plan.planner import Plan, plan
from strategies.plan.promise import TOLERANCES
from strategies.plan.run_directory import ExitCode
from strategies.plan.spec import (
    ZERO_STAGES,
    ModelName,
    PipelineSchedule,
    Precision,
    Strategy,
    TrainSpec,
)
from strategies.plan.trust.certificate import promise_of
from strategies.train.checkpoints.checkpoint import alone_is_fine
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from strategies.train.models.transformer import Transformer
from strategies.train.precision import (
    FIRST_SCALE,
    GOOD_STEPS_TO_DOUBLE,
    MOST_SKIPS_IN_A_ROW,
    SMALLEST_SCALE,
    LossScale,
    choose_kernels,
    compute_in,
    first_loss_scale,
)
from tests.strategies.support.law import BANDS as LAWS
from tests.strategies.support.law import Bench, Departure, departure
from tests.strategies.support.layouts import Split, Variant
from tests.strategies.support.training_runs import Run, WarmRanks, make_run_plan, make_spec

CPU = torch.device("cpu")
TOKENS_BT = torch.arange(4 * 48).reshape(4, 48)
gloo = [pytest.mark.gloo]


def make_model(precision: str, **changes: Any) -> Transformer:
    spec = make_spec(precision=precision, **changes)
    model = build_model(spec, device=CPU)
    compute_in(spec.precision, model, CPU)
    return model


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize(
    ("precision", "half"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_all_features_are_half_as_wide_and_weights_gradients_and_loss_are_not(
    name: str, precision: str, half: torch.dtype
) -> None:
    model = make_model(precision, model__name=name)
    given: dict[str, torch.dtype] = {}
    for module_name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, args, output, name=module_name: given.update({name: output.dtype})
        )
    loss = token_loss_sum(model(TOKENS_BT), TOKENS_BT)
    loss.backward()
    assert set(given.values()) == {half}
    assert loss.dtype == torch.float32
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "band"), [("bfloat16", 0.03), ("float16", 0.004), ("pure_bfloat16", 0.03)]
)
def test_its_gradient_is_that_of_float64_up_to_its_rounding(precision: str, band: float) -> None:
    def gradient(precision: str) -> Tensor:
        model = make_model(precision)
        token_loss_sum(model(TOKENS_BT), TOKENS_BT).backward()
        return torch.cat(
            [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        )

    true = gradient("float64")
    assert torch.linalg.vector_norm(gradient(precision) - true) < band * torch.linalg.vector_norm(
        true
    )


def test_pure_bfloat16_has_nothing_wider() -> None:
    model = make_model("pure_bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(TOKENS_BT).dtype == torch.bfloat16


def test_the_loss_scale_moves_as_torchs_own() -> None:
    ours = first_loss_scale(Precision.FLOAT16)
    theirs, tracker = torch.tensor(FIRST_SCALE), torch.tensor(0, dtype=torch.int32)
    long = GOOD_STEPS_TO_DOUBLE
    good_steps_between_overflows = (100, long, 2 * long + 1, 0, 0, long - 1, long + 1)
    for skipped in [s for good in good_steps_between_overflows for s in [False] * good + [True]]:
        ours = ours.after(skipped=skipped)
        torch._amp_update_scale_(theirs, tracker, torch.tensor(float(skipped)), 2.0, 0.5, long)
        assert (ours.value, ours.good_steps) == (theirs.item(), tracker.item())
    assert ours.skipped_steps == len(good_steps_between_overflows)


def test_the_scale_gives_up_only_after_many_overflows_at_its_smallest() -> None:
    scale = first_loss_scale(Precision.FLOAT16)
    for _ in range(MOST_SKIPS_IN_A_ROW):
        assert scale.may_skip
        scale = scale.after(skipped=True)
    assert scale.value == SMALLEST_SCALE
    assert not scale.may_skip
    assert scale.after(skipped=False).may_skip


@pytest.mark.parametrize("precision", sorted(set(Precision) - {Precision.FLOAT16}))
def test_other_precisions_are_not_scaled_and_never_skip(precision: Precision) -> None:
    scale = first_loss_scale(precision)
    assert scale == LossScale() == scale.after(skipped=False)
    assert (scale.value, scale.may_skip, scale.metrics()) == (1.0, False, {})


class TestRanks:
    pytestmark = gloo

    def test_an_overflow_is_skipped_by_all_ranks_and_a_resumed_run_goes_on_the_same(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(
            training__steps=6,
            model__layers=1,
            precision="float16",
            parallelism__strategy="ddp",
            checkpoint__every_steps=1,
            checkpoint__keep_last=10,
        )
        run_plan = make_run_plan(spec, ranks=2, **ragged)
        run = warm.train(run_plan, tmp_path / "run", engine="OverflowingEngine")
        assert run.series("loss_scale") == [FIRST_SCALE] * 2 + [FIRST_SCALE / 2] * 4
        assert run.series("skipped_steps") == [0] * 2 + [1] * 4
        assert len(run.series("loss")) == 6
        assert len(run.series("grad_norm")) == 5
        before, after = (stored(run, step) for step in (2, 3))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        updates = {float(v) for name, v in stored(run, 6).items() if name.endswith(".step")}
        assert updates == {5.0}

        resumed_plan = make_run_plan(
            spec, ranks=2, resume_from=str(run.directory.checkpoints / "step-000004"), **ragged
        )
        resumed = warm.train(resumed_plan, tmp_path / "resumed")
        for key in ("loss", "grad_norm", "loss_scale", "skipped_steps", "tokens_seen"):
            assert resumed.series(key) == run.series(key)[-2:]

    @pytest.mark.slow
    def test_a_run_that_always_overflows_ends_as_diverged(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(training__steps=50, model__layers=1, precision="float16")
        run_plan = make_run_plan(spec, **ragged)
        run, started = warm.start_training(run_plan, tmp_path / "run", engine="HopelessEngine")
        assert started.wait() == [ExitCode.DIVERGED], warm.said()
        assert run.series("loss_scale")[-1] == SMALLEST_SCALE
        assert run.series("skipped_steps")[-1] == MOST_SKIPS_IN_A_ROW
        assert "after 32 skipped steps, at loss scale 1: broken is" in warm.error(0)["message"]
        assert run.result.reason == "diverged"


def stored(run: Run, step: int) -> dict[str, Tensor]:
    """Weights and optimizer state of a checkpoint, by name."""
    reader = FileSystemReader(run.directory.checkpoints / f"step-{step:06d}")
    metadata = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in metadata.items()}
    with alone_is_fine():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


# About four times what was found over 50 steps of a llama of width 64, on two ranks (data, fully
# sharded, tensor, pipeline, context parallel) and on one rank that accumulates in four parts, which
# departs as far as any: it is the order of roundings that differs. In loss, gradient norm, weights:
# bfloat16 5.7e-4, 1.2e-2, 2.4e-3; float16 7.8e-5, 1.7e-3, 2.8e-4; pure 5.2e-4, 1.5e-2, 3.8e-3.
BANDS = {
    Precision.BFLOAT16: Departure(loss=2e-3, grad_norm=5e-2, weights=1e-2, eval_loss=1e-3),
    Precision.FLOAT16: Departure(loss=3e-4, grad_norm=7e-3, weights=1.2e-3, eval_loss=1e-4),
    Precision.PURE_BFLOAT16: Departure(loss=2e-3, grad_norm=6e-2, weights=1.5e-2, eval_loss=1e-3),
}
SPLITS = {
    "ddp": Split(Strategy.DDP, Layout(replicate=2)),
    "fsdp": Split(Strategy.FSDP, Layout(shard=2)),
    "tensor": Split(Strategy.TENSOR, Layout(tensor=2)),
    "tensor in a pipeline": Split(
        Strategy.PIPELINE,
        Layout(pipeline=2, tensor=2),
        schedule=PipelineSchedule.ONE_F_ONE_B,
    ),
    "context in a pipeline": Split(
        Strategy.PIPELINE,
        Layout(pipeline=2, context=2),
        schedule=PipelineSchedule.ONE_F_ONE_B,
    ),
}
# Elsewhere in `make test`: float16 in test_image_training.py, pure bfloat16 in test_adapters.py.
QUICK = {("tensor", Precision.BFLOAT16)}


def variant_of(split: Split) -> Variant:
    """A step of one micro-batch, or of as many as the pipeline has ranks."""
    return Variant(accumulation=split.layout.pipeline)


EQUAL = [  # splits of four micro-batches, and how many of them each rank takes
    pytest.param(Split(Strategy.DDP, Layout(replicate=2)), 2, marks=pytest.mark.slow),
    pytest.param(Split(Strategy.FSDP, Layout(shard=2)), 2, marks=pytest.mark.slow),
    (Split(Strategy.PIPELINE, Layout(pipeline=2), schedule=PipelineSchedule.ONE_F_ONE_B), 4),
    *(
        pytest.param(
            Split(Strategy.PIPELINE, Layout(pipeline=2), schedule=schedule, layers=4),
            4,
            marks=pytest.mark.slow,
        )
        for schedule in PipelineSchedule
        if schedule is not PipelineSchedule.ONE_F_ONE_B
    ),
    *(
        pytest.param(
            Split(Strategy.PIPELINE, Layout(pipeline=2, replicate=2), schedule=schedule, layers=4),
            2,
            marks=() if schedule is PipelineSchedule.ONE_F_ONE_B else pytest.mark.slow,
        )
        for schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZBV)
    ),
    *(
        pytest.param(
            Split(stage, Layout(shard=2)),
            2,
            marks=() if stage is Strategy.ZERO3 else pytest.mark.slow,
        )
        for stage in ZERO_STAGES
    ),
    pytest.param(Split(Strategy.FSDP, Layout(shard=4)), 1, marks=pytest.mark.slow),
    pytest.param(Split(Strategy.HSDP, Layout(replicate=2, shard=2)), 1, marks=pytest.mark.slow),
    pytest.param(
        Split(
            Strategy.PIPELINE,
            Layout(pipeline=2, shard=2),
            schedule=PipelineSchedule.ONE_F_ONE_B,
        ),
        2,
        marks=pytest.mark.slow,
    ),
]


@pytest.fixture(scope="module")
def ones() -> dict[TrainSpec, Run]:
    """The runs of one rank that takes four micro-batches."""
    return {}


class TestBands:
    pytestmark = gloo

    @pytest.mark.parametrize(
        "precision",
        [
            pytest.param(one, marks=() if one is Precision.BFLOAT16 else pytest.mark.slow)
            for one in COMPUTED_IN_HALF
        ],
    )
    @pytest.mark.parametrize(("split", "own"), EQUAL, ids=str)
    def test_with_the_same_micro_batches_it_keeps_to_the_band_of_float32(
        self,
        split: Split,
        own: int,
        precision: Precision,
        bench: Bench,
        ones: dict[TrainSpec, Run],
        tmp_path: Path,
    ) -> None:
        """A few gradients in bfloat16 add up in float32 nearly always without rounding, in any
        order; one whole batch differs by 3e-4. A weight that differs in its last bit, as updated in
        DeepSpeed's flat rows, may round to another 16-bit one."""
        alone, spec = (
            each.spec(Variant(ModelName.LLAMA, accumulation=parts), precision=precision, steps=12)
            for each, parts in ((split.alone, 4), (split, own))
        )
        if alone not in ones:
            ones[alone] = bench.pool.train(make_run_plan(alone, **bench.dataset), tmp_path / "one")
        run_plan = make_run_plan(spec, ranks=split.ranks, **bench.dataset)
        found = departure(bench.pool.train(run_plan, tmp_path / "run"), ones[alone])
        band = LAWS[Precision.FLOAT32]
        assert found.within(
            band._replace(eval_loss=1e-5) if split.strategy in ZERO_STAGES else band
        )
        if precision is Precision.BFLOAT16:
            assert found.weights < 1e-7

    @pytest.mark.parametrize(
        ("split", "precision"),
        [
            pytest.param(SPLITS[name], precision, id=f"{name}-{precision}", marks=marks)
            for name in SPLITS
            for precision in BANDS
            for marks in ([] if (name, precision) in QUICK else [pytest.mark.slow],)
        ],
    )
    def test_layouts_stay_within_the_band(
        self, split: Split, precision: Precision, bench: Bench
    ) -> None:
        found = bench.departure(split, variant_of(split), precision=precision)
        assert found.within(BANDS[precision]), found

    @pytest.mark.slow
    @pytest.mark.parametrize("precision", BANDS)
    def test_they_stay_within_it_for_fifty_steps(self, precision: Precision, bench: Bench) -> None:
        alone = Split(Strategy.SINGLE, Layout())
        accumulated = bench.departure(alone, Variant(accumulation=4), precision=precision, steps=50)
        for split in SPLITS.values():
            found = bench.departure(split, variant_of(split), precision=precision, steps=50)
            print(f"{precision} {split}: {found}; accumulated: {accumulated}")  # noqa: T201
            assert found.within(BANDS[precision]), found


@pytest.fixture
def switches() -> Iterator[None]:
    """Put torch's switches back after a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        yield
        choose_kernels(make_spec())


@pytest.mark.usefixtures("switches")
def test_products_are_rounded_only_where_the_spec_says() -> None:
    """Convolutions too: torch's own default for them is TF32."""
    for asked in ("exact", "tf32", "exact"):
        choose_kernels(make_spec(float32_matmul=asked))
        assert torch.backends.cuda.matmul.allow_tf32 is (asked == "tf32")
        assert torch.backends.cudnn.allow_tf32 is (asked == "tf32")


@pytest.mark.slow  # torch imports its compiler's settings
@pytest.mark.usefixtures("switches")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_deterministic_kernels_are_asked_for_before_the_first_product() -> None:
    choose_kernels(make_spec(deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    choose_kernels(make_spec())
    assert not torch.are_deterministic_algorithms_enabled()


LARGE = {
    "model__width": 4096,
    "model__heads": 32,
    "training__global_batch_size": 128,
}  # its products bind


def test_tf32_is_a_band_and_planned_at_its_own_peak() -> None:
    def on(name: str, **changes: Any) -> Plan:
        hardware = known_node(name, gpus=1)
        return plan(make_spec(**LARGE, **changes), nodes=1, ranks_per_node=1, hardware=hardware)

    exact, tf32 = (on("a100-80gb", float32_matmul=asked) for asked in ("exact", "tf32"))
    assert (exact.result_class, tf32.result_class) == ("exact", "band")
    assert (exact.float32_matmul, tf32.float32_matmul) == ("exact", "tf32")
    assert exact.step_s is not None
    assert tf32.step_s is not None
    assert exact.step_s > 4 * tf32.step_s
    promise = promise_of(make_spec(float32_matmul="tf32"), tf32)
    assert promise.tolerance == TOLERANCES[Precision.FLOAT16]
    assert "has no units for TF32" in on("v100-32gb", float32_matmul="tf32").warnings[-1]
    half = on("a100-80gb", float32_matmul="tf32", precision="bfloat16")
    assert "changes nothing" in half.warnings[-1]
