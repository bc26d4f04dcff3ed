"""Adapters beside frozen weights: as peft and bitsandbytes have them, and in every layout."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.nn.functional import cross_entropy

from strategies.plan.durable_files import json_bytes
from strategies.plan.estimates.flops import flops_per_token, matrix_weights
from strategies.plan.estimates.memory import GIB
from strategies.plan.hardware import Hardware
from strategies.plan.layout import Layout
from strategies.plan.planner import plan
from strategies.plan.run_directory import BadCheckpoint, ExitCode
from strategies.plan.shapes import count_adapters, count_parameters, frozen_bytes
from strategies.plan.spec import (
    ActivationCheckpointing,
    AdapterSpec,
    FrozenBase,
    ModelName,
    ModelSpec,
    Precision,
    TrainSpec,
)
from strategies.train.checkpoints.checkpoint import read_weights, require_same_model
from strategies.train.engine import Batch, engine_for
from strategies.train.engines.spmd import SpmdEngine
from strategies.train.fine_tuning.peft_files import export_adapter, split_name
from strategies.train.fine_tuning.source import source_of
from strategies.train.init import build_model, first_values, seed_of
from strategies.train.mesh import Mesh
from strategies.train.models.transformer import Transformer
from strategies.train.parallel.compiling import compile_layers
from strategies.train.watching.probe import FIRST_LOOK
from tests.strategies.support.law import BANDS, Bench, band_of, distance
from tests.strategies.support.layouts import Split, Variant
from tests.strategies.support.matrix import MATRIX
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

GLOO = pytest.mark.gloo
CPU = torch.device("cpu")
EVERY = ["query", "key", "value", "output", "up", "down"]
ADAPTERS: dict[str, Options] = {
    "lora": {"rank": 4, "alpha": 8, "targets": EVERY},
    "nf4": {"rank": 4, "targets": ["query", "value"], "base": "nf4"},
    "int8": {"rank": 4, "targets": ["value", "down"], "base": "int8"},
}
# bitsandbytes' csrc and the paper's appendix E, rounded alike.
BELOW = (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0)
ABOVE = (0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0)
NF4_VALUES = torch.tensor([*BELOW, *ABOVE])
SMALL: Options = {"model__layers": 2, "model__width": 32, "data__sequence_length": 16}
IMAGES = {"name": "mlp", "layers": 2, "width": 32}
STEPS: Options = {"training__warmup_steps": 0, "training__schedule": "constant"}


def set_up(spec: TrainSpec) -> SpmdEngine:
    """One rank's engine."""
    run_plan = make_run_plan(spec)
    engine = engine_for(run_plan.plan)
    assert isinstance(engine, SpmdEngine)
    engine.setup(spec, run_plan.plan, Mesh(Layout(), 0, CPU), seed_of(spec))
    return engine


def some_batch(spec: TrainSpec, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (spec.training.global_batch_size, spec.data.sequence_length)
    tokens_BT = torch.randint(0, 256, shape, generator=generator)
    return Batch(tokens_BT, tokens_BT.roll(-1, dims=1))


def without_adapter(spec: TrainSpec) -> TrainSpec:
    return spec.model_copy(update={"adapter": None})


# Numerics, against peft, bitsandbytes and plain torch


@pytest.mark.parametrize(
    "model", [pytest.param(ModelName.GPT, marks=pytest.mark.slow), ModelName.LLAMA]
)
def test_steps_are_those_of_the_same_model_under_peft(model: ModelName) -> None:
    """peft's own layers around our frozen model, torch's AdamW and torch's clipping."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = ["query", "value", "down", *(["gate"] if model is ModelName.LLAMA else [])]
    adapter = {"rank": 4, "alpha": 10, "targets": targets}
    spec = make_spec(
        model__name=model, adapter=adapter, precision="float64", training__steps=6, **SMALL, **STEPS
    )
    engine, training = set_up(spec), spec.training
    config = LoraConfig(r=4, lora_alpha=10, target_modules=targets, init_lora_weights=False)
    twin = inject_adapter_in_model(config, build_model(without_adapter(spec), device=CPU)).double()
    trained = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    ours = {w.name: w.parameter for w in engine.weights}
    theirs = {injected_name(name): trained[injected_name(name)] for name in ours}
    assert len(theirs) == len(trained)
    with torch.no_grad():
        for name, parameter in ours.items():
            trained[injected_name(name)].copy_(parameter)
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        weight_decay=training.weight_decay,
    )
    for step in range(6):
        batch = some_batch(spec, seed=step)
        optimizer.zero_grad()
        expected = cross_entropy(twin(batch.inputs_BT).flatten(0, 1), batch.labels_BT.flatten())
        expected.backward()
        norm = nn.utils.clip_grad_norm_(trained.values(), training.max_grad_norm)
        optimizer.step()
        loss = engine.forward_backward([batch], batch.labels_BT.numel())
        found_norm = engine.clip(training.max_grad_norm, 1.0)
        engine.step(training.learning_rate)
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-13)
        assert float(found_norm) == pytest.approx(float(norm), rel=1e-12)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, trained[injected_name(name)], rtol=0, atol=1e-11)


def injected_name(name: str) -> str:
    """How peft names an adapter's parameter while it is in a model."""
    matrix, factor = split_name(name)
    return f"{matrix}.lora_{factor.upper()}.default.weight"


def test_a_run_begins_with_what_the_frozen_model_says() -> None:
    spec = make_spec(adapter=ADAPTERS["lora"], **SMALL)
    tokens_BT = some_batch(spec).inputs_BT
    adapted, frozen = (build_model(s, device=CPU) for s in (spec, without_adapter(spec)))
    assert torch.equal(adapted(tokens_BT), frozen(tokens_BT))


def test_first_values_are_as_wide_as_pefts() -> None:
    """peft draws A as torch does a linear layer's matrix."""
    name, shape = "layers.0.attention.lora.query", torch.Size((32, 256))
    whole = (slice(0, 32), slice(0, 256))
    a, b = (
        first_values(f"{name}.{factor}", shape, whole, seed=1, width=8, device=CPU)
        for factor in "ab"
    )
    wanted = nn.Linear(256, 32).weight.detach()
    assert float(a.abs().max()) <= 1 / 16
    assert float(a.std()) == pytest.approx(float(wanted.std()), rel=0.05)
    assert not b.any()


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_a_quantised_product_is_bitsandbytes_own(base: str) -> None:
    import bitsandbytes

    from strategies.train.adapters.quantised import FORMS

    torch.manual_seed(0)
    matrix, x = torch.randn(96, 128), torch.randn(5, 128, requires_grad=True)
    ours = FORMS[FrozenBase(base)](nn.Linear(128, 96, bias=False))
    ours.take(matrix.double())
    theirs: nn.Module
    if base == "nf4":
        theirs = bitsandbytes.nn.Linear4bit(
            128, 96, bias=False, compute_dtype=torch.float32, quant_type="nf4"
        )
        theirs.weight = bitsandbytes.nn.Params4bit(matrix, requires_grad=False, quant_type="nf4")
    else:
        theirs = bitsandbytes.nn.Linear8bitLt(128, 96, bias=False, has_fp16_weights=False)
        theirs.weight = bitsandbytes.nn.Int8Params(matrix.half(), requires_grad=False)
    theirs.to("cpu")
    found = ours(x)
    torch.testing.assert_close(found, theirs(x), rtol=1e-5, atol=1e-5)
    found.sum().backward()
    weight = ours.whole(torch.float32)
    torch.testing.assert_close(x.grad, weight.sum(dim=0).expand(5, 128))


@pytest.mark.parametrize("columns", [128, 80, 33])
def test_nf4_stands_for_the_values_of_the_paper(columns: int) -> None:
    """16 quantiles of a normal distribution, times the largest number of every 64 in a row
    (arXiv:2305.14314, appendix E), also where rows end within a block."""
    from strategies.train.adapters.quantised import Nf4Linear

    torch.manual_seed(0)
    matrix = torch.randn(96, columns)
    ours = Nf4Linear(nn.Linear(columns, 96, bias=False))
    ours.take(matrix)
    numbers = nn.functional.pad(matrix.flatten(), (0, -matrix.numel() % 64)).view(-1, 64)
    largest = numbers.abs().amax(dim=1, keepdim=True)
    nearest = (numbers / largest).unsqueeze(-1).sub(NF4_VALUES).abs().argmin(dim=-1)
    expected = (NF4_VALUES[nearest] * largest).flatten()[: matrix.numel()].view_as(matrix)
    found = ours.whole(torch.float32)
    # The second quantisation moves every scale a little.
    assert float((found - expected).norm() / expected.norm()) < 0.02
    assert float((found - matrix).norm() / matrix.norm()) == pytest.approx(0.092, abs=0.004)


def test_what_a_quantised_base_takes() -> None:
    """4.127 bits a weight: QLoRA (arXiv:2305.14314), section 3; 0.373 less than without the second
    quantisation. A model of 65 billion: 33.5 GB, and 3.03 GB saved."""
    shape = (8192, 8192)
    numbers = 8192 * 8192
    bits = 8 * frozen_bytes(FrozenBase.NF4, shape, whole=4) / numbers
    assert bits == pytest.approx(4.127, abs=5e-4)
    once = 4 + 32 / 64
    assert once - bits == pytest.approx(0.373, abs=5e-4)
    assert 65e9 * bits / 8e9 == pytest.approx(33.5, abs=0.05)
    assert 65e9 * (once - bits) / 8e9 == pytest.approx(3.03, abs=0.01)
    assert frozen_bytes(FrozenBase.INT8, shape, whole=4) == numbers + 4 * 8192


@pytest.mark.parametrize(("rank", "millions"), [(1, 4.72), (4, 18.87), (8, 37.75)])
def test_parameters_are_those_of_the_paper(rank: int, millions: float) -> None:
    """GPT-3 with Wq and Wv: LoRA (arXiv:2106.09685), tables 4 and 5 and section 7.1."""
    gpt3 = ModelSpec(name=ModelName.GPT, layers=96, width=12_288, heads=96)
    adapter = AdapterSpec(rank=rank)
    assert count_adapters(gpt3, adapter) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_plan_counts_and_weighs_what_a_rank_then_holds(name: str) -> None:
    spec = make_spec(adapter=ADAPTERS[name])
    engine, planned = set_up(spec), make_run_plan(spec).plan
    adapters = sum(weight.parameter.numel() for weight in engine.weights)
    assert planned.trainable_parameters == adapters == count_adapters(spec.model, spec.adapter)
    assert planned.parameters == adapters + count_parameters(spec.model, vocabulary=256)
    engine.forward_backward([some_batch(spec)], 1.0)
    held, terms = engine.held(), {term.name: term.gib * GIB for term in planned.memory}
    assert held.weights == terms["frozen"] + terms["weights"]
    assert held.gradients == terms["gradients"] == 4 * adapters
    assert held.optimizer == pytest.approx(terms["optimizer"], rel=0.01)  # and step counters
    assert terms["weights"] + terms["gradients"] + terms["optimizer"] == 16 * adapters


def test_a_frozen_weight_costs_two_thirds() -> None:
    model = make_spec().model
    adapter = AdapterSpec(rank=4)
    sizes = {"vocabulary": 256, "sequence_length": 48}
    whole = flops_per_token(model, **sizes)
    saved = whole - flops_per_token(model, adapter=adapter, **sizes)
    assert saved == 2 * matrix_weights(model, vocabulary=256) - 6 * count_adapters(model, adapter)


# In every layout

SPLITS = [split for split in MATRIX if split.ranks == 2]
SPLITS_OF_4 = [split for split in MATRIX if split.ranks == 4]


SOON = {  # in `make test`: where ranks hold parts of matrices or of codes
    "lora": {"shard2", "tensor2-sequence"},
    "int8": {"shard2"},
}


def cells() -> list[Any]:
    """Every split of two ranks that takes an adapter; of those with a pipeline, quantised, one."""
    return [
        pytest.param(
            name,
            split,
            id=f"{name}-{split}",
            marks=[GLOO] if str(split) in SOON.get(name, ()) else [GLOO, pytest.mark.slow],
        )
        for name, adapter in ADAPTERS.items()
        for split in SPLITS
        if not split.problems(Variant(), adapter=adapter)
        and (name == "lora" or split.schedule in (None, "1F1B"))
    ]


@pytest.mark.parametrize(("name", "split"), cells())
def test_every_layout_follows_the_curve_of_one_rank(name: str, split: Split, bench: Bench) -> None:
    found = bench.departure(split, Variant(packed=True), steps=4, adapter=ADAPTERS[name])
    assert found.within(band_of(split, Precision.FLOAT64)), str(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["lora", "nf4"])
@pytest.mark.parametrize("split", [pytest.param(s, id=str(s), marks=GLOO) for s in SPLITS_OF_4])
def test_so_does_every_layout_of_four_ranks(name: str, split: Split, bench: Bench) -> None:
    variant = Variant(
        ModelName.LLAMA,
        tied=True,
        accumulation=4,
        checkpointing=ActivationCheckpointing.SELECTIVE,
    )
    if not split.plan(variant, adapter=ADAPTERS[name]).runnable:
        pytest.skip(f"the plan refuses {name} here")
    found = bench.departure(split, variant, steps=4, adapter=ADAPTERS[name])
    assert found.within(band_of(split, Precision.FLOAT64)), str(found)


@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_forgetting_activations_changes_no_gradient(name: str, how: str) -> None:
    """Saved products must not be written to: the adapter's part is added out of place."""
    gradients = []
    for checkpointing in ("none", how):
        spec = make_spec(adapter=ADAPTERS[name], activation_checkpointing=checkpointing, **SMALL)
        engine = set_up(spec)
        engine.forward_backward([some_batch(spec)], 1.0)
        engine.step(1e-2)  # until then B is zero, and so is A's gradient
        engine.forward_backward([some_batch(spec)], 1.0)
        gradients.append([weight.parameter.grad for weight in engine.weights])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_layers_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(adapter=ADAPTERS["lora"], precision="float64", **{**SMALL, "model__layers": 4})

    def gradients(*, compiled: bool) -> list[Tensor]:
        model = build_model(spec, device=CPU)
        for name, parameter in model.named_parameters():
            if name.endswith(".b"):
                nn.init.ones_(parameter)
        if compiled:
            compile_layers(model, CPU)
        model(some_batch(spec).inputs_BT).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    plain, compiled = gradients(compiled=False), gradients(compiled=True)
    for found, wanted in zip(compiled, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert counter.frame_count == 2  # for the first layer, whose input has no gradient; the others


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "pure_bfloat16"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_half_precision_follows_float32(name: str, precision: str) -> None:
    losses = []
    for asked in ("float32", precision):
        spec = make_spec(adapter=ADAPTERS[name], precision=asked, **SMALL)
        engine = set_up(spec)
        batch = some_batch(spec)
        for _ in range(3):
            losses.append(float(engine.forward_backward([batch], batch.labels_BT.numel())))
            engine.clip(1.0, 1.0)
            engine.step(1e-2)
    assert losses[3:] == pytest.approx(losses[:3], rel=1e-2)
    assert losses[2] < losses[0]


def short(name: str, **changes: Any) -> TrainSpec:
    return make_spec(
        **{
            "adapter": ADAPTERS[name],
            "precision": "float64",
            "training__steps": 8,
            **SMALL,
            **STEPS,
            **changes,
        }
    )


FSDP: Options = {"parallelism__strategy": "fsdp"}


@pytest.mark.gloo
@pytest.mark.parametrize("name", ["lora", pytest.param("nf4", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_at_another_layout(
    name: str, warm: WarmRanks, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    one = pool.train(make_run_plan(short(name), **ragged), tmp_path / "one")
    spec = short(name, checkpoint__every_steps=2, **FSDP)
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    run.directory.plan.write_bytes(json_bytes(make_run_plan(spec, ranks=2, **ragged)))
    started = warm.start(
        "train_until_killed", ranks=2, run_dir=str(run.directory.path), victim=1, step=5
    )
    assert started.wait()[1] == -9, warm.said()
    ddp = short(name, parallelism__strategy="ddp")
    pool.train(make_run_plan(ddp, ranks=2, **ragged), run.directory.path)
    losses = {line["step"]: line["loss"] for line in run.lines if "loss" in line}
    assert list(losses.values()) == pytest.approx(one.series("loss"), rel=1e-13)
    assert distance(run, one) <= BANDS[Precision.FLOAT64].weights


@pytest.mark.gloo
def test_fully_sharded_ranks_hold_a_part_of_the_codes(
    pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    for strategy, ranks in (("single", 1), ("fsdp", 2)):
        spec = short(
            "nf4",
            parallelism__strategy=strategy,
            training__steps=FIRST_LOOK,
            training__global_batch_size=2,
            data__held_out=0,
        )
        run_plan = make_run_plan(spec, ranks=ranks, **ragged)
        run = pool.train(run_plan, tmp_path / strategy)
        (held_gib,) = run.series("before_forward_weights_gib")
        terms = {term.name: term.gib for term in run_plan.plan.memory}
        assert held_gib == pytest.approx(terms["frozen"] + terms["weights"], rel=0.01)


@pytest.fixture(scope="module")
def saved(pool: Pool, ragged: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two steps with adapters."""
    run_plan = make_run_plan(short("lora", training__steps=2), **ragged)
    run = pool.train(run_plan, tmp_path_factory.mktemp("saved") / "run")
    return run.directory.checkpoints / "step-000002"


OTHERS: dict[str, Options] = {
    "adapter.rank is 2 here, 4 there": {"adapter": {**ADAPTERS["lora"], "rank": 2}},
    "adapter.base is nf4 here, none there": {"adapter": {**ADAPTERS["lora"], "base": "nf4"}},
    "seed is 2 here, 1 there": {"training__seed": 2},
    "adapter.rank is None here, 4 there": {"adapter": None},
}


@pytest.mark.gloo
def test_a_checkpoint_holds_adapters_alone_and_knows_its_base(saved: Path) -> None:
    names = FileSystemReader(saved).read_metadata().state_dict_metadata
    assert all(".lora." in name for name in names), names
    for said, change in OTHERS.items():
        with pytest.raises(BadCheckpoint, match=said):
            require_same_model(short("lora"), short("lora", **change), saved)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_run_beside_another_base_is_refused(
    saved: Path, warm: WarmRanks, ragged: Options, tmp_path: Path
) -> None:
    for said, change in OTHERS.items():
        run_plan = make_run_plan(short("lora", **change), resume_from=str(saved), **ragged)
        _, started = warm.start_training(run_plan, tmp_path / "other")
        assert started.wait() == [ExitCode.BAD_CHECKPOINT]
        assert said in warm.error(0)["message"]


@pytest.mark.slow  # peft reads what one engine leaves in the next test, too
@pytest.mark.gloo
def test_peft_reads_what_a_run_leaves(pool: Pool, ragged: Options, tmp_path: Path) -> None:
    """A model that has only our names."""
    from peft import PeftModel

    spec = short("lora", precision="float32")
    run = pool.train(make_run_plan(spec, sample_bytes=4, **ragged), tmp_path / "run")
    assert run.result.sample
    weights = read_weights(run.directory.checkpoints / "step-000008", spec)
    ours = with_weights(build_model(spec, device=CPU), weights)
    base = build_model(without_adapter(spec), device=CPU)
    tokens_BT = some_batch(spec).inputs_BT
    untrained = base(tokens_BT)
    theirs = PeftModel.from_pretrained(base, str(run.directory.artifacts))
    torch.testing.assert_close(theirs(tokens_BT), ours(tokens_BT))
    assert float((ours(tokens_BT) - untrained).detach().abs().max()) > 1e-3


def with_weights(model: Transformer, weights: dict[str, Tensor]) -> Transformer:
    with torch.no_grad():
        for name, parameter in model.named_weights():
            if name in weights:
                parameter.copy_(weights[name])
    return model


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_beside_a_checkpoint_steps_are_those_of_transformers_and_peft(
    kind: str, tmp_path: Path
) -> None:
    """Both begin with the same files, train apart, and end with the same files."""
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from tests.strategies.support.hf_models import make_model, planned

    base = make_model(kind, tmp_path / "base")
    adapter = {"rank": 4, "targets": ["query", "key", "value", "gate", "down"]}
    run_plan = planned(base, fields={}, adapter=adapter)
    spec = run_plan.spec
    assert "random" not in " ".join(run_plan.plan.warnings)
    engine, training = SpmdEngine(), spec.training
    engine.setup(spec, run_plan.plan, Mesh(Layout(), 0, CPU), source_of(run_plan))

    def export(name: str) -> dict[str, Tensor]:
        (tmp_path / name).mkdir()
        export_adapter(tmp_path / name, engine.state()["model"], spec)
        return load_file(tmp_path / name / "adapter_model.safetensors")

    export("first")
    frozen = AutoModelForCausalLM.from_pretrained(base)
    twin = PeftModel.from_pretrained(frozen, str(tmp_path / "first"), is_trainable=True)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in twin.parameters() if parameter.requires_grad],
        lr=1e-2,
        betas=(training.beta1, training.beta2),
        weight_decay=training.weight_decay,
    )
    for step in range(4):
        batch = some_batch(spec, seed=step)
        optimizer.zero_grad()
        logits_BTV = twin(batch.inputs_BT).logits
        expected = cross_entropy(logits_BTV.flatten(0, 1), batch.labels_BT.flatten())
        expected.backward()
        optimizer.step()
        loss = engine.forward_backward([batch], batch.labels_BT.numel())
        engine.step(1e-2)
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
    theirs = get_peft_model_state_dict(twin, save_embedding_layers=False)
    ours = export("last")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-4)
    read = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "last")
    )
    batch = some_batch(spec)
    own = engine.model(batch.inputs_BT)
    torch.testing.assert_close(read(batch.inputs_BT).logits, own, rtol=1e-4, atol=1e-4)


# What is refused


def problems(ranks: int = 2, **changes: Any) -> dict[str, str]:
    """Message by code."""
    spec = make_spec(**changes)
    found = plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE).problems
    return {problem.code: f"{problem.param}: {problem.message}" for problem in found}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"adapter": {"targets": ["gate"]}}, "no_such_matrix", "a layer of gpt has no gate"),
        ({"adapter": {"targets": ["up", "up"]}}, "named_twice", "only 1 of them differ"),
        (
            {"adapter": {}, "model": IMAGES, "data": {"dataset": "digits"}},
            "not_supported_by_model",
            "which mlp does not have",
        ),
        ({"adapter": {"rank": 65}}, "out_of_range", "take 64 or less"),
        (
            {"adapter": ADAPTERS["nf4"], "parallelism__strategy": "tensor"},
            "not_supported_together",
            "adapter.base: base nf4 keeps numbers in blocks",
        ),
        (
            {"adapter": ADAPTERS["int8"], "compile": True},
            "not_supported_together",
            "compile: compile cannot trace",
        ),
        (
            {"adapter": ADAPTERS["lora"], "parallelism__strategy": "zero3"},
            "not_supported_together",
            "take strategy fsdp",
        ),
    ],
)
def test_a_rule_names_the_field_and_what_would_do(changes: Options, code: str, said: str) -> None:
    assert said in problems(**{"parallelism__strategy": "ddp", **changes})[code]


def test_a_base_that_does_not_fit_is_advised_to_be_stored_in_4_bits() -> None:
    """A model of 7 billion: 12.6 GiB in 16 bits; in 4, all of it takes less than half of 16."""
    llama = {"name": "llama", "layers": 32, "width": 4096, "heads": 32, "ffn_width": 11_008}
    spec = make_spec(
        model=llama,
        adapter={"rank": 16},
        precision="pure_bfloat16",
        data__tokenizer="characters",
        data__vocabulary_size=32_000,
    )
    small = Hardware(class_name="small", device="cuda", slots=1, memory_gib=12)
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=small)
    frozen = next(term for term in found.memory if term.name == "frozen")
    assert frozen.gib == pytest.approx(12.55, abs=0.01)
    (advice,) = [advice for advice in found.advice if advice.fits]
    assert advice.change == {"adapter.base": "nf4"}
    assert advice.changes_training
    assert advice.needed_gib < found.needed_gib / 2


def test_the_plan_warns_of_random_frozen_weights() -> None:
    spec = make_spec(adapter={})
    (warning,) = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).warnings
    assert "random numbers (seed 1)" in warning


def test_without_bitsandbytes_a_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for module in ("strategies.train.adapters.bnb", "strategies.train.adapters.quantised"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=r"need the package bitsandbytes on every node"):
        set_up(make_spec(adapter=ADAPTERS["nf4"]))
