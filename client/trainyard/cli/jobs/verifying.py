"""`verify`: check that a job has the loss curve that its layout promises."""

from typing import Annotated

import typer
from rich.text import Text

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.output import AsJson, print_facts, print_json, print_table, say
from trainyard.cli.session import connect
from trainyard.views import Certificate, Comparison, Job
from trainyard.wording import counted, number

VERDICTS = {
    "pass": Text("✓ same curve", style="green"),
    "fail": Text("✗ not the same curve", style="red"),
    "exempt": Text("· no verdict", style="dim"),
}
Curves = Certificate | Comparison  # two curves, compared by one rule
EXIT_CODES = {"pass": ExitCode.OK, "fail": ExitCode.JOB_FAILED}


def verify(
    named: JobKey,
    against: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Compare with this job instead of its certificate."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a job's first steps with one rank, or a job with another. Exit code 0: same curve."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        if against is None:
            job = client.jobs.get(job_id)
            found: Curves | None = job.certificate
        else:
            against = JOBS.id_of(client, against)
            job, found = None, client.jobs.compare(job_id, against)
    if as_json:
        print_json(None if found is None else found.raw)
    elif found is not None:
        _show(found, other="one rank" if against is None else against)
    elif job is not None:
        say(_why_there_is_none(job))
    raise typer.Exit(
        EXIT_CODES.get(found.verdict, ExitCode.CONFLICT) if found else ExitCode.CONFLICT
    )


def _show(found: Curves, *, other: str) -> None:
    facts: list[tuple[str, object]] = [
        ("verdict", VERDICTS.get(found.verdict, Text(found.verdict))),
        ("compared", f"{counted(found.steps, 'step')} with {other}"),
        ("promise", found.result_class),
    ]
    if isinstance(found, Certificate):
        axes = [f"{axis} {degree}" for axis, degree in found.layout.items() if degree != 1]
        facts += [
            ("layout", f"{found.strategy}: {', '.join(axes)}"),
            ("computed in", f"{found.precision} on {found.device}, torch {found.torch}"),
        ]
    print_facts(facts)
    print_table(
        ["curve", "largest difference", "allowed", "at step", "this job", other],
        (
            (
                name,
                "not finite" if of.largest is None else f"{of.largest:.1e}",
                None if of.tolerance is None else f"{of.tolerance:.0e}",
                f"{of.step:,}",
                number(of.found, digits=9),
                number(of.expected, digits=9),
            )
            for name, of in (("loss", found.loss), ("gradient norm", found.grad_norm))
            if of is not None
        ),
        empty="",
        right=["largest difference", "allowed", "at step", "this job", other],
    )


def _why_there_is_none(job: Job) -> str:
    wanted = job.spec.get("verify")
    if not wanted:
        return (
            f"{job.name} has no certificate: its spec has no `verify`. Compare it with another "
            f"job: trainyard verify {job.id} --against OTHER"
        )
    steps = wanted["steps"]
    if not job.is_final and job.step < steps:
        return (
            f"{job.name} has no certificate yet: it comes after step {steps:,}, and the job is at "
            f"{job.step:,}. One rank trains these steps alone first."
        )
    return (
        f"{job.name} has no certificate: only a job that trained its first {steps:,} steps "
        "without a stop gets one."
    )
