"""Each check's judgement of figures: what passes, and what it takes to fail."""

from dataclasses import replace
from typing import Any

import pytest

from core.states import GpuHealth
from core.wire.messages import Gpu, GpuReading, Inventory
from strategies.plan.promise import Promise
from strategies.plan.spec import Precision, Strategy
from strategies.plan.torch_builds import BuildVerdict, judge_build
from strategies.plan.trust.certificate import Certificate, Comparison, Curve, Difference, compare
from strategies.plan.trust.experiment import Observations, StepSeen
from strategies.plan.trust.preflight_report import Check, Missing, Report, SlowRank, Timing
from worker.proving import clocks
from worker.proving.checks import (
    adapters,
    attention,
    checkpoint,
    collectives,
    compile,
    equality,
    hand_over,
    inventory,
    memory,
    out_of_memory,
    precision,
    speed,
    stuck_rank,
    zero,
)

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
NODE = Inventory(
    hostname="n1",
    cores=8,
    memory_gib=64,
    gpus=[Gpu(index=0, name="A100", memory_gib=80, uuid="GPU-one")],
    slots=1,
    python="3.12",
    torch="2.13.0+cu130",
)
SEEN: dict[str, Any] = {
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "is_available": True,
    "gpus": [{"uuid": "one", "name": "A100", "error": ""}],
    "has_uvm": True,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"is_available": False}, "sees no GPU"),
        ({"gpus": []}, "torch does not see A100 one"),
        ({"gpus": [{"uuid": "two", "name": "A100", "error": ""}]}, "the inventory lacks A100 two"),
        ({"gpus": [{"uuid": "one", "name": "A100", "error": "ECC"}]}, "A100 one: ECC"),
        ({"has_uvm": False}, "nvidia-uvm is missing"),
    ],
)
def test_inventory_must_be_what_torch_sees(changes: dict[str, Any], said: str) -> None:
    found = inventory.judge({**SEEN, **changes}, NODE, device="cuda", build=BuildVerdict())
    assert found.verdict == ("failed" if said else "passed"), found
    assert said in found.sentence


@pytest.mark.parametrize("is_available", [True, False])
def test_inventory_says_which_build_of_torch_to_install(is_available: bool) -> None:
    build = judge_build(cuda="13.0", hip=None, driver="550.54.15", capabilities=[(8, 0)])
    seen = {**SEEN, "is_available": is_available}
    found = inventory.judge(seen, NODE, device="cuda", build=build)
    assert found.verdict == "failed"
    assert build.why in found.sentence
    assert build.todo in found.sentence
    on_cpu = inventory.judge(seen, NODE, device="cpu", build=build)
    assert on_cpu.verdict == "passed"


def test_inventory_must_be_able_to_compile() -> None:
    bare = NODE.model_copy(update={"no_compiler": "Python.h is missing"})
    assert inventory.judge(SEEN, bare, device="cuda", build=BuildVerdict()).verdict == "failed"


def preflight(**changes: Any) -> Report:
    large = Check(collective="all_reduce", operation="sum", dtype="float32", size_bytes=64 << 20)
    timing = Timing(check=large, right=True, p50_ms=1, p95_ms=1, bus_gb_per_s=220, slowest_rank=0)
    report = Report(
        device="A100", backend="nccl", torch="2", ranks=["0", "1"], seconds=1, timings=[timing]
    )
    return report.model_copy(update=changes)


def tf32(largest: float) -> Comparison:
    found = {"loss": {1: 1.0 + largest}, "grad_norm": {1: 1.0}}
    exact = Promise("exact", Precision.FLOAT32, Strategy.SINGLE)
    rounded = replace(exact, tf32=True)
    return compare(Curve(**found), Curve({1: 1.0}, {1: 1.0}), rounded, exact)


@pytest.mark.parametrize(
    ("differing", "largest", "said"),
    [
        ({"float32": 0, "bfloat16": 0}, 1e-5, ""),
        ({"float32": 0, "bfloat16": 3}, 1e-5, "bfloat16: 3 numbers of two deterministic runs"),
        ({"float32": 0, "bfloat16": 0}, 1e-3, "TF32 leaves its band"),
    ],
)
def test_deterministic_runs_must_be_equal_and_tf32_in_its_band(
    differing: dict[str, int], largest: float, said: str
) -> None:
    found = precision.judge(differing, tf32=tf32(largest))
    assert found.verdict == ("failed" if said else "passed"), found
    assert said in found.sentence
    assert "TF32 needs a GPU" in precision.judge({"float32": 0}, tf32=None).sentence


@pytest.mark.parametrize(
    ("changes", "link", "said"),
    [
        ({}, 300.0, ""),
        ({}, None, ""),
        ({}, 450.0, "220 GB/s of the link's 450 GB/s"),
        ({"missing": Missing(ranks=[1], why="rank 1 is gone")}, None, "rank 1 is gone"),
        ({"slow": [SlowRank(rank=1, what="x", ms=9, usual_ms=1)]}, None, "rank 1 is slow"),
    ],
)
def test_collectives_must_be_right_and_as_fast_as_the_link(
    changes: dict[str, Any], link: float | None, said: str
) -> None:
    found = collectives.judge({2: preflight(**changes)}, link_gb_per_s=link)
    assert found.verdict == ("failed" if said else "passed"), found
    assert said in found.sentence


def certificate(verdict: str) -> Certificate:
    apart = Difference(
        largest=1e-3 if verdict == "fail" else 0.0, step=2, found=2.0, expected=1.0, tolerance=1e-6
    )
    return Certificate.model_validate(
        {
            "verdict": verdict,
            "result_class": "exact",
            "steps": 8,
            "loss": apart.model_dump(),
            "grad_norm": None,
            "precision": "float32",
            "strategy": "fsdp",
            "layout": {"shard": 2},
            "device": "cpu",
            "torch": "2",
        }
    )


def test_equality_fails_with_a_curve_that_differs_or_nothing_to_compare() -> None:
    good = equality.judge({"fsdp": certificate("pass")}, ranks=2, refused={})
    bad = equality.judge(
        {"fsdp": certificate("fail"), "ddp": certificate("pass")}, ranks=2, refused={}
    )
    assert (good.verdict, bad.verdict) == ("passed", "failed")
    assert "fsdp: Different curve" in bad.sentence
    assert equality.judge({}, ranks=2, refused={"fsdp": "no memory"}).verdict == "failed"


def attended(error: float) -> dict[str, Any]:
    one = {"error": error}
    kernels = {"math": one, "flash": {"refused": "takes no float32"}}
    return {"float32": {"kernels": kernels, "chosen": {**one, "operator": "math"}}}


@pytest.mark.parametrize(
    ("error", "verdict"), [(1e-6, "passed"), (1e-2, "failed"), (float("nan"), "failed")]
)
def test_attention_must_agree_with_float64(error: float, verdict: str) -> None:
    assert attention.judge(attended(error), gpu=A100).verdict == verdict


@pytest.mark.parametrize(
    ("case", "operator", "verdict", "said"),
    [
        ("bfloat16", "_scaled_dot_product_flash_attention", "passed", ""),
        ("bfloat16 grouped", "_scaled_dot_product_flash_attention", "passed", ""),
        ("float32", "_scaled_dot_product_efficient_attention", "passed", ""),
        ("float32 grouped", "_scaled_dot_product_efficient_attention", "passed", ""),
        ("float32 grouped", "_scaled_dot_product_attention_math", "failed", "expects efficient"),
        ("bfloat16", "_scaled_dot_product_attention_math", "failed", "the plan expects flash"),
        (
            "float16",
            "_scaled_dot_product_efficient_attention",
            "passed",
            "Not as planned: float16: torch chose _scaled_dot_product_efficient_attention",
        ),
    ],
)
def test_attention_takes_the_kernels_that_the_plan_expects(
    case: str, operator: str, verdict: str, said: str
) -> None:
    chosen = {"error": 1e-6, "peak_mib": 9.0, "operator": operator}
    found = attention.judge({case: {"kernels": {}, "chosen": chosen}}, gpu=A100)
    assert found.verdict == verdict
    assert said in found.sentence
    assert bool(said) is ("plan" in found.sentence)


def test_attention_on_a_gpu_that_prefers_cudnn_takes_it_for_masks_and_groups() -> None:
    for case in ("bfloat16", "bfloat16 grouped documents"):
        chosen = {"error": 1e-6, "peak_mib": 9.0, "operator": "_scaled_dot_product_cudnn_attention"}
        seen = {case: {"kernels": {}, "chosen": chosen}}
        assert "Not as planned" not in attention.judge(seen, gpu=H100).sentence
        assert "Not as planned" in attention.judge(seen, gpu=A100).sentence


@pytest.mark.parametrize(
    ("skipped", "scales", "said"),
    [
        ([0, 0, 1, 1, 1], [4, 4, 2, 2, 2], ""),
        ([0, 0, 0, 0, 0], [4, 4, 4, 4, 4], "did not skip step 3"),
        ([0, 0, 1, 1, 1], [4, 4, 4, 4, 4], "not halved"),
        ([0, 0, 1, 2, 3], [4, 4, 2, 1, 1], "also skipped"),
    ],
)
def test_zero_must_skip_the_step_that_overflows_and_no_other(
    skipped: list[float], scales: list[float], said: str
) -> None:
    found = zero.judge_scale(skipped, scales)
    assert found.verdict == ("failed" if said else "passed")
    assert said in found.sentence


def compiled(graphs: list[int], *, last: int, breaks: int = 0) -> Observations:
    steps = [StepSeen(idle_s=None, graphs=each, breaks=breaks) for each in graphs]
    return Observations(steps=steps, graphs=last)


@pytest.mark.parametrize(
    ("found", "said", "expected"),
    [
        (compiled([0, 1, 1, 1], last=2), "", ""),
        (compiled([0, 0, 0, 0], last=0), "", "nothing was compiled"),
        (compiled([0, 1, 1, 2], last=4), "", "3 graphs were compiled after step 2"),
        (compiled([0, 1, 1, 1], last=2, breaks=1), "", "breaks at 1 places"),
        (compiled([0, 1, 1, 1], last=2), "Torchinductor does not support code generation for "
         "complex operators", "complex operators"),
    ],
)  # fmt: skip
def test_compile_must_neither_recompile_nor_fall_back(
    found: Observations, said: str, expected: str
) -> None:
    judged = compile.judge({"none": (found, said)})
    assert judged.verdict == ("failed" if expected else "passed"), judged
    assert expected in judged.sentence


@pytest.mark.parametrize(
    ("error", "reserved", "verdict"),
    [
        (0.05, 0.05, "passed"),
        (-0.05, None, "passed"),
        (0.2, None, "failed"),
        (-0.2, None, "failed"),
        (0.0, 0.3, "failed"),
        (float("nan"), None, "failed"),
    ],
)
def test_memory_must_be_within_a_tenth_of_the_plan(
    error: float, reserved: float | None, verdict: str
) -> None:
    assert memory.judge({"llama": (error, reserved)}, {"process_gib": 0.5}).verdict == verdict


def test_adapters_must_agree_with_arithmetic() -> None:
    right = dict.fromkeys(adapters.MOST, 0.0)
    assert adapters.judge(right).verdict == "passed"
    for name in right:
        assert adapters.judge({**right, name: 0.5}).verdict == "failed"
        assert adapters.judge({**right, name: float("nan")}).verdict == "failed"


SAID = "Rank 1 on this node ran out of memory. Use a smaller micro_batch_size, or split the model."


@pytest.mark.parametrize(
    ("outcome", "reason", "seconds", "verdict"),
    [
        ("out_of_memory", SAID, 2.0, "passed"),
        ("user_error", SAID, 2.0, "failed"),
        ("out_of_memory", "Rank 1 ran out of memory.", 2.0, "failed"),
        ("out_of_memory", SAID.replace("Rank 1", "Rank 0"), 2.0, "failed"),
        ("out_of_memory", SAID, 12.0, "failed"),
    ],
)
def test_out_of_memory_must_be_named_with_advice_in_time(
    outcome: str, reason: str, seconds: float, verdict: str
) -> None:
    found = out_of_memory.judge({"forward": (outcome, reason, seconds)}, rank=1)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (("stalled", 1, 9.0), "passed"),
        (("user_error", 1, 9.0), "failed"),
        (("stalled", 0, 9.0), "failed"),
        (("stalled", 1, 300.0), "failed"),
    ],
)
def test_a_stuck_rank_must_be_named_in_time(end: tuple[str, int, float], verdict: str) -> None:
    assert stuck_rank.judge({"hang": end}, rank=1).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "passed"),
        ({"pause_s": 9.0}, "failed"),
        ({"differing": {"on 1 rank": "the loss differs by 0.1"}}, "failed"),
        ({"saved_at": None}, "failed"),
        ({"saved_at": 4}, "failed"),
    ],
)
def test_checkpoints_must_be_quick_and_resume(changes: dict[str, Any], verdict: str) -> None:
    good: dict[str, Any] = {
        "pause_s": 0.1,
        "save_s": 0.5,
        "num_bytes": 10**8,
        "differing": {"on 1 rank": ""},
        "saved_at": checkpoint.TERMINATED_AT,
    }
    assert checkpoint.judge(**{**good, **changes}).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "passed"),
        ({"seen": False}, "failed"),
        ({"gone": False}, "failed"),
        ({"occupied": GpuHealth.HEALTHY}, "failed"),
        ({"said": "gpus 4 sum 1"}, "failed"),
        ({"said": "", "no_sandbox": "no bwrap"}, "passed"),
    ],
)
def test_hand_over_must_see_what_is_left(changes: dict[str, Any], verdict: str) -> None:
    good: dict[str, Any] = {
        "seen": True,
        "gone": True,
        "said": "gpus 1 sum 1",
        "no_sandbox": "",
        "on_gpu": True,
    }
    assert hand_over.judge(**{**good, **changes}).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "passed"),
        ({"mfu": 10.0}, "failed"),
        ({"idle": 0.1}, "failed"),
        ({"slower": 1.2}, "failed"),
    ],
)
def test_a_gpu_must_be_fast_and_busy(changes: dict[str, float], verdict: str) -> None:
    good = {"mfu": 35.0, "idle": 0.001, "slower": 1.0, "tokens_per_s": 9000.0}
    measured, free = {"1B": {**good, **changes}}, {"1B": ""}
    assert speed.judge(measured, free, on_gpu=True).verdict == verdict
    assert speed.judge(measured, free, on_gpu=False).verdict == "passed"


def test_steps_that_grow_longer_under_a_power_cap_are_told_and_not_judged() -> None:
    throttled = GpuReading(index=0, clock_mhz=1845, max_clock_mhz=1980, throttled=["power cap"])
    readings = [GpuReading(index=0, clock_mhz=1980, max_clock_mhz=1980), throttled]
    assert clocks.told(readings[:1]) == ""
    why = clocks.told(readings)
    assert why == "power cap, clocks down to 1,845 of 1,980 MHz"
    measured = {"mfu": 35.0, "idle": 0.001, "slower": 1.2, "tokens_per_s": 9000.0}
    found = speed.judge({"1B": measured}, {"1B": why}, on_gpu=True)
    assert found.verdict == "passed"
    assert found.sentence.endswith(f"1B's clock was held down: {why}.")
