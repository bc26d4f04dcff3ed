"""The plan's memory against the allocator's count, for one of 2 to 64 ranks, with the proportions
of 7B, 8B and 70B models: a sixteenth of their width, tokens and words, and a part of their layers.

Groups carry nothing, but what is gathered, sent and received is allocated as on a real rank.
"""

import math
from typing import Any, NamedTuple

import pytest

from strategies.plan.estimates import units
from strategies.plan.estimates.memory import memory_by_stage
from strategies.plan.planner import plan, resolve
from tests.strategies.support.fake_ranks import peak_gib
from tests.strategies.support.training_runs import (
    HARDWARE,
    OF_8B,
    WORDS_OF_8B,
    Options,
    make_spec,
)

pytestmark = pytest.mark.gloo

BAND = 0.08
RANKS_PER_NODE = 8
OF_7B: Options = {"name": "llama", "layers": 8, "width": 256, "heads": 8}
OF_70B: Options = {"name": "llama", "layers": 10, "width": 512, "heads": 8, "ffn_width": 1_792}
FSDP: Options = {"parallelism": {"strategy": "fsdp"}}
FULL: Options = {**FSDP, "activation_checkpointing": "full"}


class Case(NamedTuple):
    """A run of which one rank is weighed."""

    name: str
    model: Options
    ranks: int
    changes: dict[str, Any]


QUICK = [
    Case("8B, fsdp, float32", OF_8B, 8, {**FSDP, "precision": "float32"}),
]
LONG = [
    Case("8B, fsdp, full checkpointing", OF_8B, 2, FULL),
    Case("8B, fsdp, full checkpointing", OF_8B, 8, FULL),
    Case("8B, fsdp", OF_8B, 8, FSDP),
    Case(
        "8B, fsdp, full checkpointing, 4 micro-batches",
        OF_8B,
        8,
        {**FULL, "training__global_batch_size": 32, "training__gradient_accumulation_steps": 4},
    ),
    Case("8B, fsdp, many logits", OF_8B, 8, {**FULL, "training__global_batch_size": 32}),
    Case("8B, fsdp, float32", OF_8B, 8, {**FULL, "precision": "float32"}),
    Case(
        "8B, tensor, sequence parallel, float32",
        {**OF_8B, "kv_heads": 8},
        8,
        {"parallelism": {"strategy": "tensor", "sequence_parallel": True}, "precision": "float32"},
    ),
    Case("8B, tensor", {**OF_8B, "kv_heads": 8}, 8, {"parallelism": {"strategy": "tensor"}}),
    Case("7B, fsdp", OF_7B, 8, {**FSDP, "data__vocabulary_size": 2_000}),
    Case("70B, fsdp", {**OF_70B, "kv_heads": 1}, 64, FULL),
    Case(
        "70B, fsdp over 8 x tensor over 8",
        OF_70B,
        64,
        {
            "parallelism": {"data_parallel_shard_degree": 8, "tensor_parallel_degree": 8},
            "activation_checkpointing": "full",
        },
    ),
]


@pytest.mark.parametrize(
    "case",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda case: f"{case.name}, {case.ranks} ranks",
)
def test_one_of_many_ranks_needs_what_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(units, "COPIES_OF_GLOO", 0)
    spec = make_spec(
        **{
            "model": case.model,
            **WORDS_OF_8B,
            "data__sequence_length": 256,
            "training__steps": 3,
            "training__warmup_steps": 0,
            "training__global_batch_size": case.ranks,
            "precision": "bfloat16",
            **case.changes,
        }
    )
    per_node = min(case.ranks, RANKS_PER_NODE)
    nodes = case.ranks // per_node
    found = plan(spec, nodes=nodes, ranks_per_node=per_node, hardware=HARDWARE)
    [terms] = memory_by_stage(
        resolve(spec, nodes=nodes, ranks_per_node=per_node, hardware=HARDWARE)
    )
    planned = sum(term.gib for term in terms if term.name != "process")
    weighed = peak_gib(spec, found)
    assert math.isclose(planned, weighed, rel_tol=BAND), (
        weighed * 1024,
        {term.name: term.gib * 1024 for term in terms},
    )
