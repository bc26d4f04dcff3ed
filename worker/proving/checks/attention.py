"""attention: torch's kernels against float64, and its choices against the plan's table."""

from typing import Any

from strategies.plan.attention_kernels import AttentionKernel, attention_kernel, repeats_keys
from strategies.plan.spec import Precision
from worker.proving.bench import Bench
from worker.proving.finding import Finding, all_of

WIDTH = 64  # of a head, in strategies.train.proving.attention
# Rounding of the type, times what 4,096 tokens add up to.
MOST_ERROR = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}


def look(bench: Bench) -> Finding:
    """Compare each kernel, and the one that torch chooses, in every case."""
    return judge(bench.measure("strategies.train.proving.attention"), gpu=bench.hardware.model)


def judge(seen: dict[str, Any], *, gpu: str | None) -> Finding:
    """Return whether every kernel that runs is right, and none keeps scores that the plan does not
    expect. Other differences from the plan's table are told."""
    wrong: list[str] = []
    different: list[str] = []
    figures: dict[str, float] = {}
    for case, found in seen.items():
        most = MOST_ERROR[case.split()[0]]
        chosen = found["chosen"]
        runs = {name: one for name, one in found["kernels"].items() if "error" in one}
        for name, one in {**runs, "chosen": chosen}.items():
            if not one["error"] <= most:
                wrong.append(f"{case}, {name}: off by {one['error']:.1e} ({most:.0e} allowed)")
        label = case.replace(" ", "_")
        figures[f"{label}_error"] = chosen["error"]
        if "peak_mib" not in chosen:
            continue
        figures[f"{label}_peak_mib"] = chosen["peak_mib"]
        expected, taken = planned(case, gpu), kernel_in(chosen["operator"])
        if taken is not expected:
            told = f"{case}: torch chose {chosen['operator']}, the plan expects {expected}"
            (wrong if taken is AttentionKernel.MATH else different).append(told)
    operators = sorted({found["chosen"]["operator"].lstrip("_") for found in seen.values()})
    well = f"Every kernel agrees with float64 in {len(seen)} cases; torch chose {operators}."
    if different:
        well += f" Not as planned: {'; '.join(different)}."
    return all_of(wrong, well, figures)


def planned(case: str, gpu: str | None) -> AttentionKernel:
    """Return the kernel of a case on this GPU by the plan's table."""
    dtype, *words = case.split()
    precision, masked = Precision(dtype), "documents" in words
    is_copied = repeats_keys(precision, gpu=gpu, masked=masked, head_width=WIDTH)
    grouped = "grouped" in words and not is_copied
    return attention_kernel(precision, gpu=gpu, masked=masked, grouped=grouped, head_width=WIDTH)


def kernel_in(operator: str) -> AttentionKernel | None:
    """Return the kernel that torch's operator names; None if it is unknown."""
    return next((kernel for kernel in AttentionKernel if kernel in operator), None)
