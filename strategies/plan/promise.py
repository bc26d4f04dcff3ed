"""Allowed difference between two runs of one training, by their techniques' promises and precision.

Pure and torch-free.
"""

from dataclasses import dataclass
from typing import NamedTuple

from strategies.plan.catalog import ResultClass
from strategies.plan.spec import ZERO_STAGES, Precision, Strategy


class Tolerance(NamedTuple):
    """Largest relative differences that count as the same curve, and the number of first steps.

    Rounding differences grow with training, so no tolerance holds forever.
    """

    loss: float
    grad_norm: float
    steps: int


# float64 and float32 are the law that every layout is tested against. The half precisions are
# bands, measured and then frozen (docs/strategies/certificate.md).
TOLERANCES = {
    Precision.FLOAT64: Tolerance(1e-13, 1e-12, 1000),
    Precision.FLOAT32: Tolerance(1e-6, 1e-5, 100),
    Precision.FLOAT16: Tolerance(3e-4, 7e-3, 50),
    Precision.BFLOAT16: Tolerance(2e-3, 5e-2, 50),
    Precision.PURE_BFLOAT16: Tolerance(2e-3, 6e-2, 50),
}


@dataclass(frozen=True)
class Promise:
    """Properties that determine how far a training may be from the same one in another layout."""

    result_class: ResultClass
    precision: Precision
    strategy: Strategy
    tf32: bool = False
    """True if float32 products are rounded as in float16."""

    @property
    def tolerance(self) -> Tolerance | None:
        """Allowed difference; None if nothing is promised."""
        if self.result_class == "exempt":
            return None
        if self.precision is Precision.FLOAT64 and self.strategy in ZERO_STAGES:
            return TOLERANCES[Precision.FLOAT32]  # DeepSpeed keeps float32 inside, always
        return TOLERANCES[Precision.FLOAT16 if self.tf32 else self.precision]


def weaker(one: Promise, other: Promise) -> Tolerance | None:
    """Return the tolerance that both promises allow together."""
    ours, theirs = one.tolerance, other.tolerance
    if ours is None or theirs is None:
        return None
    return Tolerance(
        max(ours.loss, theirs.loss),
        max(ours.grad_norm, theirs.grad_norm),
        min(ours.steps, theirs.steps),
    )
