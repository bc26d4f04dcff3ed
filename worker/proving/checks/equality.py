"""equality: every technique, in three precisions, has the loss curve of one rank."""

from collections.abc import Iterable
from typing import Any

from core.states import Outcome
from strategies.plan.catalog import TECHNIQUES
from strategies.plan.run_directory import ExitCode
from strategies.plan.spec import Precision, Strategy, TrainSpec
from strategies.plan.trust.certificate import Certificate
from worker.proving.bench import Bench, spec_of
from worker.proving.finding import CheckFailed, Finding, all_of

STEPS = 8
PRECISIONS = (Precision.FLOAT64, Precision.FLOAT32, Precision.BFLOAT16)
COMPARED = [
    strategy
    for strategy, technique in TECHNIQUES.items()
    if strategy not in (Strategy.SINGLE, Strategy.HSDP) and technique.result_class != "exempt"
]


def look(bench: Bench) -> Finding:
    """Certify 8 steps of every technique on as many ranks as 2."""
    bench.require_ranks(2)
    cases = {
        f"{strategy} in {precision}": {"parallelism__strategy": strategy, "precision": precision}
        for strategy in COMPARED
        for precision in PRECISIONS
    }
    return certify_all(bench, cases, ranks=2, steps=STEPS)


def certify_all(
    bench: Bench, cases: dict[str, dict[str, Any]], *, ranks: int, steps: int, **changes: Any
) -> Finding:
    """Certify each case, with `changes` to the spec of all."""
    certificates: dict[str, Certificate] = {}
    refused: dict[str, str] = {}
    asked: dict[str, TrainSpec] = {}
    for name, case in cases.items():
        spec = spec_of(
            training__steps=steps, verify={"steps": steps}, checkpoint={}, **changes, **case
        )
        plan = bench.plan(spec, ranks=ranks)
        if plan.runnable:
            asked[name] = spec
        else:
            refused[name] = plan.problems[0].message
    for name, run in bench.run_all(asked, ranks=ranks):
        if run.exit.code == ExitCode.NOT_EQUIPPED:
            refused[name] = run.exit.reason
        elif run.exit.outcome != Outcome.SUCCEEDED or run.certificate is None:
            raise CheckFailed(f"{name} ended as {run.exit.outcome}: {run.exit.reason}")
        else:
            certificates[name] = run.certificate
    return judge(certificates, ranks=ranks, refused=refused)


def judge(certificates: dict[str, Certificate], *, ranks: int, refused: dict[str, str]) -> Finding:
    """Return whether every certificate says that its curve is that of one rank."""
    wrong = [
        f"{name}: {certificate.sentence.rstrip('.')}"
        for name, certificate in certificates.items()
        if certificate.verdict != "pass"
    ]
    if not certificates:
        wrong = [f"{name}: {why}" for name, why in refused.items()] or ["nothing was compared"]
    said = (
        f" Not run here: {', '.join(refused)} ({next(iter(refused.values()))})." if refused else ""
    )
    well = f"{len(certificates)} trainings on {ranks} ranks have the curve of one rank.{said}"
    return all_of(wrong, well, figures_of(certificates.values()))


def figures_of(certificates: Iterable[Certificate]) -> dict[str, float]:
    """Return the largest difference by precision, and the number of trainings compared."""
    figures: dict[str, float] = {"compared": 0}
    for certificate in certificates:
        figures["compared"] += 1
        for quantity, difference in (("loss", certificate.loss), ("norm", certificate.grad_norm)):
            if difference is not None and difference.largest is not None:
                name = f"{quantity}_{certificate.precision}_largest"
                figures[name] = max(figures.get(name, 0.0), difference.largest)
    return figures
