"""context: rings, Ulysses and both, in bfloat16, against one rank: loss and gradients."""

from typing import Any

from worker.proving.bench import Bench
from worker.proving.checks.equality import certify_all
from worker.proving.finding import Finding

STEPS = 4


def look(bench: Bench) -> Finding:
    """Certify context parallelism over the most ranks that this node has, up to 4."""
    bench.require_ranks(2)
    ranks = 4 if bench.ranks >= 4 else 2
    cases: dict[str, dict[str, Any]] = {
        "ring": {"parallelism__ulysses_degree": 1},
        "ring on documents": {"parallelism__ulysses_degree": 1, "data__packing": True},
        "Ulysses": {"parallelism__ulysses_degree": ranks},
    }
    if ranks == 4:
        cases["ring and Ulysses"] = {"parallelism__ulysses_degree": 2}
    return certify_all(
        bench, cases, ranks=ranks, steps=STEPS, parallelism__strategy="context",
        precision="bfloat16",
    )  # fmt: skip
