"""The plan's memory against the allocator's count, for one of 8 ranks, with the proportions of 7B
and 8B models: a sixteenth of their width, tokens and words.

Groups carry nothing, but what is gathered, sent and received is allocated as on a real rank.
"""

import math
from typing import Any

import pytest

from strategies.plan.estimates.memory import memory_by_stage
from strategies.plan.planner import plan, resolve
from tests.strategies.support.fake_ranks import peak_gib
from tests.strategies.support.training_runs import HARDWARE, Options, make_spec

pytestmark = pytest.mark.gloo

RANKS, BAND = 8, 0.10
OF_8B: Options = {"name": "llama", "layers": 8, "width": 256, "heads": 8, "kv_heads": 2}
OF_7B: Options = {"name": "llama", "layers": 8, "width": 256, "heads": 8}
CASES: dict[str, tuple[Options, int, dict[str, Any]]] = {
    "8B, fsdp, full checkpointing": (
        OF_8B,
        8_016,
        {"parallelism": {"strategy": "fsdp"}, "activation_checkpointing": "full"},
    ),
    "8B, fsdp, 4 micro-batches": (
        OF_8B,
        8_016,
        {
            "parallelism": {"strategy": "fsdp"},
            "activation_checkpointing": "full",
            "training__global_batch_size": 4 * RANKS,
            "training__gradient_accumulation_steps": 4,
        },
    ),
    "8B, fsdp": (OF_8B, 8_016, {"parallelism": {"strategy": "fsdp"}}),
    "8B, fsdp, float32": (
        OF_8B,
        8_016,
        {"parallelism": {"strategy": "fsdp"}, "precision": "float32"},
    ),
    "8B, tensor": ({**OF_8B, "kv_heads": 8}, 8_016, {"parallelism": {"strategy": "tensor"}}),
    "7B, fsdp": (OF_7B, 2_000, {"parallelism": {"strategy": "fsdp"}}),
}
LONG = ("8B, fsdp", "8B, fsdp, 4 micro-batches", "8B, tensor", "7B, fsdp")


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES]
)
def test_one_of_eight_ranks_needs_what_the_plan_says(case: str) -> None:
    model, words, changes = CASES[case]
    spec = make_spec(
        **{
            "model": model,
            "data__tokenizer": "characters",
            "data__vocabulary_size": words,
            "data__sequence_length": 256,
            "training__steps": 3,
            "training__warmup_steps": 0,
            "training__global_batch_size": RANKS,
            "precision": "bfloat16",
            **changes,
        }
    )
    found = plan(spec, nodes=1, ranks_per_node=RANKS, hardware=HARDWARE)
    [terms] = memory_by_stage(resolve(spec, nodes=1, ranks_per_node=RANKS, hardware=HARDWARE))
    planned = sum(term.gib for term in terms if term.name != "process")
    weighed = peak_gib(spec, found)
    assert math.isclose(planned, weighed, rel_tol=BAND), (
        weighed * 1024,
        {term.name: term.gib * 1024 for term in terms},
    )
