"""`trainyard workbench`: sit in front of the hour that one has booked."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard import Trainyard
from trainyard.cli.jobs.scripts import named_input
from trainyard.cli.output import AsJson, note, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import Job, Workbench
from trainyard.wording import counted, moment

NOW = "now"
ASK_EVERY_S = 0.3
LIVE = ("queued", "starting")

app = typer.Typer(
    no_args_is_help=True, help="Programs that you sit in front of, on the GPUs of a lease."
)


@app.command("start")
def start(
    kind: Annotated[str, typer.Option(help="terminal or jupyter.")] = "terminal",
    lease: Annotated[
        str, typer.Option(help="Booked lease to sit in; now: on free GPUs, until the wall time.")
    ] = NOW,
    gpus: Annotated[
        int, typer.Option(min=1, help="GPUs, or CPU slots, of the lease that it gets.")
    ] = 1,
    wall_time: Annotated[
        str | None,
        typer.Option(help="Longest time: 50min, 2h. Default: 50min, or as long as the lease."),
    ] = None,
    env: Annotated[
        Path | None, typer.Option(help="A requirements.txt with the packages that it has.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name; by default its kind.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="dataset=NAME, model=NAME or checkpoint=JOB/step-N. Repeat for several."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Host that it may reach: pypi.org, or a group. Repeat for several."),
    ] = None,
    workspace: Annotated[
        bool, typer.Option(help="Be at home in your workspace, which outlives the lease.")
    ] = True,
    when_idle: Annotated[
        str,
        typer.Option(help="Its GPUs while it is idle: keep, lend, or release their memory first."),
    ] = "keep",
    open_it: Annotated[
        bool, typer.Option("--open", "-o", help="Wait until it runs, and open it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a workbench: a job that you sit in front of.

    It begins with its lease and ends with it, as any job there.
    """
    bench: dict[str, Any] = {"kind": kind, "when_idle": when_idle}
    if env is not None:
        try:
            bench["requirements"] = env.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--env {env} can't be read: {error}") from error
    in_lease = lease != NOW
    spec: dict[str, Any] = {
        "name": name or kind,
        "workbench": bench,
        "resources": {
            "ranks_per_node": gpus,
            "wall_time": wall_time or ("24h" if in_lease else "50min"),
        },
        "workspace": workspace,
        "inputs": [named_input(text) for text in inputs or []],
        "network": network or [],
    }
    if in_lease:
        spec["lease"] = lease
    with connect() as client:
        job = client.jobs.create(spec)
        if as_json:
            print_json(job.raw)
        else:
            say(f"Started {job.name} as {job.id}")
            if not open_it:
                say(job.reason)
                say(f"Open it: trainyard workbench open {job.id}")
        if open_it:
            _open(client, job.id, "1")


@app.command("list")
def list_workbenches(as_json: AsJson = False) -> None:
    """List your workbenches that wait or run, newest first."""
    with connect() as client:
        found = list(client.workbenches.list())
    print_list(
        found,
        ["id", "name", "kind", "state", "node", "slots", "ends", "reason"],
        lambda one: (
            one.id,
            one.name,
            one.kind,
            one.state,
            one.node or "",
            one.slots,
            moment(one.ends_at),
            " ".join(filter(None, (one.reason, one.idle_note))),
        ),
        empty="No workbenches. Start one: trainyard workbench start",
        as_json=as_json,
    )


@app.command("open")
def open_workbench(
    workbench_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="By default your only one.")
    ] = None,
    terminal: Annotated[
        str, typer.Option("--terminal", "-t", help="Name of the terminal; a new one is started.")
    ] = "1",
) -> None:
    """Open a terminal of a workbench, or of the held sandbox of a job that has failed. Ctrl-]
    leaves it, and its programs go on.

    The terminal's title has a clock to the end, and rings 15 and 5 minutes before.
    """
    with connect() as client:
        _open(client, workbench_id or _only_one(client).id, terminal)


@app.command("stop")
def stop(
    workbench_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Stop a workbench. Its programs get a signal to save; the workspace is kept."""
    with connect() as client:
        job = client.jobs.cancel(workbench_id)
    print_answer(job.raw, f"{job.name} is {job.state}.", as_json=as_json)


@app.command("release")
def release(job_id: Annotated[str, typer.Argument(metavar="JOB")], as_json: AsJson = False) -> None:
    """Release the sandbox of a job that has failed and asked to be held. The job fails then."""
    with connect() as client:
        job = client.jobs.release(job_id)
    print_answer(job.raw, f"The sandbox of {job.name} is being released.", as_json=as_json)


def _only_one(client: Trainyard) -> Workbench:
    found = list(client.workbenches.list())
    if len(found) != 1:
        raise BadInput(
            f"You have {counted(len(found), 'workbench', 'workbenches')}; name one: "
            f"{', '.join(one.id for one in found) or 'trainyard workbench start makes one'}."
        )
    return found[0]


def _open(client: Trainyard, workbench_id: str, terminal: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("A workbench is opened on a terminal; this is a file or a pipe.")
    # Here: what it stands on is missing on systems whose terminals are of another kind.
    from trainyard.cli.workbenches.sitting import sit

    job = _wait_until_open(client, workbench_id)
    sit(client, workbench_id, terminal, title=job.name)


def _wait_until_open(client: Trainyard, workbench_id: str) -> Job:
    told = ""
    while (job := client.jobs.get(workbench_id)).state in LIVE:
        if job.reason != told:
            note(job.reason)
            told = job.reason
        time.sleep(ASK_EVERY_S)
    return job
