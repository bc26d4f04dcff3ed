"""`trainyard report` and `trainyard reports`: reports to hand in, and their check."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import JOBS, LEASES, NAMED
from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, Limit, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.client import Trainyard
from trainyard.errors import BadInput
from trainyard.views import Job
from trainyard.wording import moment

KINDS = (".html", ".json")

app = typer.Typer(cls=Lists, help="Your reports, and the check of a report.")


def report(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB...", help=NAMED, autocompletion=JOBS.complete),
    ] = None,
    lease: Annotated[
        str | None, typer.Option(help="Instead: every job that ran in this lease.")
    ] = None,
    title: Annotated[str, typer.Option(help="By default the name of the job or lease.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A new file: .html to read, or .json to check."),
    ] = None,
    when_ended: Annotated[
        bool | None,
        typer.Option(
            "--when-ended/--no-when-ended",
            help="Have a report of each job written when it has ended, or no longer.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Freeze the results of jobs or a lease as a report addressed by its hash."""
    if when_ended is not None:
        if lease or title or output or not jobs:
            raise typer.BadParameter("--when-ended takes jobs, and no other option")
        _write_when_ended(jobs, wanted=when_ended, as_json=as_json)
        return
    if bool(jobs) == bool(lease):
        raise typer.BadParameter("name jobs, or one lease with --lease LEASE")
    if output is not None:
        require_new(output)
    with connect() as client:
        written = client.reports.write(
            [JOBS.id_of(client, one) for one in jobs or ()],
            lease=lease and LEASES.id_of(client, lease),
            title=title,
        )
        if output is not None:
            save(client, written.sha256, output)
        address = f"{client.url}/reports/{written.sha256}"
    if as_json:
        print_json(written.raw)
        return
    say(f"{written.content.title}: {address}")
    if output is not None:
        say(f"Written to {output}")


def _write_when_ended(jobs: Sequence[str], *, wanted: bool, as_json: bool) -> None:
    """Have a report of each job written when it has ended, or no longer."""
    with connect() as client:
        ids = [JOBS.id_of(client, one, changes=True) for one in jobs]
        changed = [client.jobs.report_when_ended(job_id, wanted) for job_id in ids]
        if as_json:
            print_json([job.raw for job in changed])
            return
        for job in changed:
            say(f"{job.name}: {report_words(job, client.url) or 'no report is written by itself'}.")


def report_words(job: Job, url: str) -> str:
    """Return the address of the report of a job that has ended, or when it is written; empty if
    none is."""
    if job.report is not None:
        return f"{url}/reports/{job.report}"
    if not job.report_when_ended:
        return ""
    return (
        "its report is being written" if job.is_final else "a report is written when it has ended"
    )


@app.command("list")
def list_reports(
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your reports, newest first."""
    with connect() as client:
        found = list(client.reports.list(limit=limit))
    print_list(
        found,
        ["SHA-256", "about", "written"],
        lambda one: (one.sha256, one.title, moment(one.made_at)),
        empty="No reports here. Write one: trainyard report JOB -o report.html",
        as_json=as_json,
    )


@app.command("delete")
def delete(
    sha256: Annotated[str, typer.Argument(metavar="SHA-256", help="Hash, as in `reports list`.")],
    as_json: AsJson = False,
) -> None:
    """Delete one of your own reports. Copies of it can still be checked."""
    with connect() as client:
        client.reports.delete(sha256)
    print_answer({"report": sha256, "deleted": True}, f"Deleted {sha256}.", as_json=as_json)


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The JSON of a report, as it was handed in.")],
    as_json: AsJson = False,
) -> None:
    """Check whether a report is exactly what this server wrote. Exit code 1: it is not."""
    document = read_document(file)
    with connect() as client:
        verdict = client.reports.check(document)
    print_answer(verdict.raw, verdict.message, as_json=as_json)
    if not (verdict.intact and verdict.known):
        raise typer.Exit(ExitCode.JOB_FAILED)


def require_new(output: Path) -> None:
    """Check the output path before anything is written on the server. Raises BadInput."""
    if output.suffix not in KINDS:
        raise BadInput(f"{output}: name a file that ends in .html or .json.")
    if output.exists():
        raise BadInput(f"{output} exists already; remove it or choose another place.")
    if not output.absolute().parent.is_dir():
        raise BadInput(f"{output}: the folder {output.parent} does not exist.")


def save(client: Trainyard, sha256: str, output: Path) -> None:
    """Write the page or the document to its file. Raises BadInput if the disk refuses."""
    of = client.reports.page if output.suffix == ".html" else client.reports.document
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(of(sha256))
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}. The report is {sha256}.") from error


def read_document(file: Path) -> dict[str, Any]:
    """Read the report in a file. Raises BadInput if it is not one."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{file} is not JSON. A report's page has a link to its JSON.") from error
    if not isinstance(document, dict) or not {"sha256", "content"} <= document.keys():
        raise BadInput(f"{file} is not a report: it has no sha256 and content.")
    return document
