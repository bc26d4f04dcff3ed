"""Comparison of two trainings' curves: the rule, its tolerances, and the certificate of a run
against one rank. Pure and torch-free.

The rule: over the steps that both have, loss and gradient norm may differ by a share that the
weaker promise of the two allows. The same rule holds for a layout against one rank, while it runs,
and for two finished jobs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import RESULT_CLASSES, ResultClass, multiplies_in_tf32
from strategies.plan.layout import Layout
from strategies.plan.planner import Plan
from strategies.plan.promise import Promise, weaker
from strategies.plan.spec import Precision, Schedule, Strategy, TrainSpec

Verdict = Literal["pass", "fail", "exempt"]
MOST_STEPS = 1000  # compared at most, unless a promise says fewer


class CertificatePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Difference(CertificatePart):
    """Largest difference between two curves of one quantity."""

    largest: float | None
    """Difference relative to the larger of the two values; None: one of them is not finite."""
    step: int
    found: float | None
    expected: float | None
    tolerance: float | None
    """Largest allowed difference; None: nothing is promised."""

    @property
    def is_within(self) -> bool:
        """True if the difference is within the tolerance."""
        if self.tolerance is None:
            return True
        return self.largest is not None and self.largest <= self.tolerance


class Comparison(CertificatePart):
    """Result of comparing two curves by the rule.

    `exempt`: one of them promises nothing, so there is no verdict.
    """

    verdict: Verdict
    result_class: ResultClass
    """Weaker of the two promises."""
    steps: int
    """Number of steps compared."""
    loss: Difference
    grad_norm: Difference | None
    """Difference of the gradient norms; None: float16 skipped each of these steps in one of the
    runs."""


class Certificate(Comparison):
    """Content of certificate.json: the first steps of a run against those of one rank alone."""

    precision: Precision
    strategy: Strategy
    layout: Layout
    device: Literal["cpu", "cuda"]
    torch: str
    """Version of torch."""

    @property
    def sentence(self) -> str:
        """Result in a sentence, for the run's log and its page."""
        if self.verdict == "pass":
            opening = f"Same curve as one rank over {self.steps:,} steps"
        elif self.verdict == "fail":
            opening = f"Different curve from one rank over {self.steps:,} steps"
        else:
            opening = (
                f"{self.strategy} promises no particular curve; compared with one rank over "
                f"{self.steps:,} steps"
            )
        curves = [told("loss", self.loss)]
        if self.grad_norm is not None:
            curves.append(told("gradient norm", self.grad_norm))
        return f"{opening}: {', '.join(curves)}."


def promise_of(spec: TrainSpec, plan: Plan) -> Promise:
    """Return the promise of a planned run."""
    return Promise(plan.result_class, spec.precision, plan.strategy, multiplies_in_tf32(spec))


@dataclass
class Curve:
    """Loss and gradient norm by step. A step that float16 skipped has no gradient norm."""

    loss: dict[int, float] = field(default_factory=dict)
    grad_norm: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, loss: float, grad_norm: float | None) -> None:
        """Append a step."""
        self.loss[step] = loss
        if grad_norm is not None:
            self.grad_norm[step] = grad_norm


def certify(found: Curve, expected: Curve, spec: TrainSpec, plan: Plan, torch: str) -> Certificate:
    """Return the certificate of a run whose first steps are `found`, by a torch of this version."""
    promise = promise_of(spec, plan)
    comparison = compare(found, expected, promise, promise)
    return Certificate(
        **dict(comparison),
        precision=spec.precision,
        strategy=plan.strategy,
        layout=plan.layout,
        device=plan.device,
        torch=torch,
    )


def compare(found: Curve, expected: Curve, one: Promise, other: Promise) -> Comparison:
    """Compare two curves by the rule. Raises ValueError if they have no step in common."""
    allowed = weaker(one, other)
    most = MOST_STEPS if allowed is None else allowed.steps
    steps = sorted(found.loss.keys() & expected.loss.keys())[:most]
    if not steps:
        raise ValueError("the two curves have no step in common")
    loss = difference(found.loss, expected.loss, steps, allowed and allowed.loss)
    updates = [at for at in steps if at in found.grad_norm and at in expected.grad_norm]
    grad_norm = None
    if updates:
        tolerance = allowed and allowed.grad_norm
        grad_norm = difference(found.grad_norm, expected.grad_norm, updates, tolerance)
    is_same = loss.is_within and (grad_norm is None or grad_norm.is_within)
    verdict: Verdict = "pass" if is_same else "fail"
    return Comparison(
        verdict="exempt" if allowed is None else verdict,
        result_class=max(one.result_class, other.result_class, key=RESULT_CLASSES.index),
        steps=len(steps),
        loss=loss,
        grad_norm=grad_norm,
    )


def difference(
    found: Mapping[int, float],
    expected: Mapping[int, float],
    steps: Sequence[int],
    tolerance: float | None,
) -> Difference:
    """Return the largest difference over these steps, for which both have a value."""
    apart = {step: relative(found[step], expected[step]) for step in steps}
    step = max(steps, key=lambda at: apart[at])  # the first of equals
    return Difference(
        largest=finite(apart[step]),
        step=step,
        found=finite(found[step]),
        expected=finite(expected[step]),
        tolerance=tolerance,
    )


def relative(found: float, expected: float) -> float:
    """Return the distance as a share of the larger value; infinite if either is not finite."""
    if not (math.isfinite(found) and math.isfinite(expected)):
        return math.inf
    if found == expected:
        return 0.0
    return abs(found - expected) / max(abs(found), abs(expected))


def told(quantity: str, difference: Difference) -> str:
    """Return `loss within 1.2e-07 (1e-06 allowed)`, or the step and size of a larger difference."""
    allowed = "" if difference.tolerance is None else f" ({difference.tolerance:.0e} allowed)"
    if difference.largest is None:
        return (
            f"{quantity} is {difference.found} at step {difference.step:,} instead of "
            f"{difference.expected}"
        )
    if difference.is_within:
        return f"{quantity} within {difference.largest:.1e}{allowed}"
    return f"{quantity} off by {difference.largest:.1e} at step {difference.step:,}{allowed}"


def finite(value: float) -> float | None:
    """Return None for nan and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


# Fields that may differ between two trainings of one curve: how it is computed and watched, and
# what is saved. All other fields must be equal.
FREE = {
    "parallelism",
    "precision",
    "float32_matmul",
    "deterministic",
    "activation_checkpointing",
    "compile",
    "tiling",
    "checkpoint",
    "guards",
    "verify",
    "training.micro_batch_size",
    "training.gradient_accumulation_steps",
    "training.eval_every_steps",
}


def differing_fields(one: TrainSpec, other: TrainSpec) -> dict[str, tuple[object, object]]:
    """Return the dotted fields that prevent two trainings from having one curve, with both
    values."""
    free = FREE
    if one.training.schedule is other.training.schedule is Schedule.CONSTANT:
        free = FREE | {"training.steps"}
    ones, others = dotted(one), dotted(other)
    return {
        name: (ones.get(name), others.get(name))
        for name in sorted(ones.keys() | others.keys())
        if ones.get(name) != others.get(name) and not {name, name.partition(".")[0]} & free
    }


def dotted(spec: TrainSpec) -> dict[str, object]:
    """Return the fields of a training by name; nested ones as `training.seed`."""
    fields: dict[str, object] = {}
    for name, value in spec.model_dump(mode="json", include=set(TrainSpec.model_fields)).items():
        if isinstance(value, dict):
            fields |= {f"{name}.{inner}": of for inner, of in value.items()}
        else:
            fields[name] = value
    return fields
