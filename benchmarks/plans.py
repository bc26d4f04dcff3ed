"""Time to make the plan of a run, and to get it from the cache."""

import statistics
import time
from pathlib import Path
from typing import Any

from api.jobs.plan_cache import ClassOnOffer, PlanCache
from api.jobs.submission import read_spec
from core.base.strict_text import parse_yaml
from core.spec.spec import JobSpec
from strategies.plan.gpus import known_node
from strategies.plan.known_models import as_spec, known_model

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-fsdp.yaml"
MODELS = ("gpt2", "tinyllama-1.1b", "llama-2-7b", "llama-3-8b", "llama-2-70b", "llama-3-405b")
GPUS, NODES = 8, (1, 4)
REPEATS = 5
AGAIN = 2_000

Row = tuple[str, str, str]


def rows() -> list[Row]:
    """Return rows for docs/benchmarks.md: name, measured value, goal."""
    offer = ClassOnOffer("h100-80gb", 1, known_node("h100-80gb", gpus=GPUS), 1, 1)
    cold: dict[bool, list[float]] = {True: [], False: []}
    for name in MODELS:
        for nodes in NODES:
            spec = job_for(name, nodes=nodes)
            for _ in range(REPEATS):
                fits, seconds = first_time(spec, offer)
                cold[fits].append(seconds)
    cache, spec = PlanCache(), job_for("llama-2-7b", nodes=1)
    cache.plan(spec, offer)
    begun = time.perf_counter()
    for _ in range(AGAIN):
        cache.plan(spec, offer)
    again_ms = 1000 * (time.perf_counter() - begun) / AGAIN
    told = ", ".join(MODELS)
    return [
        (f"a plan that fits, cold ({told}; 8 and 32 GPUs)", spread(cold[True]), "< 50 ms"),
        ("one that does not, with what would make it fit", spread(cold[False]), "< 50 ms"),
        ("a plan from the cache", f"{again_ms:.3f} ms", "< 0.2 ms"),
    ]


def job_for(model: str, *, nodes: int) -> JobSpec:
    """Return the FSDP example with a known model, on nodes of eight GPUs."""
    read = parse_yaml(EXAMPLE.read_text())
    spec = read_spec(read)
    assert isinstance(spec, JobSpec)
    shape = known_model(model)
    changes: dict[str, Any] = {
        "model": as_spec(shape),
        "parallelism": spec.parallelism.model_copy(
            update={"data_parallel_shard_degree": GPUS * nodes}
        ),
        "training": spec.training.model_copy(update={"global_batch_size": 256}),
        "resources": spec.resources.model_copy(update={"nodes": nodes, "ranks_per_node": GPUS}),
    }
    return spec.model_copy(update=changes)


def first_time(spec: JobSpec, offer: ClassOnOffer) -> tuple[bool, float]:
    """Plan with an empty cache; return True if the job fits, and the seconds that this took."""
    cache = PlanCache()
    begun = time.perf_counter()
    found = cache.plan(spec, offer)
    return found.plan.runnable, time.perf_counter() - begun


def spread(seconds: list[float]) -> str:
    """Return median and maximum, such as `0.5 ms, at most 0.9`."""
    if not seconds:
        return "-"
    return f"{1000 * statistics.median(seconds):.1f} ms, at most {1000 * max(seconds):.1f}"
