"""Accuracy of plans, from runs whose memory was measured, and the factors a site derives from it.

A plan's exact terms follow from the code; its estimated ones come from formulas. For each kind of
run, the memory that runs needed beyond the exact terms, divided by the estimate, is the factor by
which the next plan of that kind is larger. It is never below 1: the shipped formulas are the floor.
Pure, torch-free.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.estimates.memory import PROCESS
from strategies.plan.planner import KindOfRun, Learned, Plan
from strategies.plan.spec import ModelName, Strategy

FEWEST_RUNS = 5  # measured before a factor is used
MOST = 2.0  # a larger factor would be a mistake to be found, not a correction


class MeasuredRun(NamedTuple):
    """Measured run: its fullest rank, in GiB, without Python and its libraries."""

    kind: KindOfRun
    exact: float
    estimated: float
    measured: float

    @property
    def error(self) -> float:
        """Planned memory over measured memory, less 1."""
        return (self.exact + self.estimated) / self.measured - 1


class AccuracyRow(BaseModel):
    """Accuracy of the plans of one kind of run."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    device: str
    model: ModelName
    strategy: Strategy
    runs: int
    error_median: float
    """Planned over measured, less 1: below 0, more was needed than planned."""
    error_least: float
    error_most: float
    factor: float
    """Factor of the estimated terms in new plans here."""


def weighed(plan: Plan, model: ModelName, peak_gib: list[float]) -> MeasuredRun | None:
    """Return planned and measured memory of a run's fullest rank; None if it was not measured.

    Estimates that a learned factor had already enlarged are divided by it again.
    """
    if not peak_gib:
        return None
    terms = [term for term in plan.memory if term.name != PROCESS]
    return MeasuredRun(
        kind=KindOfRun(plan.device, model, plan.strategy),
        exact=sum(term.gib for term in terms if term.exact),
        estimated=sum(term.gib for term in terms if not term.exact) / plan.learned_factor,
        measured=max(peak_gib),
    )


def table(runs: Iterable[MeasuredRun]) -> list[AccuracyRow]:
    """Return one row for each kind of run."""
    by_kind: dict[KindOfRun, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        by_kind[run.kind].append(run)
    return [
        AccuracyRow(
            **kind._asdict(),
            runs=len(found),
            error_median=median(run.error for run in found),
            error_least=min(run.error for run in found),
            error_most=max(run.error for run in found),
            factor=factor(found),
        )
        for kind, found in sorted(by_kind.items())
    ]


def factor(runs: list[MeasuredRun]) -> float:
    """Return the factor of the estimated terms of this kind of run, to two decimals; 1 to MOST."""
    needed = [(run.measured - run.exact) / run.estimated for run in runs if run.estimated > 0]
    if len(needed) < FEWEST_RUNS:
        return 1.0
    return round(min(MOST, max(1.0, median(needed))), 2)


def learned(rows: Iterable[AccuracyRow]) -> Learned:
    """Return the factors above 1."""
    return {
        KindOfRun(row.device, row.model, row.strategy): row.factor
        for row in rows
        if row.factor > 1.0
    }
