"""A Hugging Face checkpoint is loaded into our own model, trained in any layout and saved again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from strategies.plan.hugging_face.hf_config import UnsupportedModel, parse_config
from strategies.plan.layout import Layout
from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import BadCheckpoint, RunPlan
from strategies.plan.spec import Precision
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.fine_tuning.hub import with_model
from strategies.train.fine_tuning.pretrained import to_hugging_face
from strategies.train.fine_tuning.source import source_of
from strategies.train.init import build_model, design_model, give_first_weights
from strategies.train.mesh import Mesh
from strategies.train.models.loss import token_loss_sum
from strategies.train.models.transformer import Transformer
from tests.strategies.support.hf_models import KINDS, make_config, make_model, planned, spec_for
from tests.strategies.support.law import BANDS, departure
from tests.strategies.support.pool import Pool, RunFailed
from tests.strategies.support.training_runs import Options, Run, make_run_plan, make_spec

pytestmark = pytest.mark.gloo

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: make_model(kind, folder / kind) for kind in KINDS}


def loaded(run_plan: RunPlan) -> Transformer:
    model = design_model(run_plan.spec)
    give_first_weights(model, source_of(run_plan), Mesh(Layout(), 0, CPU))
    return model


def refused(checkpoint: Path, **changes: Any) -> str:
    """Why a checkpoint cannot be loaded."""
    with pytest.raises(BadCheckpoint) as found:
        loaded(planned(checkpoint, fields={}, **changes))
    return str(found.value)


class DoubleRotary(nn.Module):
    """transformers computes angles in float32, whatever the model's precision."""

    def __init__(self, base: float, head_width: int) -> None:
        super().__init__()
        self.frequencies = base ** -(torch.arange(0, head_width, 2).double() / head_width)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(position_ids[0].double(), self.frequencies)[None].repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def in_double(model: Any) -> Any:
    """transformers' model, with its angles and norms in float64, too."""
    model = model.double()
    rotary = model.config.rope_parameters["rope_theta"], model.model.layers[0].self_attn.head_dim
    model.model.rotary_emb = DoubleRotary(*rotary)
    for name, theirs in list(model.named_modules()):
        if type(theirs).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(len(theirs.weight), eps=theirs.variance_epsilon, dtype=torch.float64)
            norm.weight.data.copy_(theirs.weight)
            model.set_submodule(name, norm)
    return model


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, checkpoints: dict[str, Path]) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(checkpoints[kind])
    inputs_BT = tokens(2, 40)
    ours = loaded(planned(checkpoints[kind], fields={}, data__sequence_length=40))
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs_BT), theirs(inputs_BT).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_in_float64_logits_agree_to_its_rounding(kind: str, checkpoints: dict[str, Path]) -> None:
    """llama3's frequencies are left out: transformers has them in float32 only."""
    theirs = in_double(AutoModelForCausalLM.from_pretrained(checkpoints[kind]))
    run_plan = planned(checkpoints[kind], fields={}, data__sequence_length=40, precision="float64")
    with torch.no_grad():
        logits_BTV, wanted = loaded(run_plan)(tokens(2, 40)), theirs(tokens(2, 40)).logits
    torch.testing.assert_close(logits_BTV, wanted, rtol=1e-12, atol=1e-12)


def test_a_tied_model_is_built_whole_from_its_checkpoint(checkpoints: dict[str, Path]) -> None:
    run_plan = planned(checkpoints["llama3-tied"], fields={})
    whole = build_model(run_plan.spec, device=CPU, source=source_of(run_plan))
    with torch.no_grad():
        assert torch.equal(whole(tokens(1, 24)), loaded(run_plan)(tokens(1, 24)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_is_saved_again_bit_by_bit(kind: str, checkpoints: dict[str, Path]) -> None:
    run_plan = planned(checkpoints[kind], fields={})
    weights = dict(loaded(run_plan).named_weights())
    saved = to_hugging_face({n: w.detach() for n, w in weights.items()}, run_plan.spec)
    wanted = load_file(checkpoints[kind] / "model.safetensors")
    assert saved.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(saved[name], tensor), name


def test_a_tensor_parallel_rank_reads_its_own_rows_only(checkpoints: dict[str, Path]) -> None:
    source = source_of(planned(checkpoints["qwen2"], fields={}))
    for name, shape in (("query.weight", [32, 32]), ("key.bias", [16]), ("value.weight", [16, 32])):
        weight = f"layers.1.attention.{name}"
        size = torch.Size(shape)
        whole = source.read(weight, size, tuple(slice(0, n) for n in size), device=CPU)
        half, others = size[0] // 2, [slice(0, n) for n in size[1:]]
        for rows in (slice(0, half), slice(half, size[0]), slice(3, 7)):
            assert torch.equal(source.read(weight, size, (rows, *others), device=CPU), whole[rows])


def test_the_curve_is_that_of_a_plain_loop_over_transformers(
    checkpoints: dict[str, Path], pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """AdamW, clipping and warm-up by torch and transformers alone, on the same batches."""
    run_plan = planned(checkpoints["qwen2"], fields=ragged, data__held_out=0)
    run, training = pool.train(run_plan, tmp_path / "run"), run_plan.spec.training
    data = TrainingData(open_windows(run_plan, tmp_path), run_plan, batch_rank=0, device=CPU)
    model = AutoModelForCausalLM.from_pretrained(checkpoints["qwen2"])
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses, norms = [], []
    for step in range(training.steps):
        (batch,), valid_tokens = data.step(step * training.global_batch_size)
        loss = token_loss_sum(model(batch.inputs_BT).logits, batch.labels_BT) / valid_tokens
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step + 1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
    assert run.series("loss") == pytest.approx(losses, rel=2e-6)
    assert run.series("grad_norm") == pytest.approx(norms, rel=2e-5)


@pytest.mark.parametrize(("kind", "end_token"), [("llama3-tied", 2), ("qwen3", None)])
def test_the_artifacts_are_a_folder_that_transformers_loads(
    kind: str,
    end_token: int | None,
    checkpoints: dict[str, Path],
    pool: Pool,
    ragged: Options,
    tmp_path: Path,
) -> None:
    run_plan = planned(checkpoints[kind], fields=ragged)
    run = pool.train(run_plan, tmp_path / "run")
    folder = run.directory.artifacts
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert type(theirs.config) is type(make_config(kind))
    assert theirs.config.rope_parameters == make_config(kind).rope_parameters
    assert theirs.generation_config.eos_token_id == end_token
    again = make_run_plan(run_plan.spec, model_path=str(folder))  # what was saved can be tuned on
    with torch.no_grad():
        ours = loaded(again)(tokens(1, 24))
        torch.testing.assert_close(theirs(tokens(1, 24)).logits, ours, rtol=0, atol=1e-5)
    before = load_file(checkpoints[kind] / "model.safetensors")
    assert not torch.equal(theirs.model.norm.weight, before["model.norm.weight"])


def test_what_is_saved_is_loaded_in_the_precision_it_was_trained_in(
    checkpoints: dict[str, Path], pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(checkpoints["mistral"]).bfloat16().save_pretrained(half)
    for precision, dtype in (("float32", torch.float32), ("pure_bfloat16", torch.bfloat16)):
        run_plan = planned(half, fields=ragged, precision=precision)
        run = pool.train(run_plan, tmp_path / precision)
        theirs = AutoModelForCausalLM.from_pretrained(run.directory.artifacts, dtype="auto")
        assert theirs.dtype == dtype
        assert type(theirs).__name__ == "MistralForCausalLM"
        assert theirs.config.sliding_window == 48


@pytest.mark.parametrize("norms", [False, True])
def test_a_llama_from_nothing_is_saved_for_transformers_too(
    norms: bool, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    shape = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "query_key_norms": norms}
    spec = make_spec(
        model={"name": "llama", **shape},
        training__steps=5,
    )
    run = pool.train(make_run_plan(spec, **ragged), tmp_path / "run")
    theirs = AutoModelForCausalLM.from_pretrained(run.directory.artifacts)
    assert theirs.num_parameters() == run.directory.read_plan().plan.parameters
    written = theirs.generate(torch.tensor([[65, 66]]), max_new_tokens=3, do_sample=False)
    assert written.shape == (1, 5)


LAYOUTS = {
    "fsdp": {"parallelism__strategy": "fsdp"},
    "tensor": {"parallelism__strategy": "tensor", "parallelism__sequence_parallel": True},
    "context": {"parallelism__strategy": "context"},
    "zero3": {"parallelism__strategy": "zero3"},
    "pipeline": {"parallelism__strategy": "pipeline"},
}


@pytest.fixture(scope="module")
def alone(
    checkpoints: dict[str, Path],
    pool: Pool,
    ragged: Options,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Run]:
    """The runs of one rank, by checkpoint."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        kind: pool.train(
            planned(checkpoints[kind], fields=ragged, precision="float64"), folder / kind
        )
        for kind in ("qwen2", "qwen3", "llama3-tied")
    }


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen2", "zero3"),
        ("qwen3", "tensor"),
        ("llama3-tied", "pipeline"),
        *(
            pytest.param(kind, layout, marks=pytest.mark.slow)
            for kind, layout in (
                *(("qwen2", layout) for layout in ("tensor", "fsdp", "context", "pipeline")),
                ("qwen3", "fsdp"),
            )
        ),
    ],
)
def test_two_ranks_follow_the_curve_of_one(
    kind: str,
    layout: str,
    checkpoints: dict[str, Path],
    pool: Pool,
    ragged: Options,
    alone: dict[str, Run],
    tmp_path: Path,
) -> None:
    run_plan = planned(
        checkpoints[kind], ranks=2, fields=ragged, precision="float64", **LAYOUTS[layout]
    )
    run = pool.train(run_plan, tmp_path / "run")
    precision = Precision.FLOAT32 if layout == "zero3" else Precision.FLOAT64
    found = departure(run, alone[kind])
    assert found.within(BANDS[precision]), found


def test_a_spec_of_another_shape_is_told_field_by_field(checkpoints: dict[str, Path]) -> None:
    message = refused(checkpoints["llama"], model__layers=3, model__rope_base=5e5)
    assert "model.layers is 3 in the spec, 2 in config.json" in message
    assert "model.rope_base is 500000.0 in the spec, 10000.0 in config.json" in message
    message = refused(checkpoints["mistral"], data__sequence_length=60)
    assert "data.sequence_length is 60, but the model attends only 48 tokens back" in message


def test_incomplete_checkpoints_are_told_from_torn_ones(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    spec = spec_for(checkpoints["llama"])

    def why(folder: Path) -> str:
        with pytest.raises(BadCheckpoint) as found:
            loaded(make_run_plan(spec, model_path=str(folder)))
        return str(found.value)

    assert "contains no model" in why(tmp_path / "nowhere")
    folder = tmp_path / "model"
    shutil.copytree(checkpoints["llama"], folder)
    weights = folder / "model.safetensors"
    whole, tensors = weights.read_bytes(), load_file(weights)
    weights.write_bytes(whole[:-100])
    assert "torn" in why(folder)
    weights.unlink()
    assert "missing" in why(folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": "../outside.safetensors"}})
    )
    assert "points outside its folder" in why(folder)
    (folder / "model.safetensors.index.json").unlink()
    short = {name: tensor for name, tensor in tensors.items() if "k_proj" not in name}
    save_file(short, weights)
    assert "has no weight model.layers.0.self_attn.k_proj.weight" in why(folder)
    save_file(tensors | {"model.norm.weight": torch.ones(31)}, weights)
    assert "model.norm.weight" in why(folder)
    assert "[31] instead of [32]" in why(folder)
    (folder / "config.json").write_text("{}")
    assert "vocab_size: Field required" in why(folder)


def test_weights_split_over_files_are_found_by_their_index(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    whole = AutoModelForCausalLM.from_pretrained(checkpoints["llama"])
    whole.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = loaded(make_run_plan(spec_for(checkpoints["llama"]), model_path=str(tmp_path)))
    again = loaded(planned(checkpoints["llama"], fields={}))
    for found, wanted in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM is not supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type yarn"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_unsupported_models_are_refused_by_name(
    changes: dict[str, Any], words: str, checkpoints: dict[str, Path]
) -> None:
    config = json.loads((checkpoints["llama"] / "config.json").read_text()) | changes
    with pytest.raises(UnsupportedModel, match=words):
        parse_config(json.dumps(config).encode()).model()


def test_both_ways_to_write_rotary_positions_mean_the_same(checkpoints: dict[str, Path]) -> None:
    config = json.loads((checkpoints["llama3-tied"] / "config.json").read_text())
    now = parse_config(json.dumps(config).encode()).model()
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert parse_config(json.dumps(config).encode()).model() == now
    assert now.rope_base == 500_000


def test_a_bad_checkpoint_ends_a_run_before_its_first_step(
    checkpoints: dict[str, Path], pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    run_plan = planned(checkpoints["llama"], fields=ragged, model__width=64)
    with pytest.raises(RunFailed, match=r"model.width is 64 in the spec, 32 in config.json"):
        pool.train(run_plan, tmp_path / "run")


HUB_MODEL = "hub:owner/tiny@v1"


def test_a_model_of_the_hub_comes_from_the_nodes_cache(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out as huggingface_hub leaves it; nothing is fetched."""
    cached = tmp_path / "models--owner--tiny"
    shutil.copytree(checkpoints["llama"], cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "v1").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    run_plan = with_model(
        make_run_plan(spec_for(checkpoints["llama"], model__checkpoint=HUB_MODEL))
    )
    assert run_plan.model_path == str(cached / "snapshots" / "abc")
    assert loaded(run_plan).norm is not None
    assert with_model(run_plan) is run_plan


def test_a_model_of_the_hub_that_cannot_be_fetched_says_what_to_do(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    spec = spec_for(checkpoints["llama"], model__checkpoint=HUB_MODEL)
    with pytest.raises(BadCheckpoint, match="trainyard models upload") as refused:
        with_model(make_run_plan(spec))
    assert "hub:owner/tiny@v1 cannot be fetched" in str(refused.value)
