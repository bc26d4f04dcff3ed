"""The plan's memory against the allocator's own count, run by run and rank by rank."""

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from strategies.plan.estimates.memory import memory_by_stage
from strategies.plan.planner import resolve
from strategies.plan.spec import FrozenBase, OptimizerName, TrainSpec
from tests.strategies.support.training_runs import (
    HARDWARE,
    OF_8B,
    WORDS_OF_8B,
    Options,
    WarmRanks,
    make_run_plan,
    make_spec,
)

pytestmark = pytest.mark.gloo

BAND, BAND_OF_IMAGES = 0.08, 0.10
GPT: Options = {"name": "gpt", "layers": 4, "width": 128, "heads": 4}
LLAMA: Options = {**GPT, "name": "llama", "kv_heads": 2}
CNN: Options = {"name": "cnn", "layers": 2, "width": 32}
MLP: Options = {"name": "mlp", "layers": 2, "width": 256}
DIGITS: Options = {
    "data": {"dataset": "digits", "held_out": 0.2},
    "data__sequence_length": None,
    "training__global_batch_size": 256,
}
EVERYWHERE = ["query", "key", "value", "output", "up", "down"]
LORA: Options = {"kind": "lora", "rank": 8, "alpha": 16, "targets": EVERYWHERE}
WIDE: Options = {**LLAMA, "width": 512}
SMALL: Options = {"name": "llama", "layers": 2, "width": 64, "heads": 4}
WORDS: Options = {"data__tokenizer": "characters", "data__vocabulary_size": 32_768}
MANY_WORDS: Options = {"data__tokenizer": "characters", "data__vocabulary_size": 128_256}
TWO_SAMPLES: Options = {"training__global_batch_size": 2}
TENSOR: Options = {"strategy": "tensor", "sequence_parallel": True}
FEW: Options = {"data__sequence_length": 16, "training__global_batch_size": 1}  # tokens


class Case(NamedTuple):
    """A run to weigh."""

    name: str
    ranks: int
    changes: Options


def one(name: str, model: Options, **changes: Any) -> Case:
    return Case(name, 1, {"model": model, "parallelism": {"strategy": "single"}, **changes})


def two(name: str, parallelism: Options, **changes: Any) -> Case:
    return Case(name, 2, {"model": GPT, "parallelism": parallelism, **changes})


IN_FOUR = {"training__gradient_accumulation_steps": 4}


def by_weights(optimizer: str, momentum: float = 0.9, width: int = 512) -> Case:
    """Return a run whose states and update take nearly all memory."""
    name = f"llama of width {width}, {optimizer}{'' if momentum else ' without momentum'}"
    model = {**LLAMA, "width": width}
    return one(name, model, training__optimizer=optimizer, training__beta1=momentum, **FEW)


def of_features(schedule: str) -> Case:
    """Return a pipeline's run in which a step's features, between stages, take more than states."""
    return two(
        f"pipeline, {schedule}, 64 micro-batches, full checkpointing",
        {"strategy": "pipeline", "pipeline_schedule": schedule},
        activation_checkpointing="full",
        data__sequence_length=512,
        training__global_batch_size=64,
        training__gradient_accumulation_steps=64,
    )


EACH = {"reduce_gradients": "each_micro_batch"}
BY_DEEPSPEED: dict[str, Options] = {
    "": {},
    ", llama of width 512": {"model": WIDE, **FEW, **TWO_SAMPLES},
    ", llama of width 512, 4 micro-batches": {
        "model": WIDE,
        **{**FEW, **IN_FOUR, "training__global_batch_size": 8},
    },
    ", 32,768 words, full checkpointing": {
        "model": SMALL,
        "activation_checkpointing": "full",
        **WORDS,
    },
    # Matrices that are larger than DeepSpeed's bucket.
    ", 128,256 words": {
        "model": {**SMALL, "width": 256},
        **{**FEW, **MANY_WORDS, **TWO_SAMPLES},
    },
    ", 128,256 words, tied": {
        "model": {**SMALL, "width": 256, "tied_embeddings": True},
        **{**FEW, **MANY_WORDS, **TWO_SAMPLES},
    },
    ", 128,256 words, 2,048 tokens": {
        "model": {**SMALL, "width": 256, "layers": 8},
        "data__sequence_length": 512,
        "training__global_batch_size": 8,
        **MANY_WORDS,
    },
}
QUICK = [
    two("ddp", {"strategy": "ddp"}),
    two("fsdp, bfloat16, 4 micro-batches", {"strategy": "fsdp"}, precision="bfloat16", **IN_FOUR),
    of_features("1F1B"),
    by_weights("lamb", width=256),
]
LONG = [
    one("gpt", GPT),
    one("llama", LLAMA),
    one("llama, bfloat16", LLAMA, precision="bfloat16"),
    one("llama, 32,768 words, bfloat16", SMALL, precision="bfloat16", **WORDS),
    one("gpt, full checkpointing", GPT, activation_checkpointing="full"),
    two("fsdp", {"strategy": "fsdp"}),
    by_weights("sgd"),
    one("gpt, sgd, 4 micro-batches", GPT, training__optimizer="sgd", **IN_FOUR),
    one(
        "gpt, sgd without momentum, 4 micro-batches",
        GPT,
        training__optimizer="sgd",
        training__beta1=0.0,
        **IN_FOUR,
    ),
    one("llama, 4 micro-batches", LLAMA, **IN_FOUR),
    one("gpt, selective checkpointing", GPT, activation_checkpointing="selective"),
    one("llama, selective checkpointing", LLAMA, activation_checkpointing="selective"),
    one("llama, heads twice as wide", {**LLAMA, "head_width": 64}),
    one("llama, full checkpointing", LLAMA, activation_checkpointing="full"),
    one("gpt, bfloat16", GPT, precision="bfloat16"),
    one("gpt, pure bfloat16", GPT, precision="pure_bfloat16"),
    one("llama, pure bfloat16", LLAMA, precision="pure_bfloat16"),
    one("gpt, float64", GPT, precision="float64"),
    one("llama, float64", LLAMA, precision="float64"),
    one(
        "gpt, tied, 4,096 tokens",
        {**GPT, "tied_embeddings": True},
        data__tokenizer="characters",
        data__vocabulary_size=4096,
    ),
    two("ddp, 2 micro-batches", {"strategy": "ddp"}, training__gradient_accumulation_steps=2),
    two("fsdp, 2 micro-batches", {"strategy": "fsdp"}, training__gradient_accumulation_steps=2),
    two("fsdp, full checkpointing", {"strategy": "fsdp"}, activation_checkpointing="full"),
    two("fsdp, bfloat16", {"strategy": "fsdp"}, precision="bfloat16"),
    two(
        "fsdp, bfloat16, llama, full checkpointing",
        {"strategy": "fsdp"},
        model=LLAMA,
        precision="bfloat16",
        activation_checkpointing="full",
    ),
    two(
        "fsdp, bfloat16, llama of width 512",
        {"strategy": "fsdp"},
        precision="bfloat16",
        model=WIDE,
        **{**FEW, "training__global_batch_size": 2},
    ),
    two(
        "fsdp, bfloat16, llama of width 512, 4 micro-batches",
        {"strategy": "fsdp"},
        precision="bfloat16",
        model=WIDE,
        **{**FEW, **IN_FOUR, "training__global_batch_size": 8},
    ),
    two(
        "fsdp, bfloat16, tied, 4,096 tokens",
        {"strategy": "fsdp"},
        precision="bfloat16",
        model={**GPT, "tied_embeddings": True},
        data__tokenizer="characters",
        data__vocabulary_size=4096,
    ),
    Case(
        "fsdp in a pipeline, bfloat16, llama of width 512",
        4,
        {
            "parallelism": {"strategy": "pipeline", "data_parallel_shard_degree": 2},
            "precision": "bfloat16",
            "model": WIDE,
            **FEW,
            "training__global_batch_size": 8,
        },
    ),
    one("llama, 32,768 words", SMALL, **WORDS),
    one("gpt, tied, 32,768 words", {**SMALL, "name": "gpt", "tied_embeddings": True}, **WORDS),
    two("tensor, 32,768 words", {"strategy": "tensor"}, model=SMALL, **WORDS),
    two("pipeline, 32,768 words", {"strategy": "pipeline"}, model=SMALL, **WORDS),
    two(
        "pipeline, GPipe, 32,768 words, bfloat16",
        {"strategy": "pipeline", "pipeline_schedule": "GPipe"},
        model=SMALL,
        precision="bfloat16",
        **WORDS,
    ),
    *(
        two(
            f"pipeline, {schedule}, bfloat16, llama of width 512, 4 micro-batches",
            {"strategy": "pipeline", "pipeline_schedule": schedule},
            model=WIDE,
            precision="bfloat16",
            **{**FEW, **IN_FOUR, "training__global_batch_size": 4},
        )
        for schedule in ("GPipe", "1F1B", "ZBVZeroBubble")
    ),
    *(
        Case(
            f"{axis} in a pipeline, bfloat16, llama of width 512, 4 micro-batches",
            4,
            {
                "parallelism": {"strategy": "pipeline", degree: 2, "pipeline_schedule": "GPipe"},
                "precision": "bfloat16",
                "model": WIDE,
                **FEW,
                **IN_FOUR,
                "training__global_batch_size": 8,
            },
        )
        for axis, degree in (
            ("replicas", "data_parallel_replicate_degree"),
            ("context", "context_parallel_degree"),
        )
    ),
    two("fsdp, 32,768 words", {"strategy": "fsdp"}, model=SMALL, **WORDS),
    two(
        "fsdp, 32,768 words, bfloat16, 4 micro-batches",
        {"strategy": "fsdp"},
        model=SMALL,
        precision="bfloat16",
        **WORDS,
        **IN_FOUR,
    ),
    two(
        "fsdp, tied, 32,768 words, bfloat16",
        {"strategy": "fsdp"},
        model={**SMALL, "tied_embeddings": True},
        precision="bfloat16",
        **WORDS,
    ),
    two(
        "fsdp, 8B's proportions, bfloat16, full checkpointing",
        {"strategy": "fsdp"},
        model=OF_8B,
        precision="bfloat16",
        activation_checkpointing="full",
        training__global_batch_size=2,
        **{**WORDS_OF_8B, "data__sequence_length": 256},
    ),
    two(
        "fsdp, 8B's proportions, tied, full checkpointing",
        {"strategy": "fsdp"},
        model={**OF_8B, "tied_embeddings": True},
        activation_checkpointing="full",
        training__global_batch_size=2,
        **{**WORDS_OF_8B, "data__sequence_length": 256},
    ),
    two("zero1", {"strategy": "zero1"}),
    two("zero2", {"strategy": "zero2"}),
    two("zero3", {"strategy": "zero3"}),
    two("fsdp, 4 micro-batches, reduced each", {"strategy": "fsdp", **EACH}, **IN_FOUR),
    *(
        two(
            f"fsdp, {precision}, llama of width 512, 4 micro-batches, reduced {how}",
            {"strategy": "fsdp", "reduce_gradients": how},
            precision=precision,
            model=WIDE,
            **{**FEW, **IN_FOUR, "training__global_batch_size": 8},
        )
        for precision, how in (("float32", "each_micro_batch"), ("bfloat16", "once"))
    ),
    *(
        two(f"{stage}, bfloat16{name}", {"strategy": stage}, precision="bfloat16", **how)
        for stage in ("zero1", "zero2", "zero3")
        for name, how in BY_DEEPSPEED.items()
    ),
    *(
        two(
            f"{stage}, {precision}, optimizer on the host{name}",
            {"strategy": stage, "offload_optimizer": "cpu"},
            precision=precision,
            **BY_DEEPSPEED[name],
        )
        for stage in ("zero1", "zero2", "zero3")
        for precision in ("float32", "bfloat16")
        for name in (", llama of width 512, 4 micro-batches", ", 128,256 words")
        if (stage, name) != ("zero1", ", 128,256 words")  # ranks differ: one has the head's matrix
    ),
    two("tensor", {"strategy": "tensor"}),
    two("tensor, sequence parallel", TENSOR),
    two("tensor, llama, sequence parallel", TENSOR, model=LLAMA),
    two("tensor, llama, LoRA", TENSOR, model=LLAMA, adapter=LORA),
    two("pipeline, GPipe", {"strategy": "pipeline", "pipeline_schedule": "GPipe"}),
    two("pipeline, interleaved", {"strategy": "pipeline", "pipeline_schedule": "Interleaved1F1B"}),
    two(
        "pipeline, zero bubble",
        {"strategy": "pipeline", "pipeline_schedule": "InterleavedZeroBubble"},
        training__gradient_accumulation_steps=8,
    ),
    two("pipeline, ZBV", {"strategy": "pipeline", "pipeline_schedule": "ZBVZeroBubble"}),
    *(of_features(schedule) for schedule in ("GPipe", "Interleaved1F1B", "ZBVZeroBubble")),
    two("pipeline, 1F1B", {"strategy": "pipeline"}),
    two("naive", {"strategy": "naive"}),
    two("context, ring", {"strategy": "context"}),
    two("context, Ulysses", {"strategy": "context", "ulysses_degree": 2}),
    one("gpt, LoRA", GPT, adapter=LORA),
    one("gpt, LoRA, full checkpointing", GPT, adapter=LORA, activation_checkpointing="full"),
    one("gpt, QLoRA", GPT, adapter={**LORA, "base": "nf4"}),
    *(
        one(
            f"llama of width 1,024, {base}, {precision}",
            {**LLAMA, "layers": 2, "width": 1024},
            adapter={**LORA, "base": base},
            precision=precision,
            **FEW,
        )
        for base in ("nf4", "int8")
        for precision in ("float32", "bfloat16", "pure_bfloat16")
    ),
    one("gpt, int8 base", GPT, adapter={**LORA, "base": "int8"}),
    one("gpt, AdamW in 8 bits", GPT, training__optimizer="adamw_8bit"),
    *(by_weights(name) for name in ("adamw", "adamw_8bit", "lars", "lamb")),
    *(by_weights(name, momentum=0.0) for name in ("sgd", "lars")),
    one("gpt, loss in 4 parts", GPT, tiling__loss_parts=4),
    one("cnn", CNN, **DIGITS),
    one("mlp", MLP, **DIGITS),
    two("fsdp, LoRA", {"strategy": "fsdp"}, adapter=LORA),
    two("fsdp, QLoRA", {"strategy": "fsdp"}, adapter={**LORA, "base": "nf4"}),
    two("fsdp, matrix by matrix", {"strategy": "fsdp"}, tiling__gather="matrix"),
]


@pytest.mark.parametrize(
    "case",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda case: case.name,
)
def test_every_rank_needs_what_the_plan_says(
    warm: WarmRanks, ragged: Options, tmp_path: Path, case: Case
) -> None:
    spec = make_spec(
        **{
            "training__steps": 3,
            "training__warmup_steps": 0,
            "data__sequence_length": 128,
            **case.changes,
        }
    )
    data = {} if spec.data.dataset == "digits" else ragged
    how = {"case": "train_with_bitsandbytes"} if stores_in_few_bits(spec) else {}
    run = warm.train(make_run_plan(spec, ranks=case.ranks, **data), tmp_path / "run", **how)
    assert len(run.result.peak_gib) == case.ranks
    band = BAND_OF_IMAGES if spec.model.name.reads_images else BAND
    asked = resolve(spec, nodes=1, ranks_per_node=case.ranks, hardware=HARDWARE)
    by_stage = memory_by_stage(asked)
    for rank, weighed in enumerate(run.result.peak_gib):
        terms = by_stage[rank * len(by_stage) // case.ranks]
        planned = sum(term.gib for term in terms if term.name != "process")
        error = planned / weighed - 1
        sys.stdout.write(f"| {case.name} | {rank} | {weighed * 1024:.1f} | {error:+.1%} |\n")
        # On a busy machine gloo's thread may hold the buckets that it has reduced for a moment
        # longer, when DDP has made new ones: seen once in some hundred runs, to the byte.
        held = sum(term.gib for term in terms if term.name == "gradients")
        late = planned + held if case.changes["parallelism"]["strategy"] == "ddp" else planned
        assert any(math.isclose(most, weighed, rel_tol=band) for most in (planned, late)), (
            weighed * 1024,
            {t.name: t.gib * 1024 for t in terms},
        )


def stores_in_few_bits(spec: TrainSpec) -> bool:
    """Whether it needs bitsandbytes."""
    return spec.training.optimizer is OptimizerName.ADAMW_8BIT or (
        spec.adapter is not None and spec.adapter.base is not FrozenBase.NONE
    )
