"""Commands for users' own scripts: their job, their code, their secrets."""

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard import Trainyard
from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, note, print_answer, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.inert import one_line
from trainyard.packing import PackedCode, pack, pack_files
from trainyard.views import JobInput
from trainyard.wording import counted, moment, size

secrets_app = typer.Typer(cls=Lists, help="Values that only your own scripts see.")

SHOWN = 10  # paths of what is sent
SHOWN_LEFT_OUT = 5  # paths for each reason
ASKED_ABOVE = 50  # files, on a terminal
REST = "./"  # stands for everything beside a program that was packed alone
MOST_REMEMBERED = 100  # core.spec.script.MAX_LEFT_OUT
Name = Annotated[
    str, typer.Argument(help="Name of the secret, and of the variable that scripts read.")
]


@dataclass(frozen=True)
class ScriptOptions:
    """Options of a user's own program: its code, and how it is started."""

    folder: Path | None
    include: Sequence[str]
    launcher: str | None
    requirements: str | None
    environment: Sequence[str]
    secrets: Sequence[str]
    inputs: Sequence[str]
    workspace: bool
    network: Sequence[str]
    hold_on_failure: str | None
    yes: bool

    def given(self) -> list[str]:
        """Return the options that were given."""
        named = {
            "--folder": self.folder,
            "--include": self.include,
            "--launcher": self.launcher,
            "--requirements": self.requirements,
            "--env": self.environment,
            "--secret": self.secrets,
            "--input": self.inputs,
            "--workspace": self.workspace,
            "--network": self.network,
            "--hold-on-failure": self.hold_on_failure,
            "--yes": self.yes,
        }
        return [option for option, value in named.items() if value]


def script_job(
    client: Trainyard, script: Path, options: ScriptOptions, arguments: Sequence[str]
) -> dict[str, Any]:
    """Pack and upload a program; return the `script` part of its job."""
    if not script.is_file():
        raise BadInput(f"{script} is not a file.")
    folder = options.folder or script.parent
    try:
        entry = script.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError as error:
        raise BadInput(f"{script} is not in {folder}.") from error
    environment = dict(_variable(text) for text in options.environment)
    alone = options.folder is None and stands_alone(script, [*arguments, *environment.values()])
    if alone:
        named = [] if options.requirements is None else [options.requirements]
        packed = pack_files(folder, include=[entry, *named, *options.include])
    else:
        packed = pack(folder, include=[*options.include])
    if entry not in packed.paths:
        why = dict(packed.left_out).get(entry, "its folder is named by an ignore file")
        raise BadInput(f"{entry} is left out ({why}). To include it: --include {entry}")
    tell_packed(packed, folder)
    if alone:
        note(f"It uses no file beside it. To pack its whole folder: --folder {folder}")
    _ask(packed, yes=options.yes)
    code = client.code.upload(packed)
    job: dict[str, Any] = {
        "entry": entry,
        "code": code.sha256,
        "arguments": list(arguments),
        "launcher": options.launcher or "torchrun",
        "environment": environment,
        "secrets": list(options.secrets),
        "requirements": options.requirements,
    }
    left_out = [*([REST] if alone else []), *packed.ignored]
    if left_out:
        job["left_out"] = left_out[:MOST_REMEMBERED]
    return job


def stands_alone(script: Path, words: Sequence[str] = ()) -> bool:
    """Return True if a Python program imports nothing beside it and names no path there.

    Neither may `words`, its arguments, name a path there.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return False  # not ours to read
    named = set(words)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.add((node.module or ".").partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
    return not any(_lies_beside(script, name) for name in named)


def _lies_beside(script: Path, name: str) -> bool:
    first = name.removeprefix("./").partition("/")[0]
    if first in ("", ".", "..") or len(first) > 200 or not first.isprintable():
        return False
    beside = (script.parent / first, script.parent / f"{first}.py")
    return any(path.exists() and path != script for path in beside)


def tell_packed(packed: PackedCode, folder: Path) -> None:
    """Show on stderr what is sent, and what is left out."""
    note(
        f"Packed {counted(len(packed.paths), 'file')} of {folder}, {size(len(packed.content))}, "
        f"as {packed.sha256[:12]}:"
    )
    for path in packed.paths[:SHOWN]:
        note(f"  {one_line(path)} ({size(packed.sizes[path])})")
    if len(packed.paths) > SHOWN:
        largest = max(packed.paths, key=lambda path: packed.sizes[path])
        note(
            f"  and {len(packed.paths) - SHOWN:,} more; the largest is {one_line(largest)} "
            f"({size(packed.sizes[largest])})"
        )
    by_reason: dict[str, list[str]] = {}
    for path, why in packed.left_out:
        by_reason.setdefault(why, []).append(one_line(path))
    for why, paths in by_reason.items():
        more = len(paths) - SHOWN_LEFT_OUT
        rest = f" and {more:,} more" if more > 0 else ""
        note(f"Left out: {', '.join(paths[:SHOWN_LEFT_OUT])}{rest} ({why})")
    if packed.left_out:
        note("If the program needs any of these, add --include PATH.")


def _ask(packed: PackedCode, *, yes: bool) -> None:
    """Ask on a terminal before many files are sent."""
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if yes or not is_terminal or len(packed.paths) <= ASKED_ABOVE:
        return
    if not typer.confirm(f"Send {counted(len(packed.paths), 'file')}?", err=True):
        note("Nothing was sent.")
        raise typer.Exit(1)


def script_facts(spec: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the facts about a job's script; empty for a recipe."""
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
        ("network", ", ".join(spec.get("network") or ())),
    ]


def input_text(one: JobInput) -> str:
    """Return `dataset rows, 1.2 MiB, 3f2a...`: a resolved input with its hash."""
    return f"{one.kind} {one.source}, {size(one.size)}, {one.sha256}"


def named_input(text: str) -> dict[str, str]:
    """Return the `inputs` entry for `dataset=rows` or `dataset=rows,name=lab/rows`."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        field, equals, value = part.partition("=")
        if not equals or field in fields:
            raise BadInput(
                f"--input {text}: write dataset=NAME, model=NAME or checkpoint=JOB/step-N, and "
                "after a comma, if the program uses another name, name=OWNER/NAME."
            )
        fields[field] = value
    return fields


def download_code(
    named: JobKey,
    to: Annotated[
        Path | None, typer.Option(help="File; by default the job's id and .zip, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download the code that a script's job runs, as a zip archive."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        script = client.jobs.get(job_id).spec.get("script")
        if script is None:
            raise BadInput(f"{job_id} runs a recipe and has no code of its own.")
        path = client.code.download(job_id, to or f"{job_id}.zip", sha256=script["code"])
    print_answer(
        {"path": str(path), "size": path.stat().st_size},
        f"{path} ({size(path.stat().st_size)})",
        as_json=as_json,
    )


@secrets_app.command("set")
def set_secret(name: Name, as_json: AsJson = False) -> None:
    """Ask for a value and store it; from a pipe, read it from standard input."""
    if sys.stdin.isatty():
        value = typer.prompt(f"Value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise BadInput("A secret must have at least one character.")
    with connect() as client:
        secret = client.secrets.set(name, value)
    print_answer(
        secret.raw,
        f"{secret.name} is set. Nobody can read it back; your scripts find it by that name.",
        as_json=as_json,
    )


@secrets_app.command("list")
def list_secrets(as_json: AsJson = False) -> None:
    """List your secrets by name, without their values."""
    with connect() as client:
        found = client.secrets.list()
    print_list(
        found,
        ["name", "made", "set"],
        lambda one: (one.name, moment(one.created_at), moment(one.updated_at)),
        empty="You have no secrets.",
        as_json=as_json,
    )


@secrets_app.command("delete")
def delete_secret(name: Name) -> None:
    """Delete a secret; jobs that name it can't start any more."""
    with connect() as client:
        client.secrets.delete(name)
    say(f"{name} is deleted.")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--env {text}: write NAME=VALUE.")
    return name, value
