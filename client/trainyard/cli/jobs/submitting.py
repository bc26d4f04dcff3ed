"""`trainyard submit`: a file that describes a job, or a user's own program."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard import Trainyard
from trainyard.cli.finding import LEASES
from trainyard.cli.jobs.following import follow_job
from trainyard.cli.jobs.planning import read_job
from trainyard.cli.jobs.scripts import ScriptOptions, named_input, script_job
from trainyard.cli.output import AsJson, print_json, print_json_line, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.views import Job

SCRIPT = "A program of your own"
TERMS = "Terms of the job; they override those in a file"


@dataclass(frozen=True)
class Terms:
    """Terms of any job on the command line; None or empty if not given."""

    name: str | None
    ranks: int | None
    nodes: int | None
    wall_time: str | None
    node_class: str | None
    leases: Sequence[str]
    allow_oom: bool = False
    start_from: str | None = None
    tags: Sequence[str] = ()
    report_when_ended: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the terms as fields of a job; a lease replaces all leases that a job names."""
        resources = {
            "nodes": self.nodes,
            "ranks_per_node": self.ranks,
            "wall_time": self.wall_time,
            "node_class": self.node_class,
            "allow_oom": True if self.allow_oom else None,
        }
        fields: dict[str, Any] = {} if self.name is None else {"name": self.name}
        if said := {field: value for field, value in resources.items() if value is not None}:
            fields["resources"] = said
        if self.tags:
            fields["tags"] = list(self.tags)
        if self.report_when_ended:
            fields["report_when_ended"] = True
        if self.start_from is not None:
            job, _, step = self.start_from.partition("/step-")
            if not step.isdigit():
                raise BadInput(f"--start-from {self.start_from}: write JOB/step-400.")
            fields["start_from"] = {"job": job, "step": int(step)}
        if len(self.leases) == 1:
            fields |= {"lease": self.leases[0], "leases": None}
        elif self.leases:
            fields |= {"lease": None, "leases": list(self.leases)}
        return fields


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | -- ARGUMENT...]",
            help="A job as YAML; `-` reads standard input. With --script: its arguments.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Processes on each node, one per GPU.", rich_help_panel=TERMS),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nodes, all of one class.", rich_help_panel=TERMS),
    ] = None,
    wall_time: Annotated[
        str | None,
        typer.Option(help="Maximum running time: 20min, 1h 30min.", rich_help_panel=TERMS),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the job; by default the program's.", rich_help_panel=TERMS),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="Word to find the job by, such as lab-1; may be repeated.", rich_help_panel=TERMS
        ),
    ] = None,
    report_when_ended: Annotated[
        bool,
        typer.Option(
            "--report-when-ended",
            help="Have a report written when it has ended.",
            rich_help_panel=TERMS,
        ),
    ] = False,
    node_class: Annotated[
        str | None, typer.Option(help="Class of the nodes to run on.", rich_help_panel=TERMS)
    ] = None,
    allow_oom: Annotated[
        bool,
        typer.Option(
            "--allow-oom",
            help="Run it once although its plan says that it does not fit, for 30 minutes at most.",
            rich_help_panel=TERMS,
        ),
    ] = False,
    start_from: Annotated[
        str | None,
        typer.Option(
            help="Go on from a checkpoint of one of your jobs, JOB/step-400, in any layout.",
            rich_help_panel=TERMS,
        ),
    ] = None,
    lease: Annotated[
        list[str] | None,
        typer.Option(
            help="Booked lease to run in; repeat it for several nodes.", rich_help_panel=TERMS
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            help="Run your own program; the files it needs are packed, shown and uploaded.",
            rich_help_panel=SCRIPT,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Pack this whole folder, which contains the program.", rich_help_panel=SCRIPT
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="Also pack this path of the folder, even if it would be left out.",
            rich_help_panel=SCRIPT,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="torchrun (the default), accelerate, mpirun or python.", rich_help_panel=SCRIPT
        ),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option(
            help="A requirements.txt or pyproject.toml of the folder.", rich_help_panel=SCRIPT
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE; visible to everyone who can see the job.", rich_help_panel=SCRIPT
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Name of one of your secrets.", rich_help_panel=SCRIPT),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="dataset=NAME, model=NAME or checkpoint=JOB/step-N that the program reads; "
            ",name=OWNER/NAME is its name inside. Repeat it for several.",
            rich_help_panel=SCRIPT,
        ),
    ] = None,
    workspace: Annotated[
        bool,
        typer.Option(
            "--workspace",
            help="Bring your workspace: $TRAINYARD_WORKSPACE, which outlives the job.",
            rich_help_panel=SCRIPT,
        ),
    ] = False,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Host that the program may reach, of those that an administrator has listed: "
            "pypi.org, or a group, pypi or huggingface. Repeat it for several.",
            rich_help_panel=SCRIPT,
        ),
    ] = None,
    hold_on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Hold its sandbox for so long if it fails, such as 30min: trainyard workbench "
            "open JOB opens a shell in it.",
            rich_help_panel=SCRIPT,
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Send many files without asking.", rich_help_panel=SCRIPT),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Watch it to its end. Ctrl-C only stops watching."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job: a file that describes a training, or with --script your own program.

    With --follow the exit code is 1 if it did not succeed.
    """
    terms = Terms(
        name=name,
        ranks=ranks,
        nodes=nodes,
        wall_time=wall_time,
        node_class=node_class,
        leases=lease or [],
        allow_oom=allow_oom,
        start_from=start_from,
        tags=tag or [],
        report_when_ended=report_when_ended,
    )
    options = ScriptOptions(
        folder=folder,
        include=include or [],
        launcher=launcher,
        requirements=requirements,
        environment=env or [],
        secrets=secret or [],
        inputs=inputs or [],
        workspace=workspace,
        network=network or [],
        hold_on_failure=hold_on_failure,
        yes=yes,
    )
    text = None if script is not None else _job_text(words or [], options)
    with connect() as client:
        terms = replace(terms, leases=[LEASES.id_of(client, one) for one in terms.leases])
        if text is not None:
            job = client.jobs.create(text, changes=terms.fields())
        else:
            assert script is not None
            job = _submit_script(client, script, words or [], options, terms)
        _tell(client, job, follow=follow, as_json=as_json)


def _job_text(words: Sequence[str], options: ScriptOptions) -> str:
    """Return the text of the one named file, after refusing options that do not apply to it."""
    if len(words) != 1:
        raise BadInput("Name one file that describes a job, or a program with --script FILE.")
    if words[0].endswith((".py", ".sh")):
        raise BadInput(
            f"{words[0]} is a program, not the description of a job: "
            f"trainyard submit --script {words[0]} --wall-time 20min"
        )
    if given := options.given():
        does = "does" if len(given) == 1 else "do"
        raise BadInput(
            f"{', '.join(given)} {does} not apply to a file that describes a job; only to a "
            "program that --script names. Write it into the file."
        )
    return read_job(Path(words[0]))


def _submit_script(
    client: Trainyard, script: Path, arguments: Sequence[str], options: ScriptOptions, terms: Terms
) -> Job:
    if terms.wall_time is None:
        raise BadInput("--wall-time: give the maximum running time, such as 20min or 1h 30min.")
    inputs = [named_input(text) for text in options.inputs]
    said = script_job(client, script, options, arguments)
    fields = {field: value for field, value in terms.fields().items() if value is not None}
    if inputs:
        fields["inputs"] = inputs
    if options.workspace:
        fields["workspace"] = True
    if options.network:
        fields["network"] = list(options.network)
    if options.hold_on_failure:
        fields["hold_on_failure"] = options.hold_on_failure
    return client.jobs.create({"name": script.stem, "script": said, **fields})


def _tell(client: Trainyard, job: Job, *, follow: bool, as_json: bool) -> None:
    if as_json and not follow:
        print_json(job.raw)
    elif as_json:
        print_json_line({"event": "job", "data": job.raw})
    else:
        say(f"Submitted {job.name} as {job.id}: {client.url}/jobs/{job.id}")
    if follow:
        follow_job(client, job.id, as_json=as_json)
    elif not as_json:
        if job.reason:
            say(job.reason)
        say(f"Watch it: trainyard follow {job.id}")
