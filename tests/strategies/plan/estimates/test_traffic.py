"""What a plan says that ranks send, against what they hand to collectives and what is published."""

import json
from pathlib import Path
from typing import Any

import pytest

from strategies.plan.estimates.traffic import Traffic
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan, plan
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Started,
    WarmRanks,
    make_run_plan,
    make_spec,
)

TWO_PARTS = {"training__gradient_accumulation_steps": 2}
ALSO_FAKE = pytest.mark.slow  # test_collectives.py counts them without other processes


def planned(*, ranks: int, nodes: int = 1, hardware: Hardware = HARDWARE, **changes: Any) -> Plan:
    return plan(make_spec(**changes), nodes=nodes, ranks_per_node=ranks, hardware=hardware)


def sent(found: Plan) -> dict[str, Traffic]:
    """By axis; of context parallelism what it sends in layers."""
    assert found.cost is not None
    return {part.axis: part for part in found.cost.traffic}


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("parallelism", "checkpointing"),
    [
        pytest.param({"strategy": "ddp"}, "none", marks=ALSO_FAKE),
        pytest.param(
            {"strategy": "ddp", "gradient_compression": "bfloat16"}, "none", marks=ALSO_FAKE
        ),
        pytest.param({"strategy": "fsdp"}, "full", marks=ALSO_FAKE),
        pytest.param({"strategy": "zero2"}, "none", marks=pytest.mark.slow),
        pytest.param({"strategy": "tensor"}, "full", marks=ALSO_FAKE),
        pytest.param({"strategy": "tensor", "sequence_parallel": True}, "full", marks=ALSO_FAKE),
        pytest.param({"strategy": "tensor", "sequence_parallel": True}, "none", marks=ALSO_FAKE),
        ({"strategy": "pipeline", "pipeline_schedule": "Interleaved1F1B"}, "none"),
        ({"strategy": "pipeline", "pipeline_schedule": "ZBVZeroBubble"}, "none"),
        pytest.param({"strategy": "context"}, "full", marks=ALSO_FAKE),
        pytest.param({"strategy": "context", "ulysses_degree": 2}, "none", marks=ALSO_FAKE),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_ranks_send_what_the_plan_says(
    warm: WarmRanks, ragged: Options, tmp_path: Path, parallelism: Options, checkpointing: str
) -> None:
    """Within 1 %: the sums of a split loss are three numbers a token, and not seen here."""
    found = counted(warm, ragged, tmp_path, parallelism, checkpointing, tied=False)
    assert found == pytest.approx(1, abs=0.01)


@pytest.mark.gloo
def test_tied_ends_of_a_pipeline_swap_a_gradient(
    warm: WarmRanks, ragged: Options, tmp_path: Path
) -> None:
    found = counted(warm, ragged, tmp_path, {"strategy": "pipeline"}, "none", tied=True)
    assert found == 1


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("strategy", "base"),
    [
        ("ddp", "none"),
        pytest.param("fsdp", "int8", marks=ALSO_FAKE),
        pytest.param("fsdp", "nf4", marks=ALSO_FAKE),
    ],
)
def test_beside_frozen_weights_gradients_of_adapters_are_sent_and_codes_gathered(
    warm: WarmRanks, ragged: Options, tmp_path: Path, strategy: str, base: str
) -> None:
    """Row scales (int8), and those of blocks of scales (nf4), are whole on every rank."""
    adapter = {"targets": ["query", "down"], "base": base}
    parallelism = {"strategy": strategy}
    found = counted(warm, ragged, tmp_path, parallelism, "full", tied=False, adapter=adapter)
    assert found == pytest.approx(1, abs=0.03)


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_deepspeed_sums_gradients_in_float32_and_gathers_16_bit_weights(
    warm: WarmRanks, ragged: Options, tmp_path: Path, stage: str
) -> None:
    half = {"precision": "bfloat16"}
    found = counted(warm, ragged, tmp_path, {"strategy": stage}, "none", tied=False, **half)
    assert found == pytest.approx(1, abs=0.01)


@pytest.mark.gloo
@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_deepspeed_sends_a_little_less_than_stage_3_needs(
    warm: WarmRanks, ragged: Options, tmp_path: Path, precision: str
) -> None:
    """What was gathered last in the forward pass is still there when the backward pass begins."""
    asked: Options = {"strategy": "zero3"}
    found = counted(warm, ragged, tmp_path, asked, "none", tied=False, precision=precision)
    assert 0.8 < found <= 1


def counted(
    warm: WarmRanks,
    ragged: Options,
    path: Path,
    parallelism: Options,
    checkpointing: str,
    *,
    tied: bool,
    adapter: Options | None = None,
    precision: str = "float32",
) -> float:
    """What a rank sent in a step of two ranks, over what the plan says."""
    spec = make_spec(
        parallelism=parallelism,
        training__steps=2,
        training__warmup_steps=0,
        activation_checkpointing=checkpointing,
        model__tied_embeddings=tied,
        adapter=adapter,
        precision=precision,
        **TWO_PARTS,
    )
    run_plan = make_run_plan(spec, ranks=2, **ragged)
    (path / "plan.json").write_text(run_plan.model_dump_json())
    pids = warm.fork("counting.py", "count", 2, 100, {"run_dir": str(path)})
    assert Started(warm, pids).wait() == [0, 0], warm.said()
    told = [json.loads((path / f"sent-{rank}.json").read_text()) for rank in range(2)]
    most: float = max(rank["num_bytes"] for rank in told)
    assert run_plan.plan.cost is not None
    return most / sum(part.num_bytes for part in run_plan.plan.cost.traffic)


def test_a_7b_model_on_8_ranks_sends_24_5_gb_by_ddp_and_half_more_by_fsdp() -> None:
    """Ring all-reduce of 14 GB in 16 bits, 2 (N-1)/N times; ZeRO (arXiv:1910.02054), section 7,
    has stage 3 send 1.5 times as much; here head and embedding are gathered once less."""
    llama = {"name": "llama", "layers": 32, "width": 4096, "heads": 32, "ffn_width": 11_008}
    changes: Any = {
        "model": llama,
        "precision": "pure_bfloat16",
        "data__tokenizer": "characters",
        "data__vocabulary_size": 32_000,
    }
    ddp = sent(planned(ranks=8, parallelism={"strategy": "ddp"}, **changes))["replicate"]
    fsdp = sent(planned(ranks=8, parallelism={"strategy": "fsdp"}, **changes))["shard"]
    assert ddp.num_bytes == pytest.approx(2 * 6_738_415_616 * 2 * 7 / 8)
    ends = (2 * 32_000 * 4096 + 4096) * 2 * 7 / 8
    assert fsdp.num_bytes == pytest.approx(1.5 * ddp.num_bytes - ends)
    assert ddp.overlaps


def test_hybrid_sharding_sends_gathered_weights_inside_a_node_only() -> None:
    axes = {
        "strategy": "hsdp",
        "data_parallel_shard_degree": 4,
        "data_parallel_replicate_degree": 2,
    }
    node = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
    by_axis = sent(planned(ranks=4, nodes=2, hardware=node, parallelism=axes))
    assert not by_axis["shard"].crosses_nodes
    assert by_axis["replicate"].crosses_nodes
    assert by_axis["replicate"].num_bytes < by_axis["shard"].num_bytes


def test_ulysses_sends_less_the_more_ranks_there_are_and_a_ring_does_not() -> None:
    """DeepSpeed Ulysses, arXiv:2309.14509, section 3.2: constant volume for tokens x ranks."""

    def of(ranks: int, ulysses: int) -> int:
        parallelism = {"strategy": "context", "ulysses_degree": ulysses}
        wide = {"name": "gpt", "layers": 4, "width": 64, "heads": 8}
        return sent(planned(ranks=ranks, model=wide, parallelism=parallelism))["context"].num_bytes

    assert of(8, 8) / of(4, 4) == pytest.approx((7 / 64) / (3 / 16))
    assert of(8, 1) > of(4, 1)


def test_ranks_that_meet_every_fourth_step_send_three_quarters() -> None:
    """Weights and both averages of AdamW, where data parallel sends gradients every step."""
    ddp = {"strategy": "ddp"}
    every_step = sent(planned(ranks=2, parallelism=ddp))["replicate"]
    seldom = {"strategy": "local_sgd", "average_every_steps": 4}
    found = sent(planned(ranks=2, parallelism=seldom))["replicate"]
    assert found.num_bytes == 3 * every_step.num_bytes // 4


def test_one_rank_sends_nothing() -> None:
    assert sent(planned(ranks=1)) == {}
