"""schedules: HSDP, tensor with FSDP, and every pipeline schedule, with evaluations in between."""

from typing import Any

from strategies.plan.spec import PipelineSchedule
from worker.proving.bench import Bench
from worker.proving.checks.equality import certify_all
from worker.proving.finding import Finding

STEPS = 4
BOTH = {"data_parallel_shard_degree": 2}


def look(bench: Bench) -> Finding:
    """Certify the layouts of 4 ranks; evaluate after every second step."""
    bench.require_ranks(4)
    cases: dict[str, dict[str, Any]] = {
        "hsdp": {"parallelism": {"strategy": "hsdp", **BOTH}},
        "tensor and fsdp": {"parallelism": {"strategy": "tensor", **BOTH}},
    }
    for schedule in PipelineSchedule:
        cases[f"pipeline, {schedule}"] = {
            "parallelism": {"strategy": "pipeline", "pipeline_schedule": schedule}
        }
    return certify_all(
        bench, cases, ranks=4, steps=STEPS, training__eval_every_steps=2, model__layers=8,
        training__global_batch_size=16,
    )  # fmt: skip
