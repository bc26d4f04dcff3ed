"""`trainyard scale` and `trainyard studies`: one training as several jobs, side by side."""

from functools import partial
from typing import Annotated

import typer
from rich.live import Live

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import (
    AsJson,
    console,
    note,
    print_json,
    print_json_list,
    print_table,
    say,
)
from trainyard.cli.patience import look_again
from trainyard.cli.planning import JobFile, read_job
from trainyard.cli.session import connect
from trainyard.cli.study_display import jobs_table, show_report
from trainyard.client import Trainyard
from trainyard.inert import one_line
from trainyard.views import Study, StudyReport
from trainyard.wording import moment

StudyId = Annotated[str, typer.Argument(metavar="STUDY", help="Id of the study, study_...")]
POLL_S = 2.0

app = typer.Typer(no_args_is_help=True, help="Trainings at several sizes or in several schedules.")


def scale(
    file: JobFile,
    ranks: Annotated[str | None, typer.Option(help="Sizes, such as 1,2,4.")] = None,
    weak: Annotated[
        bool, typer.Option("--weak", help="Let the batch grow with the ranks. Default: it stays.")
    ] = False,
    schedules: Annotated[
        str | None,
        typer.Option(help="Instead of sizes: pipeline schedules, such as naive,GPipe,1F1B."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a job at several sizes and compare them. Exit code 1: not all of them succeeded."""
    if (ranks is None) == (schedules is None):
        raise typer.BadParameter("give either --ranks 1,2,4 or --schedules naive,GPipe,1F1B")
    text = read_job(file)
    with connect() as client:
        study = client.studies.create(
            text, ranks=_sizes(ranks or ""), weak=weak, schedules=_names(schedules or "")
        )
        if not as_json:
            say(f"Submitted {len(study.jobs)} jobs as {study.id}")
        _follow(client, study.id, as_json)


@app.command("list")
def list_studies(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Your studies, newest first."""
    with connect() as client:
        studies = list(client.studies.list(limit=limit))
    if as_json:
        print_json_list(study.raw for study in studies)
        return
    print_table(
        ["id", "name", "kind", "submitted", "jobs"],
        (
            (study.id, study.name, study.kind, moment(study.created_at), _jobs_words(study))
            for study in studies
        ),
        sentence=True,
        empty="No studies here. Make one: trainyard scale FILE --ranks 1,2",
    )


@app.command("show")
def show(study_id: StudyId, as_json: AsJson = False) -> None:
    """What a study found so far."""
    with connect() as client:
        report = client.studies.get(study_id)
    if as_json:
        print_json(report.raw)
        return
    show_report(report)
    if not report.is_final:
        say(f"Watch it: trainyard studies follow {report.id}")


@app.command("follow")
def follow(study_id: StudyId, as_json: AsJson = False) -> None:
    """Watch a study to its end. Exit code 1: not all of its jobs succeeded."""
    with connect() as client:
        _follow(client, study_id, as_json)


@app.command("cancel")
def cancel(study_id: StudyId, as_json: AsJson = False) -> None:
    """End every job of a study that has not ended."""
    with connect() as client:
        study = client.studies.cancel(study_id)
    if as_json:
        print_json(study.raw)
    else:
        say(f"{study.id} ({study.name}): {_jobs_words(study)}.")


def _follow(client: Trainyard, study_id: str, as_json: bool) -> None:
    """Wait for the end, print what was found, exit by it."""
    try:
        report = _wait(client, study_id, quiet=as_json)
    except KeyboardInterrupt as error:
        note(f"Stopped watching; the jobs go on. Again: trainyard studies follow {study_id}")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    if as_json:
        print_json(report.raw)
    else:
        show_report(report)
    if any(job.state != "succeeded" for job in report.jobs):
        raise typer.Exit(ExitCode.JOB_FAILED)


def _wait(client: Trainyard, study_id: str, *, quiet: bool) -> StudyReport:
    out = console()
    look = partial(client.studies.get, study_id)
    report = look()
    if quiet or not out.is_terminal:
        told: dict[str, str] = {}
        while True:
            if not quiet:
                _tell_changes(report, told)
            if report.is_final:
                return report
            report = look_again(client, look, after_s=POLL_S)
    with Live(jobs_table(report), console=out, auto_refresh=False, transient=True) as display:
        while not report.is_final:
            report = look_again(client, look, after_s=POLL_S)
            display.update(jobs_table(report), refresh=True)
    return report


def _tell_changes(report: StudyReport, told: dict[str, str]) -> None:
    for job in report.jobs:
        if told.get(job.job) != job.state:
            told[job.job] = job.state
            say(f"{job.label}: {job.state}, {job.job}. {job.reason}")


def _jobs_words(study: Study) -> str:
    return ", ".join(f"{one_line(job.label)} {job.state}" for job in study.jobs)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"--ranks {text}: write numbers with commas, 1,2,4") from error
