"""`trainyard scale` and `trainyard studies`: one training as several jobs, for comparison."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import STUDIES, StudyKey
from trainyard.cli.group import Lists
from trainyard.cli.jobs.planning import JobFile, read_job
from trainyard.cli.output import AsJson, Limit, id_cell, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.cli.studies import watching
from trainyard.cli.studies.study_display import jobs_table, show_report
from trainyard.cli.studies.watching import Change
from trainyard.client import Trainyard
from trainyard.inert import one_line
from trainyard.views import Study, StudyReport
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Trainings at several sizes or in several schedules.")


def scale(
    file: JobFile,
    ranks: Annotated[str | None, typer.Option(help="Sizes, such as 1,2,4.")] = None,
    weak: Annotated[
        bool, typer.Option("--weak", help="Let the batch grow with the ranks. Default: constant.")
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
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your studies, newest first."""
    with connect() as client:
        studies = list(client.studies.list(limit=limit))
    print_list(
        studies,
        ["id", "name", "kind", "submitted", "jobs"],
        lambda study: (
            id_cell(study.id),
            study.name,
            study.kind,
            moment(study.created_at),
            _jobs_words(study),
        ),
        sentence=True,
        empty="No studies here. Make one: trainyard scale FILE --ranks 1,2",
        as_json=as_json,
    )


@app.command("show")
def show(named: StudyKey, as_json: AsJson = False) -> None:
    """Show the results of a study so far."""
    with connect() as client:
        study_id = STUDIES.id_of(client, named)
        report = client.studies.get(study_id)
    if as_json:
        print_json(report.raw)
        return
    show_report(report)
    if not report.is_final:
        say(f"Watch it: trainyard studies follow {report.id}")


@app.command("follow")
def follow(named: StudyKey, as_json: AsJson = False) -> None:
    """Watch a study to its end. Exit code 1: not all of its jobs succeeded."""
    with connect() as client:
        study_id = STUDIES.id_of(client, named)
        _follow(client, study_id, as_json)


@app.command("cancel")
def cancel(named: StudyKey, as_json: AsJson = False) -> None:
    """Cancel every unfinished job of a study."""
    with connect() as client:
        study_id = STUDIES.id_of(client, named, changes=True)
        study = client.studies.cancel(study_id)
    print_answer(study.raw, f"{study.id} ({study.name}): {_jobs_words(study)}.", as_json=as_json)


def _follow(client: Trainyard, study_id: str, as_json: bool) -> None:
    """Wait for the end, print the results, and exit accordingly."""
    report = watching.follow(
        client,
        partial(client.studies.get, study_id),
        again=f"trainyard studies follow {study_id}",
        table=jobs_table,
        changes=_changes,
        as_json=as_json,
    )
    if not as_json:
        show_report(report)
    if any(job.state != "succeeded" for job in report.jobs):
        raise typer.Exit(ExitCode.JOB_FAILED)


def _changes(report: StudyReport) -> Iterator[Change]:
    for job in report.jobs:
        line = f"{job.label}: {job.state}, {job.job}. {job.reason}"
        yield Change(job.job, job.state, line)


def _jobs_words(study: Study | StudyReport) -> str:
    return ", ".join(f"{one_line(job.label)} {job.state}" for job in study.jobs)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"--ranks {text}: write numbers with commas, 1,2,4") from error
