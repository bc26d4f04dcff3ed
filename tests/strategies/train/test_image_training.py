"""Training on images keeps the law: one curve for all layouts; and it learns to read digits."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn.functional import cross_entropy

from strategies.plan.built_in.datasets import prepare
from strategies.plan.estimates.flops import flops_per_token_of
from strategies.plan.learning_rate import learning_rate
from strategies.plan.planner import Plan, plan
from strategies.plan.promise import TOLERANCES
from strategies.plan.run_directory import Action, RunPlan, write_control
from strategies.plan.spec import Precision, TrainSpec
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.init import build_model
from tests.strategies.support.law import BANDS, departure, furthest
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Run, make_run_plan, make_spec

pytestmark = pytest.mark.gloo

CNN = {"name": "cnn", "layers": 2, "width": 8}
MLP = {"name": "mlp", "layers": 4, "width": 16}


def kind(model: dict[str, Any]) -> str:
    return str(model["name"])


MODELS = pytest.mark.parametrize("model", [CNN, MLP], ids=kind)
CNN_FIRST = pytest.mark.parametrize(
    "model", [CNN, pytest.param(MLP, marks=pytest.mark.slow)], ids=kind
)


def image_spec(model: dict[str, Any], **changes: Any) -> TrainSpec:
    return make_spec(
        **{
            "model": model,
            "data": {"dataset": "digits", "held_out": 0.1},
            "training__steps": 8,
            "training__global_batch_size": 16,
            "training__eval_every_steps": 4,
            "precision": "float64",
            **changes,
        }
    )


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose digits were made once."""
    return tmp_path_factory.mktemp("cache")


def digits_plan(cache: Path, spec: TrainSpec, *, ranks: int = 1) -> RunPlan:
    path = prepare("digits", cache)
    return make_run_plan(spec, ranks=ranks, dataset_path=str(path), dataset_format="npz")


def by_hand(model: dict[str, Any]) -> nn.Module:
    """The same network in torch's own parts, pixels (B, 64) to logits (B, 10)."""
    width = model["width"]
    if model["name"] == "mlp":
        layers = [
            part
            for _ in range(model["layers"])
            for part in (nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width, bias=False))
        ]
        return nn.Sequential(
            nn.Linear(64, width, bias=False),
            *layers,
            nn.LayerNorm(width),
            nn.Linear(width, 10, bias=False),
        )
    layers = [
        part
        for _ in range(model["layers"])
        for part in (
            nn.GroupNorm(1, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.AvgPool2d(2),
        )
    ]
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        *layers,
        nn.GroupNorm(1, width),
        nn.Flatten(),
        nn.Linear(width * 4, 10, bias=False),
    )


@MODELS
def test_the_curve_is_that_of_a_plain_torch_loop(
    model: dict[str, Any], cache: Path, pool: Pool, tmp_path: Path
) -> None:
    spec = image_spec(model, training__max_grad_norm=1000.0, training__weight_decay=0.0)
    run_plan = digits_plan(cache, spec)
    run = pool.train(run_plan, tmp_path / "run")

    plain = by_hand(model).double()
    ours = build_model(spec, device=torch.device("cpu"))
    in_order = ["embedding.", *(f"layers.{i}." for i in range(model["layers"])), "norm.", "head."]
    named = dict(ours.named_weights())
    firsts = [w for part in in_order for name, w in named.items() if name.startswith(part)]
    with torch.no_grad():
        for own, first in zip(plain.parameters(), firsts, strict=True):
            own.copy_(first)
    windows = open_windows(run_plan, cache)
    data = TrainingData(windows, run_plan, batch_rank=0, device=torch.device("cpu"))
    optimizer = torch.optim.AdamW(plain.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step, found in enumerate(run.series("loss"), start=1):
        (batch,), _ = data.step((step - 1) * 16)
        loss = cross_entropy(plain(batch.inputs_BT[:, 0].double()), batch.labels_BT[:, 0])
        assert found == pytest.approx(loss.item(), rel=1e-12)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec.training, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LAYOUTS: dict[str, dict[str, Any]] = {
    "accumulation": {"ranks": 1, "training__gradient_accumulation_steps": 4},
    "recomputed": {"ranks": 1, "activation_checkpointing": "full"},
    "recomputed in part": {"ranks": 1, "activation_checkpointing": "selective"},
    "ddp": {"ranks": 2, "parallelism__strategy": "ddp"},
    "ddp, accumulation": {
        "ranks": 2,
        "parallelism__strategy": "ddp",
        "training__gradient_accumulation_steps": 4,
    },
    "fsdp": {"ranks": 2, "parallelism__strategy": "fsdp"},
    "hsdp": {
        "ranks": 4,
        "parallelism__strategy": "hsdp",
        "parallelism__data_parallel_shard_degree": 2,
    },
    "zero1": {"ranks": 2, "parallelism__strategy": "zero1"},
    "zero3": {
        "ranks": 2,
        "parallelism__strategy": "zero3",
        "training__gradient_accumulation_steps": 2,
    },
}
PIPELINES: dict[str, dict[str, Any]] = {
    "1F1B": {
        "ranks": 2,
        "parallelism__strategy": "pipeline",
        "training__gradient_accumulation_steps": 4,
    },
    "naive": {"ranks": 2, "parallelism__strategy": "naive"},
}
CASES = [(model, name) for model in (CNN, MLP) for name in LAYOUTS]
CASES += [(MLP, name) for name in PIPELINES]
# One of each kind, with the model that has more parts there; `make test-all` has the rest.
QUICK = [(CNN, "accumulation"), (CNN, "recomputed"), (CNN, "fsdp")]
QUICK += [(MLP, "recomputed in part"), (MLP, "ddp"), (MLP, "zero1"), (MLP, "1F1B")]


@pytest.fixture(scope="session")
def ones() -> dict[str, Run]:
    """The runs of one rank, by model."""
    return {}


def one_rank(
    model: dict[str, Any], ones: dict[str, Run], cache: Path, pool: Pool, tmp_path: Path
) -> Run:
    name = kind(model)
    if name not in ones:
        ones[name] = pool.train(digits_plan(cache, image_spec(model)), tmp_path / "one")
    return ones[name]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(
            model,
            name,
            id=f"{kind(model)}-{name}",
            marks=() if (model, name) in QUICK else pytest.mark.slow,
        )
        for model, name in CASES
    ],
)
def test_every_layout_takes_the_curve_of_one_rank(
    model: dict[str, Any],
    name: str,
    ones: dict[str, Run],
    cache: Path,
    pool: Pool,
    tmp_path: Path,
) -> None:
    one = one_rank(model, ones, cache, pool, tmp_path)
    changes = dict((LAYOUTS | PIPELINES)[name])
    ranks = changes.pop("ranks")
    run_plan = digits_plan(cache, image_spec(model, **changes), ranks=ranks)
    run = pool.train(run_plan, tmp_path / "run")
    found = departure(run, one)
    inside = Precision.FLOAT32 if name.startswith("zero") else Precision.FLOAT64
    assert found.within(BANDS[inside]), str(found)
    assert run.series("eval_accuracy") == one.series("eval_accuracy")
    assert run.series("tokens_seen")[-1] == 8 * 16  # an image counts as one


@CNN_FIRST
def test_a_run_goes_on_at_another_layout(
    model: dict[str, Any], ones: dict[str, Run], cache: Path, pool: Pool, tmp_path: Path
) -> None:
    whole = one_rank(model, ones, cache, pool, tmp_path)
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    for strategy, ranks in (("fsdp", 2), ("ddp", 2), ("fsdp", 4)):
        write_control(run.directory.control, Action.STOP)  # is heard in the first step
        spec = image_spec(model, parallelism__strategy=strategy)
        pool.train(digits_plan(cache, spec, ranks=ranks), run.directory.path)
    assert run.result.step == 3
    run.directory.control.unlink()
    pool.train(digits_plan(cache, image_spec(model)), run.directory.path)
    found = departure(run, whole)
    assert found.within(BANDS[Precision.FLOAT64]), str(found)


@pytest.mark.slow
def test_a_few_seconds_teach_it_to_read_digits_that_it_never_saw(
    cache: Path, pool: Pool, tmp_path: Path
) -> None:
    spec = make_spec(
        model={"name": "cnn", "layers": 2, "width": 32},
        data={"dataset": "digits", "held_out": 0.2},
        training={
            "steps": 250,
            "global_batch_size": 64,
            "learning_rate": 3e-3,
            "warmup_steps": 10,
            "weight_decay": 1.0,
        },
    )
    run = pool.train(digits_plan(cache, spec), tmp_path / "run")
    assert run.result.eval_accuracy is not None
    assert run.result.eval_accuracy > 0.95
    assert run.series("eval_accuracy") == [run.result.eval_accuracy]
    assert math.isclose(run.result.eval_accuracy * 360, round(run.result.eval_accuracy * 360))
    assert run.result.sample is None
    with safe_open(run.directory.artifacts / "model.safetensors", "pt") as file:
        assert file.metadata().keys() == {"format", "spec"}
        assert TrainSpec.model_validate_json(file.metadata()["spec"]) == spec
        assert sum(file.get_tensor(name).numel() for name in file.keys()) == 20_192  # noqa: SIM118
    assert sorted(path.name for path in run.directory.artifacts.iterdir()) == ["model.safetensors"]


@CNN_FIRST
@pytest.mark.parametrize(
    ("precision", "strategy"),
    # ddp averages, so float16 would overflow at another scale than on one rank.
    [
        pytest.param("bfloat16", "ddp", marks=pytest.mark.slow),
        ("float16", "fsdp"),
        pytest.param("pure_bfloat16", "ddp", marks=pytest.mark.slow),
    ],
)
def test_half_precisions_keep_to_their_band(
    model: dict[str, Any], precision: str, strategy: str, cache: Path, pool: Pool, tmp_path: Path
) -> None:
    one = pool.train(digits_plan(cache, image_spec(model, precision=precision)), tmp_path / "one")
    spec = image_spec(model, precision=precision, parallelism__strategy=strategy)
    run = pool.train(digits_plan(cache, spec, ranks=2), tmp_path / "run")
    assert furthest(run, one, "loss") < TOLERANCES[Precision(precision)].loss


# ------------------------------------------------------------------------------------ the plan


def planned(model: dict[str, Any], *, ranks: int = 1, **changes: Any) -> Plan:
    return plan(image_spec(model, **changes), nodes=1, ranks_per_node=ranks, hardware=HARDWARE)


@MODELS
def test_a_plan_counts_what_the_model_has(model: dict[str, Any]) -> None:
    spec = image_spec(model)
    found = planned(model)
    built = build_model(spec, device=torch.device("cpu"))
    assert found.parameters == sum(weight.numel() for _, weight in built.named_weights())
    assert (found.tokens_per_step, found.unit) == (16, "images")
    assert all(term.gib >= 0 for term in found.memory)


@MODELS
def test_flops_are_those_that_torch_counts(model: dict[str, Any]) -> None:
    """Its counter leaves out that the first product needs no gradient of pixels, as it is."""
    from torch.utils.flop_counter import FlopCounterMode

    spec = image_spec(model)
    built = build_model(spec, device=torch.device("cpu"))
    pixels = torch.rand(1, 1, 64, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        built(pixels).sum().backward()
    assert counter.get_total_flops() == flops_per_token_of(spec)


BIG = {"name": "cnn", "layers": 3, "width": 8}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (CNN | {"heads": 4}, {}, "model.heads", "cnn reads images, which has no heads"),
    (MLP | {"ffn_width": 8}, {}, "model.ffn_width", "mlp reads images"),
    (MLP, {"data__sequence_length": 8}, "data.sequence_length", "(asked for: 8); leave it out"),
    (MLP, {"data__packing": True}, "data.packing", "has no packing"),
    (MLP, {"data__dataset": "python-stdlib", "data__classes": 9, "data__image_shape": [9, 9]},
     "data.dataset", "python-stdlib holds text, which model mlp cannot read; take gpt or llama, or "
     "dataset digits"),
    (CNN, {"data__dataset": "mine", "data__classes": 10}, "data.image_shape", "(MNIST: [28, 28])"),
    (MLP, {"data__dataset": "mine", "data__image_shape": [28, 28]}, "data.classes", "(MNIST: 10)"),
    (CNN | {"layers": 4}, {}, "model.layers", "8 x 8 can be halved 3 times, not 4; take 3"),
    (BIG, {"data__dataset": "mine", "data__classes": 2, "data__image_shape": [1, 40]},
     "model.layers", "1 x 40 can be halved 0 times, not 3; take mlp"),
    (CNN, {"ranks": 2, "parallelism__strategy": "pipeline",
           "training__gradient_accumulation_steps": 2},
     "parallelism.pipeline_parallel_degree", "ddp, fsdp or zero1 over 2 data-parallel ranks, or "
     "mlp"),
    (CNN, {"ranks": 2, "parallelism__strategy": "naive"}, "parallelism.pipeline_parallel_degree",
     "images of different sizes"),
    (MLP, {"ranks": 4, "parallelism__strategy": "tensor",
           "parallelism__data_parallel_replicate_degree": 2},
     "parallelism.tensor_parallel_degree", "(degree 2): tensor parallel splits attention heads and "
     "a vocabulary; take strategy ddp, fsdp or zero1 over 4 data-parallel ranks"),
    (CNN, {"ranks": 2, "parallelism__strategy": "context"}, "parallelism.context_parallel_degree",
     "an image is one"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "changes", "param", "said"), REFUSED, ids=[case[2] for case in REFUSED]
)
def test_what_cannot_be_is_refused_by_name_with_what_could(
    model: dict[str, Any], changes: dict[str, Any], param: str, said: str
) -> None:
    (problem,) = planned(model, **changes).problems
    assert problem.param == param
    assert said in problem.message


@pytest.mark.parametrize("field", ["image_shape", "classes", "pixel_mean", "pixel_deviation"])
def test_text_has_no_pixels(field: str) -> None:
    value = [8, 8] if field == "image_shape" else 4
    spec = make_spec(**{f"data__{field}": value})
    (problem,) = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).problems
    assert problem.param == f"data.{field}"
    assert f"gpt reads text, which has no {field}" in problem.message


def test_a_text_model_does_not_read_digits() -> None:
    spec = make_spec(data__dataset="digits")
    (problem,) = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).problems
    assert problem.message == (
        "digits holds images, which model gpt cannot read; take mlp or cnn, or dataset "
        "python-stdlib"
    )
