"""An option that saves memory never makes a plan worse."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strategies.plan.estimates.zero import BUCKET
from strategies.plan.gpus import known_node
from strategies.plan.planner import Plan, plan_of, resolve
from tests.strategies.support.training_runs import make_spec

NODE = known_node("a100-40gb", gpus=8)
Fields = dict[str, Any]
# What each option asks for, and the strategies that have it; dotted fields with __ for the dot.
OPTIONS: dict[str, tuple[Fields, tuple[str, ...]]] = {
    "selective checkpointing": ({"activation_checkpointing": "selective"}, ()),
    "full checkpointing": ({"activation_checkpointing": "full"}, ()),
    "loss in parts": ({"tiling__loss_parts": 8}, ("ddp", "fsdp")),
    "no momentum": ({"training__optimizer": "sgd", "training__beta1": 0.0}, ()),
    "LoRA": ({"adapter": {"base": "none"}}, ("ddp", "fsdp")),
    "smaller micro-batches": ({"training__micro_batch_size": 1}, ("zero2", "zero3")),
    "optimizer on the host": ({"parallelism__offload_optimizer": "cpu"}, ("zero2", "zero3")),
    "weights on the host": (
        {"parallelism__offload_optimizer": "cpu", "parallelism__offload_parameters": "cpu"},
        ("zero3", "fsdp"),
    ),
    "sequence parallel": ({"parallelism__sequence_parallel": True}, ("tensor",)),
}


@st.composite
def jobs(draw: st.DrawFn, strategies: tuple[str, ...]) -> Fields:
    heads = draw(st.sampled_from([8, 16, 32]))
    strategy = draw(st.sampled_from(strategies or ("ddp", "fsdp", "zero2", "zero3", "tensor")))
    return {
        "model": {
            "name": draw(st.sampled_from(["gpt", "llama"])),
            "layers": draw(st.sampled_from([4, 12, 32])),
            "width": heads * draw(st.sampled_from([64, 128])),
            "heads": heads,
        },
        "data__tokenizer": "characters",
        "data__vocabulary_size": draw(st.sampled_from([256, 32_000, 128_256])),
        "data__sequence_length": draw(st.sampled_from([128, 2048, 8192])),
        "training__global_batch_size": 64,
        "training__micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "precision": draw(st.sampled_from(["float32", "bfloat16"])),
        "activation_checkpointing": draw(st.sampled_from(["none", "selective", "full"])),
        "parallelism": {"strategy": strategy},
    }


def planned(job: Fields) -> Plan:
    spec = make_spec(**deepcopy(job))
    return plan_of(resolve(spec, nodes=1, ranks_per_node=8, hardware=NODE))


@pytest.mark.parametrize("option", OPTIONS)
@settings(max_examples=25)
@given(st.data())
def test_an_option_that_saves_memory_never_makes_a_plan_worse(
    option: str, data: st.DataObject
) -> None:
    fields, strategies = OPTIONS[option]
    job = data.draw(jobs(strategies))
    if option == "selective checkpointing":  # which computes one layer again: few save no more
        assume(job["activation_checkpointing"] == "none" and job["model"]["layers"] > 4)
    if option == "loss in parts":  # they add up the head's gradient in float32; one part need not
        micro_batch = job["data__sequence_length"] * job["training__micro_batch_size"]
        assume(micro_batch > job["model"]["width"])
    if option == "optimizer on the host":  # through buffers for the largest matrix
        assume(job["data__vocabulary_size"] * job["model"]["width"] <= BUCKET)
    before, after = planned(job), planned(job | fields)
    for found in (before, after):
        assume({problem.code for problem in found.problems} <= {"does_not_fit"})
    assert after.needed_gib <= before.needed_gib * (1 + 1e-9)
    assert after.fits or not before.fits
