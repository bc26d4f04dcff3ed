"""Commands for scripts of one's own: their job, their code, their secrets."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard import Trainyard
from trainyard.cli.output import (
    AsJson,
    note,
    print_json,
    print_json_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.packing import Packed, pack
from trainyard.wording import moment, size

secrets_app = typer.Typer(no_args_is_help=True, help="Values that only your own scripts see.")

SHOWN = 5  # of what was left out
Name = Annotated[str, typer.Argument(help="Also the variable that scripts find it in.")]


@dataclass(frozen=True)
class ScriptOptions:
    """What the command line says of a script."""

    script: Path
    folder: Path | None
    name: str | None
    ranks: int
    nodes: int
    wall_time: str | None
    launcher: str
    requirements: str | None
    environment: Sequence[str]
    secrets: Sequence[str]
    node_class: str | None
    leases: Sequence[str]
    arguments: Sequence[str]


def script_job(client: Trainyard, options: ScriptOptions) -> dict[str, Any]:
    """Pack and upload the script's folder; the job that runs it."""
    folder = options.folder or options.script.parent
    if not options.script.is_file():
        raise BadInput(f"{options.script} is no file.")
    if options.wall_time is None:
        raise BadInput("--wall-time: say how long it may run at most, such as 20min or 1h 30min.")
    try:
        entry = options.script.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError as error:
        raise BadInput(f"{options.script} does not lie in {folder}.") from error
    environment = dict(_variable(text) for text in options.environment)
    packed = pack(folder)
    if entry not in packed.paths:
        raise BadInput(f"{entry} is left out by an ignore file of {folder}.")
    tell_packed(packed, folder)
    code = client.code.upload(packed)
    script: dict[str, Any] = {
        "entry": entry,
        "code": code.sha256,
        "arguments": list(options.arguments),
        "launcher": options.launcher,
        "environment": environment,
        "secrets": list(options.secrets),
        "requirements": options.requirements,
    }
    job: dict[str, Any] = {
        "name": options.name or options.script.stem,
        "script": script,
        "resources": {
            "nodes": options.nodes,
            "ranks_per_node": options.ranks,
            "wall_time": options.wall_time,
            "node_class": options.node_class,
        },
    }
    if len(options.leases) == 1:
        job["lease"] = options.leases[0]
    elif options.leases:
        job["leases"] = list(options.leases)
    return job


def tell_packed(packed: Packed, folder: Path) -> None:
    """On stderr: what goes, and what does not."""
    note(
        f"Packed {len(packed.paths):,} file(s) of {folder}, {size(len(packed.content))}, as "
        f"{packed.sha256[:12]}."
    )
    for path, why in packed.left_out[:SHOWN]:
        note(f"Left out: {path} ({why})")
    if len(packed.left_out) > SHOWN:
        note(f"Left out: {len(packed.left_out) - SHOWN} more")


def script_facts(spec: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What a job's page tells of its script; nothing of a recipe."""
    script = spec.get("script")
    if not isinstance(script, Mapping):
        return []
    words = [str(script["entry"]), *(str(word) for word in script.get("arguments") or ())]
    return [
        ("script", " ".join(words)),
        ("launcher", script.get("launcher")),
        ("code", script.get("code")),
        ("requirements", script.get("requirements")),
        ("secrets", ", ".join(script.get("secrets") or ())),
    ]


def download_code(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, job_...")],
    to: Annotated[
        Path | None, typer.Option(help="File; by default the job's id and .zip, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the code that a script's job runs, as a zip archive."""
    with connect() as client:
        script = client.jobs.get(job_id).spec.get("script")
        if script is None:
            raise BadInput(f"{job_id} trains by a recipe and has no code of its own.")
        path = client.code.download(job_id, to or f"{job_id}.zip", sha256=script["code"])
    if as_json:
        print_json({"path": str(path), "size": path.stat().st_size})
    else:
        say(f"{path} ({size(path.stat().st_size)})")


@secrets_app.command("set")
def set_secret(name: Name, as_json: AsJson = False) -> None:
    """Ask for a value and keep it; from a pipe, it is what comes in."""
    if sys.stdin.isatty():
        value = typer.prompt(f"Value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise BadInput("A secret has at least one character.")
    with connect() as client:
        secret = client.secrets.set(name, value)
    if as_json:
        print_json(secret.raw)
    else:
        say(f"{secret.name} is set. Nobody can read it back; your scripts find it by that name.")


@secrets_app.command("list")
def list_secrets(as_json: AsJson = False) -> None:
    """Your secrets by name, without their values."""
    with connect() as client:
        found = client.secrets.list()
    if as_json:
        print_json_list(secret.raw for secret in found)
        return
    print_table(
        ["name", "made", "set"],
        ((one.name, moment(one.created_at), moment(one.updated_at)) for one in found),
        empty="You have no secret.",
    )


@secrets_app.command("delete")
def delete_secret(name: Name) -> None:
    """Jobs that name it can't start any more."""
    with connect() as client:
        client.secrets.delete(name)
    say(f"{name} is gone.")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--env {text}: write NAME=VALUE.")
    return name, value
