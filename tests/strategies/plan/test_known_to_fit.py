"""Configurations that are known to run elsewhere are said to fit, with what they need."""

from typing import Any

import pytest

from strategies.plan.gpus import known_node
from strategies.plan.planner import plan
from tests.strategies.support.training_runs import Options, make_spec, spec_of_model


def qlora(
    node_class: str, *, layers: int, width: int, ffn_width: int, gib: float
) -> tuple[str, int, int, Options, float]:
    """A run of QLoRA's paper, arXiv:2305.14314: rank 64 beside every matrix, samples of 512."""
    every = ["query", "key", "value", "output", "gate", "up", "down"]
    fields = {
        "model": {
            "name": "llama", "layers": layers, "width": width, "heads": width // 128,
            "ffn_width": ffn_width,
        },
        "data__tokenizer": "characters",
        "data__vocabulary_size": 32_000,
        "data__sequence_length": 512,
        "precision": "pure_bfloat16",
        "activation_checkpointing": "full",
        "adapter": {"rank": 64, "targets": every, "base": "nf4"},
        "training__global_batch_size": 16,
        "training__micro_batch_size": 1,
    }  # fmt: skip
    return node_class, 1, 1, fields, gib


# Name: node class, nodes, ranks of each, fields of the spec, GiB at most. The last are what was
# published (torchtune's README: 17.18 GB for LoRA), or what follows from 2 bytes for each weight
# and each gradient (13B), from 16 bytes and 4 more for whole gradients over the shards (405B), from
# nothing but layers and activations (ZeRO-3, all else on the host), or the GPU's nine tenths.
CASES: dict[str, tuple[str, int, int, Options, float]] = {
    "7B, LoRA in bfloat16, 24 GB": (
        "rtx3090-24gb",
        1,
        1,
        {
            "name": "llama-2-7b",
            "precision": "bfloat16",
            "activation_checkpointing": "full",
            "adapter": {"rank": 8, "targets": ["query", "value"], "frozen_dtype": "bfloat16"},
            "data__sequence_length": 512,
            "training__global_batch_size": 2,
        },
        17.18 * 1e9 / 2**30,
    ),
    "7B, ZeRO-3 with everything offloaded, 24 GB": (
        "rtx3090-24gb",
        1,
        1,
        {
            "name": "llama-2-7b",
            "precision": "bfloat16",
            "activation_checkpointing": "full",
            "data__sequence_length": 2048,
            "training__global_batch_size": 1,
            "parallelism": {
                "strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "cpu"
            },
        },
        12,
    ),
    "65B, QLoRA, 48 GB": qlora("rtxa6000-48gb", layers=80, width=8192, ffn_width=22_016, gib=41),
    "33B, QLoRA, 24 GB": qlora("rtx3090-24gb", layers=60, width=6656, ffn_width=17_920, gib=21.6),
    "13B, SGD in pure bfloat16, 80 GB": (
        "a100-80gb",
        1,
        1,
        {
            "name": "llama-2-13b",
            "precision": "pure_bfloat16",
            "activation_checkpointing": "full",
            "data__sequence_length": 2048,
            "training__global_batch_size": 1,
            "training__optimizer": "sgd",
            "training__beta1": 0.0,
        },
        54,
    ),
    "405B, 8 x 8 x 8, 512 GPUs of 80 GB": (
        "h100-80gb",
        64,
        8,
        {
            "name": "llama-3-405b",
            "precision": "bfloat16",
            "activation_checkpointing": "full",
            "data__sequence_length": 8192,
            "training__global_batch_size": 256,
            "training__micro_batch_size": 1,
            "parallelism": {
                "strategy": "fsdp",
                "tensor_parallel_degree": 8,
                "sequence_parallel": True,
                "pipeline_parallel_degree": 8,
                "data_parallel_shard_degree": 8,
            },
        },
        60,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_fits_in_what_it_needs_elsewhere(case: str) -> None:
    node_class, nodes, ranks, fields, most_gib = CASES[case]
    changes: Any = dict(fields)
    name = changes.pop("name", None)
    spec = make_spec(**changes) if name is None else spec_of_model(name, **changes)
    found = plan(
        spec, nodes=nodes, ranks_per_node=ranks, hardware=known_node(node_class, gpus=ranks)
    )
    assert found.runnable, found.problems
    assert found.needed_gib < most_gib, {term.name: term.gib for term in found.memory}
