"""`trainyard agenda`: an ordered list of jobs for one lease."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import AGENDAS, LEASES, AgendaKey
from trainyard.cli.group import Lists
from trainyard.cli.jobs.planning import read_job
from trainyard.cli.output import AsJson, Limit, id_cell, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.cli.studies import watching
from trainyard.cli.studies.agenda_display import jobs_table, show_agenda
from trainyard.cli.studies.watching import Change
from trainyard.views import Agenda
from trainyard.wording import moment

AgendaFile = Annotated[
    Path,
    typer.Argument(help="An agenda as YAML; `-` reads standard input.", show_default=False),
]

app = typer.Typer(cls=Lists, help="An ordered list of jobs for one lease.")


@app.command("plan")
def plan(
    file: AgendaFile,
    lease: Annotated[str | None, typer.Option(help="Your lease to check against.")] = None,
    hours: Annotated[int | None, typer.Option(min=1, help="Or: a block of N hours,")] = None,
    node_class: Annotated[
        str | None, typer.Option("--class", help="on a node of this class,")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="or on N of them, booked together.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether all jobs fit, before booking or submitting anything.

    Exit code: 0 they fit even if each uses its whole wall time, 3 they do not, 2 bad input.
    """
    block = hours is not None and node_class is not None
    if (lease is None) != block or (lease is not None and (hours or node_class or nodes)):
        raise typer.BadParameter("give either --lease ID, or --hours 3 --class CLASS")
    text = read_job(file)
    with connect() as client:
        lease = lease and LEASES.id_of(client, lease)
        answer = client.agendas.plan(
            text, lease=lease, hours=hours, node_class=node_class, nodes=nodes
        )
    if as_json:
        print_json(answer.raw)
    else:
        show_agenda(answer)
    if not answer.fits:
        raise typer.Exit(ExitCode.DOES_NOT_FIT)


@app.command("submit")
def submit(
    file: AgendaFile,
    lease: Annotated[str, typer.Option(help="Lease to run in.")],
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Submit even if not all jobs fit; the rest run elsewhere."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Queue the jobs of an agenda for a lease, in order; all or none.

    Exit code: 0 submitted, 3 they do not fit and nothing was submitted, 2 bad input.
    """
    text = read_job(file)
    with connect() as client:
        agenda = client.agendas.create(text, lease=LEASES.id_of(client, lease), anyway=anyway)
    if as_json:
        print_json(agenda.raw)
        return
    say(f"Submitted {len(agenda.jobs)} jobs as {agenda.id}")
    show_agenda(agenda)
    say(f"Watch it: trainyard agenda follow {agenda.id}")


@app.command("list")
def list_agendas(
    lease: Annotated[str | None, typer.Option(help="Only of this lease.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your agendas, newest first."""
    with connect() as client:
        lease = lease and LEASES.id_of(client, lease)
        agendas = list(client.agendas.list(lease=lease, limit=limit))
    print_list(
        agendas,
        ["id", "name", "lease", "begins", "status"],
        lambda one: (
            id_cell(one.id),
            one.name,
            one.lease and id_cell(one.lease),
            moment(one.begins),
            one.summary,
        ),
        sentence=True,
        empty="No agendas here. Make one: trainyard agenda submit FILE --lease LEASE",
        as_json=as_json,
    )


@app.command("show")
def show(named: AgendaKey, as_json: AsJson = False) -> None:
    """Show an agenda's progress: finished and late jobs, and whether the rest still fits.

    Exit code: 3 if it does not fit any more.
    """
    with connect() as client:
        agenda_id = AGENDAS.id_of(client, named)
        agenda = client.agendas.get(agenda_id)
    if as_json:
        print_json(agenda.raw)
    else:
        show_agenda(agenda)
    if not (agenda.fits or agenda.is_final):
        raise typer.Exit(ExitCode.DOES_NOT_FIT)


@app.command("follow")
def follow(named: AgendaKey, as_json: AsJson = False) -> None:
    """Watch an agenda to its end. Exit code 1: not all of its jobs succeeded."""
    with connect() as client:
        agenda_id = AGENDAS.id_of(client, named)
        agenda = watching.follow(
            client,
            partial(client.agendas.get, agenda_id),
            again=f"trainyard agenda follow {agenda_id}",
            table=jobs_table,
            changes=_changes,
            as_json=as_json,
        )
    if not as_json:
        show_agenda(agenda)
    if any(job.standing != "done" for job in agenda.jobs):
        raise typer.Exit(ExitCode.JOB_FAILED)


@app.command("cancel")
def cancel(named: AgendaKey, as_json: AsJson = False) -> None:
    """Cancel the waiting jobs of an agenda. A running one continues."""
    with connect() as client:
        agenda_id = AGENDAS.id_of(client, named, changes=True)
        agenda = client.agendas.cancel(agenda_id)
    if as_json:
        print_json(agenda.raw)
    else:
        show_agenda(agenda)


def _changes(agenda: Agenda) -> Iterator[Change]:
    for job in agenda.jobs:
        late_min = job.late_s // 60
        late = f", late by {late_min} min" if late_min else ""
        line = f"{job.position} {job.name}: {job.standing}{late}. {job.reason}"
        yield Change(str(job.position), (job.standing, late_min), line)
