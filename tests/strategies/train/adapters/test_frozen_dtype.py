"""Frozen matrices in the checkpoint's own type: the same curve in half the memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strategies.plan.estimates.memory import GIB
from strategies.plan.gpus import known_node
from strategies.plan.layout import Layout
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import TrainSpec
from strategies.train.engine import Batch
from strategies.train.engines.spmd import SpmdEngine
from strategies.train.fine_tuning.source import with_frozen_dtype
from strategies.train.init import Region, Source, seed_of
from strategies.train.mesh import Mesh
from tests.strategies.support.hf_models import make_model, planned
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    make_run_plan,
    make_spec,
    spec_of_model,
)

CPU = torch.device("cpu")
SMALL: Options = {"model__layers": 2, "model__width": 32, "data__sequence_length": 16}
LORA: Options = {"rank": 4, "alpha": 8, "targets": ["query", "value", "down"]}
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Rounded:
    """Source of weights as a checkpoint in 16 bits has them."""

    source: Source
    dtype: torch.dtype

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        return self.source.read(name, shape, region, device=device).to(self.dtype)


def spec_with(frozen: str | None, **changes: Any) -> TrainSpec:
    adapter = {**LORA, **changes.pop("adapter", {}), "frozen_dtype": frozen}
    return make_spec(
        **{
            "adapter": adapter,
            "precision": "bfloat16",
            "training__warmup_steps": 0,
            "model__name": "llama",
            **SMALL,
            **changes,
        }
    )


def engine_of(spec: TrainSpec, *, stored: torch.dtype) -> SpmdEngine:
    engine = SpmdEngine()
    source = Rounded(seed_of(spec), stored)
    engine.setup(spec, make_run_plan(spec).plan, Mesh(Layout(), 0, CPU), source)
    return engine


def losses(engine: SpmdEngine, spec: TrainSpec, *, steps: int = 4) -> list[float]:
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        shape = spec.training.global_batch_size, spec.data.sequence_length or 1
        tokens_BT = torch.randint(0, 256, shape, generator=generator)
        batch = Batch(tokens_BT, tokens_BT.roll(-1, dims=1))
        found.append(float(engine.forward_backward([batch], tokens_BT.numel())))
        engine.clip(spec.training.max_grad_norm, 1.0)
        engine.step(1e-2)
    return found


@pytest.mark.parametrize(
    ("stored", "changes"),
    [
        ("bfloat16", {}),
        ("float16", {}),
        ("bfloat16", {"precision": "float16"}),
        ("bfloat16", {"model__name": "gpt", "model__tied_embeddings": True}),
        ("bfloat16", {"activation_checkpointing": "selective"}),
        ("bfloat16", {"adapter": {"base": "nf4"}}),
    ],
    ids=["llama", "float16 weights", "float16", "gpt tied", "checkpointing", "nf4"],
)
def test_the_curve_is_that_of_float32_weights_bit_by_bit(stored: str, changes: Options) -> None:
    narrow, wide = (spec_with(frozen, **changes) for frozen in (stored, "float32"))
    engines = [engine_of(spec, stored=HALF[stored]) for spec in (narrow, wide)]
    assert losses(engines[0], narrow) == losses(engines[1], wide)
    for mine, other in zip(*(engine.weights for engine in engines), strict=True):
        assert mine.parameter.dtype is torch.float32
        assert torch.equal(mine.parameter, other.parameter), mine.name
    if "adapter" not in changes:
        assert engines[0].held().weights < 0.6 * engines[1].held().weights


def test_the_plan_counts_what_a_rank_then_holds() -> None:
    for frozen, tied in (
        ("bfloat16", False),
        ("bfloat16", True),
        ("float32", False),
        (None, False),
    ):
        spec = spec_with(frozen, model__tied_embeddings=tied)
        terms = {term.name: term.gib * GIB for term in make_run_plan(spec).plan.memory}
        held = engine_of(spec, stored=torch.float32).held()
        assert held.weights == terms["frozen"] + terms["weights"]


def test_float32_keeps_its_own_type() -> None:
    spec = spec_with("bfloat16", precision="float32")
    assert all(
        weight.dtype is torch.float32
        for weight in engine_of(spec, stored=torch.bfloat16).model.parameters()
    )


# Checkpoints


def in_type(folder: Path, dtype: torch.dtype, *, but: str = "") -> Path:
    """Store a checkpoint's weights in a type, all but one."""
    path = folder / "model.safetensors"
    weights = {n: w if n == but else w.to(dtype) for n, w in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("dtype", "but", "found"),
    [
        (torch.bfloat16, "", "bfloat16"),
        (torch.float16, "", "float16"),
        (torch.float32, "", "float32"),
        (torch.bfloat16, "model.norm.weight", "bfloat16"),
        (torch.bfloat16, "lm_head.weight", "float32"),
    ],
)
def test_the_type_is_read_from_the_headers_of_the_files(
    tmp_path: Path, dtype: torch.dtype, but: str, found: str
) -> None:
    checkpoint = in_type(make_model("llama", tmp_path), dtype, but=but)
    run_plan = planned(checkpoint, fields={}, adapter=LORA, precision="bfloat16")
    told = with_frozen_dtype(run_plan).spec.adapter
    assert told is not None
    assert told.frozen_dtype == found
    asked = planned(
        checkpoint, fields={}, adapter={**LORA, "frozen_dtype": "float16"}, precision="bfloat16"
    )
    assert with_frozen_dtype(asked) is asked


@pytest.mark.gloo
@pytest.mark.parametrize(
    "parallelism",
    [
        {"strategy": "fsdp"},
        pytest.param({"strategy": "tensor", "sequence_parallel": True}, marks=pytest.mark.slow),
        pytest.param({"strategy": "tensor"}, marks=pytest.mark.slow),
        pytest.param({"strategy": "pipeline"}, marks=pytest.mark.slow),
    ],
    ids=["fsdp", "sequence", "tensor", "pipeline"],
)
def test_every_layout_trains_beside_a_checkpoint_in_16_bits_as_beside_float32(
    parallelism: Options, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    checkpoint = in_type(make_model("qwen2", tmp_path / "model"), torch.bfloat16)
    curves = []
    for frozen in (None, "float32"):
        run_plan = planned(
            checkpoint,
            ranks=2,
            fields=ragged,
            adapter={**LORA, "frozen_dtype": frozen},
            precision="bfloat16",
            parallelism=parallelism,
        )
        curves.append(pool.train(run_plan, tmp_path / str(frozen)).series("loss"))
    assert len(curves[0]) == 6
    assert curves[0] == curves[1]


# Plans


def lora_of(model: str, **changes: Any) -> TrainSpec:
    return spec_of_model(
        model,
        adapter={"rank": 8, "targets": ["query", "value"]},
        precision="bfloat16",
        activation_checkpointing="full",
        data__sequence_length=2048,
        training__global_batch_size=2,
        **changes,
    )


def on_24_gb(spec: TrainSpec) -> Plan:
    return plan(spec, nodes=1, ranks_per_node=1, hardware=known_node("rtx4090-24gb", gpus=1))


def test_lora_of_7_billion_in_bfloat16_fits_24_gb() -> None:
    """torchtune's README: 17.18 GB at its peak, for Llama-2-7B and two samples at a time."""
    found = on_24_gb(lora_of("llama-2-7b", model__checkpoint="hub:meta-llama/Llama-2-7b-hf"))
    assert found.fits
    frozen = next(term for term in found.memory if term.name == "frozen")
    assert frozen.gib == pytest.approx(12.55, abs=0.01)
    assert not on_24_gb(lora_of("llama-2-7b", adapter__frozen_dtype="float32")).fits


def test_the_plan_says_which_type_it_assumed() -> None:
    def said(**changes: Any) -> list[str]:
        spec = spec_with(None, model__checkpoint="hub:a/b", **changes)
        found = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).warnings
        return [line for line in found if "assumes" in line]

    (line,) = said()
    assert "hub:a/b has 16 bits a number" in line
    assert "adapter.frozen_dtype" in line
    assert said(precision="float32") == []
