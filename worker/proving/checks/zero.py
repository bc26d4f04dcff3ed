"""zero: stages 1 to 3 with each offload, and a step that float16 skips."""

from itertools import product
from typing import Any

from strategies.plan.spec import ZERO_STAGES, Offload, Strategy
from strategies.plan.trust.experiment import Fault
from worker.proving.bench import Bench, Run, spec_of
from worker.proving.checks.equality import certify_all
from worker.proving.finding import Finding, all_of

STEPS, SKIPPED_AT = 4, 3


def look(bench: Bench) -> Finding:
    """Certify each stage and offload on 2 ranks; then let a gradient overflow.

    The library that reads and writes files is compiled before, which takes a minute once per node.
    """
    bench.require_ranks(2)
    bench.compile_once("strategies.train.engines.async_io")
    cases: dict[str, dict[str, Any]] = {
        f"{stage}, optimizer on {offload}": {
            "parallelism": {"strategy": stage, "offload_optimizer": offload}
        }
        for stage, offload in product(ZERO_STAGES, Offload)
        if offload is not Offload.NVME or stage is Strategy.ZERO3
    }
    for offload in (Offload.CPU, Offload.NVME):
        cases[f"zero3, all on {offload}"] = {
            "parallelism": {
                "strategy": "zero3",
                "offload_optimizer": offload,
                "offload_parameters": offload,
            }
        }
    found = certify_all(bench, cases, ranks=2, steps=STEPS)
    if found.verdict == "failed":
        return found
    run = bench.train(
        spec_of(
            training__steps=SKIPPED_AT + 2,
            precision="float16",
            parallelism__strategy="zero2",
        ),
        ranks=2,
        fault=Fault(kind="overflow", rank=0, step=SKIPPED_AT),
    )
    skipped = judge_skip(run)
    figures = {**found.figures, **skipped.figures}
    if skipped.verdict == "failed":
        return skipped._replace(figures=figures)
    return found._replace(sentence=f"{found.sentence} {skipped.sentence}", figures=figures)


def judge_skip(run: Run) -> Finding:
    """Return whether exactly the step that overflowed was skipped, and its scale halved."""
    skipped, scales = run.series("skipped_steps"), run.series("loss_scale")
    return judge_scale(skipped, scales)


def judge_scale(skipped: list[float], scales: list[float]) -> Finding:
    """Judge the skipped steps and the loss scale after each step of the float16 run."""
    figures = {"skipped_steps": skipped[-1] if skipped else 0.0}
    wrong = []
    if len(skipped) <= SKIPPED_AT or skipped[SKIPPED_AT - 1] != skipped[SKIPPED_AT - 2] + 1:
        wrong.append(f"float16 did not skip step {SKIPPED_AT}, whose gradient overflowed")
    elif scales[SKIPPED_AT - 1] != scales[SKIPPED_AT - 2] / 2:
        wrong.append("the loss scale was not halved after the skipped step")
    elif skipped[-1] != skipped[SKIPPED_AT - 1]:
        wrong.append("float16 also skipped the steps after the one that overflowed")
    return all_of(wrong, "float16 skips a step that overflows and goes on.", figures)
