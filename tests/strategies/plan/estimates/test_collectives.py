"""Types and bytes of the collectives of 8 to 64 ranks, against what a plan says that they send.

One process is one of the ranks, with the engine and real tensors, in groups that carry nothing.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import pytest
import torch

from strategies.plan.estimates.traffic import Traffic
from strategies.plan.planner import plan
from tests.strategies.support.fake_ranks import collectives_of_a_step
from tests.strategies.support.training_runs import HARDWARE, Options, make_spec

F32, BF16 = torch.float32, torch.bfloat16
Types = dict[str, set[torch.dtype]]

# Of each line of ranks in the plan's traffic, in its order, the collectives and their types under
# bfloat16. Weights are rounded before they are gathered, and their gradients added up in float32.
# Features have two bytes everywhere; of a loss over ranks, float32 numbers are summed.
GRADIENTS: Types = {"all_reduce": {F32}}
SHARDS: Types = {"all_gather": {BF16}, "reduce_scatter": {F32}}
CASES: dict[str, tuple[int, Options, str, list[Types]]] = {
    "ddp": (8, {"strategy": "ddp"}, "none", [GRADIENTS]),
    "ddp-compressed": (
        64,
        {"strategy": "ddp", "gradient_compression": "bfloat16"},
        "none",
        [{"all_reduce": {BF16}}],
    ),
    "fsdp": (8, {"strategy": "fsdp"}, "none", [SHARDS]),
    "fsdp-64": (64, {"strategy": "fsdp"}, "full", [SHARDS]),
    "hsdp": (
        64,
        {
            "strategy": "hsdp",
            "data_parallel_shard_degree": 8,
            "data_parallel_replicate_degree": 8,
        },
        "none",
        [SHARDS, GRADIENTS],
    ),
    "tensor": (8, {"strategy": "tensor"}, "none", [{"all_reduce": {F32, BF16}}]),
    "tensor-recomputed": (8, {"strategy": "tensor"}, "full", [{"all_reduce": {F32, BF16}}]),
    "sequence": (
        8,
        {"strategy": "tensor", "sequence_parallel": True},
        "none",
        [{"all_gather": {BF16}, "reduce_scatter": {BF16}, "all_reduce": {F32}}],
    ),
    "sequence-recomputed": (
        8,
        {"strategy": "tensor", "sequence_parallel": True},
        "full",
        [{"all_gather": {BF16}, "reduce_scatter": {BF16}, "all_reduce": {F32}}],
    ),
    "fsdp-tensor": (
        64,
        {"data_parallel_shard_degree": 8, "tensor_parallel_degree": 8},
        "none",
        [SHARDS, {"all_reduce": {F32, BF16}}],
    ),
    # Gradients of keys and values add up on their way round the ring.
    "ring": (8, {"strategy": "context"}, "full", [GRADIENTS, {"send": {F32, BF16}}]),
    "ulysses": (
        8,
        {"strategy": "context", "ulysses_degree": 8},
        "none",
        [GRADIENTS, {"all_to_all": {BF16}}],
    ),
    "ulysses-ring": (
        16,
        {"strategy": "context", "ulysses_degree": 4},
        "none",
        [GRADIENTS, {"all_to_all": {BF16}, "send": {F32, BF16}}],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_collectives_have_the_types_and_bytes_of_the_plan(case: str) -> None:
    ranks, parallelism, checkpointing, types = CASES[case]
    changes: Any = {"precision": "bfloat16", "activation_checkpointing": checkpointing}
    compare(ranks, parallelism, types, **changes)


@pytest.mark.parametrize("case", ["ddp", "hsdp", "tensor", "ulysses-ring"])
def test_with_weights_of_two_bytes_nothing_wider_is_sent_but_sums(case: str) -> None:
    ranks, parallelism, checkpointing, found = CASES[case]
    wide = {"tensor": {"all_reduce": {F32, BF16}}, "ulysses-ring": {"send": {F32, BF16}}}
    types = [{kind: wide.get(case, {}).get(kind, {BF16}) for kind in entry} for entry in found]
    changes: Any = {"precision": "pure_bfloat16", "activation_checkpointing": checkpointing}
    compare(ranks, parallelism, types, **changes)


@pytest.mark.parametrize("base", [pytest.param("int8", marks=pytest.mark.slow), "nf4"])
def test_codes_of_frozen_weights_are_gathered_as_they_are(base: str) -> None:
    """As bytes; row scales (int8), and those of blocks of scales (nf4), are whole on every rank."""
    adapter = {"targets": ["query", "down"], "base": base}
    types: list[Types] = [{"all_gather": {torch.uint8, F32}, "reduce_scatter": {F32}}]
    compare(8, {"strategy": "fsdp"}, types, room=0.03, adapter=adapter)


def compare(
    ranks: int, parallelism: Options, types: list[Types], *, room: float = 0.0, **changes: Any
) -> None:
    """Assert that what one rank sends has these types, and the bytes of the plan.

    Within 0.1 %; where matrices are split by tensor parallelism within 2 %, because their norms are
    not. Single numbers, such as the gradient's norm, are not in the plan.
    """
    layers_only = "tensor" in str(parallelism) or parallelism["strategy"] == "context"
    samples = 2 if layers_only and ranks < 64 else 2 * ranks
    spec = make_spec(
        parallelism=parallelism,
        model={"name": "llama", "layers": 2, "width": 64, "heads": 8},
        data={
            "tokenizer": "characters",
            "vocabulary_size": 256,
            "sequence_length": 64,
            "dataset": "ragged",
        },
        training__gradient_accumulation_steps=2,
        training__global_batch_size=samples,
        **changes,
    )
    nodes = ranks // 8
    planned = plan(spec, nodes=nodes, ranks_per_node=8, hardware=HARDWARE)
    assert planned.runnable, planned.problems
    assert planned.cost is not None
    calls = [call for call in collectives_of_a_step(spec, planned) if call.numel > 1]
    room = room or (0.02 if planned.layout.tensor > 1 else 1e-3)
    expected = by_line(planned.cost.traffic)
    assert len(types) == len(expected)
    assert {call.kind for call in calls} == {kind for entry in types for kind in entry}
    for (line, num_bytes), by_kind in zip(expected.items(), types, strict=True):
        own = [call for call in calls if call.kind in by_kind]
        for kind, dtypes in by_kind.items():
            assert {call.dtype for call in own if call.kind == kind} == dtypes
        sent = sum(call.num_bytes for call in own)
        assert sent == pytest.approx(num_bytes, rel=room), line


def by_line(traffic: Iterable[Traffic]) -> dict[str, int]:
    """Bytes along each line of ranks; those of tensor parallelism behind products and beside."""
    groups = groupby(traffic, lambda part: part.axis if part.axis == "tensor" else part.what)
    return {name: sum(part.num_bytes for part in parts) for name, parts in groups}
