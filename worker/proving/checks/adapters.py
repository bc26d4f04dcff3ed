"""adapters: 4 and 8 bit matrices, 8-bit AdamW and Triton's AdamW against plain arithmetic."""

from typing import Any

from worker.proving.bench import Bench
from worker.proving.checks.equality import certify_all
from worker.proving.finding import Finding, all_of

STEPS = 4
# Rounding to NF4 and to 8 bits of normal numbers; device against CPU; updates against torch's.
MOST = {
    "nf4_error": 0.12,
    "int8_error": 0.02,
    "nf4_same_as_on_cpu": 1e-3,
    "int8_same_as_on_cpu": 1e-3,
    "adamw_8bit_error": 0.1,
    "adamw_triton_error": 1e-4,
}


def look(bench: Bench) -> Finding:
    """Compare the kernels; certify adapters on 2 ranks, if there are 2."""
    found = judge(bench.measure("strategies.train.proving.kernels"))
    if found.verdict == "failed" or bench.ranks < 2:
        return found
    lora: dict[str, Any] = {"kind": "lora", "rank": 4, "targets": ["query", "value"]}
    cases = {
        f"LoRA, base {base}": {"adapter": {**lora, "base": base}}
        for base in ("none", "nf4", "int8")
    }
    trained = certify_all(bench, cases, ranks=2, steps=STEPS, parallelism__strategy="fsdp")
    figures = {**found.figures, **trained.figures}
    sentence = trained.sentence
    if trained.verdict == "passed":
        sentence = f"{found.sentence} {sentence}"
    return trained._replace(sentence=sentence, figures=figures)


def judge(errors: dict[str, float]) -> Finding:
    """Return whether each kernel's error is below its bound."""
    wrong = [
        f"{name.replace('_', ' ')}: {error:.1e} ({MOST[name]:.0e} allowed)"
        for name, error in errors.items()
        if not error <= MOST[name]
    ]
    left_out = "" if "adamw_triton_error" in errors else " Triton's AdamW needs a GPU."
    return all_of(wrong, f"{len(errors)} kernels agree with arithmetic.{left_out}", errors)
