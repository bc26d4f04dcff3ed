"""attention: torch's kernels against float64, with grouped heads, documents and float32."""

from typing import Any

from worker.proving.bench import Bench
from worker.proving.finding import Finding, all_of

# Rounding of the type, times what 4,096 tokens add up to.
MOST_ERROR = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}


def look(bench: Bench) -> Finding:
    """Compare each kernel, and the one that torch chooses, in every case."""
    return judge(bench.measure("strategies.train.proving.attention"))


def judge(seen: dict[str, Any]) -> Finding:
    """Return whether every kernel that runs is right, and one runs in every case."""
    wrong = []
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
        if "peak_mib" in chosen:
            figures[f"{label}_peak_mib"] = chosen["peak_mib"]
    operators = sorted({found["chosen"]["operator"].lstrip("_") for found in seen.values()})
    well = f"Every kernel agrees with float64 in {len(seen)} cases; torch chose {operators}."
    return all_of(wrong, well, figures)
