"""The platform's part of the `trainyard` command; the client finds it by its entry points.

Each command imports what it runs when it runs.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from core.base.errors import NotFound
from standalone.data_directory import DataDirectory
from standalone.program import command

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder for everything that the platform keeps. Default: below your state folder.",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, show_default=False, help="Port of the API. Default: the first free one."
    ),
]


def up(data: Data = None, port: Port = None) -> None:
    """Start the whole platform on this machine and leave it running until Ctrl-C."""
    options = ["--data", str(_directory(data).path), *(["--port", str(port)] if port else [])]
    _become([sys.executable, "-P", "-m", "standalone", *options])


def demo(data: Data = None) -> None:
    """Start the platform, train a small GPT through all of it, and show the result."""
    from standalone import demo as demonstration

    raise typer.Exit(demonstration.run(_directory(data)))


def login_link(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of an administrator. Default: the first one.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The platform's folder. Default: the database of TRAINYARD_DATABASE_URL if "
            "that is set, else the folder below your state folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a link that signs an administrator in once, for the owner who has lost every login.

    It needs no login, but the platform's database: run it on the machine, and as the user, of the
    platform. The platform may be running or not. The audit log names it.
    """
    from standalone.way_in import NoWayIn, find_platform, make_link

    try:
        platform = find_platform(_directory(data) if data else None, _note)
        typer.echo(make_link(platform, name, _note, actor="trainyard login-link"))
    except (NoWayIn, NotFound) as error:
        _note(str(error))
        raise typer.Exit(2) from error


def api() -> None:
    """Serve the HTTP API (production; settings from TRAINYARD_* variables)."""
    _become(command("api"))


def scheduler() -> None:
    """Run a scheduler (production; settings from TRAINYARD_* variables)."""
    _become(command("scheduler"))


def worker() -> None:
    """Run this GPU node's worker (settings from TRAINYARD_* variables).

    The first time, TRAINYARD_ENROL_TOKEN holds the single-use token of `trainyard admin enrol`.
    """
    _become(command("worker"))


def preflight(
    ranks: Annotated[
        int | None,
        typer.Option(min=2, max=64, show_default=False, help="Default: one per GPU, or per core."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run run each collective once, as before an attempt.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, for scripts.")
    ] = False,
) -> None:
    """Test this machine's ranks: every collective, its numbers and its speed; name a faulty rank.

    Exit code: 0 healthy, 10 wrong numbers, 11 a slow rank, 12 ranks dead, hung or out of step, 1
    not started.
    """
    from worker.proving.preflight import run as examine

    raise typer.Exit(examine(ranks=ranks, quick=quick, as_json=as_json))


def prove(
    only: Annotated[
        str, typer.Option(help="Names of checks, with commas. Default: all sixteen.")
    ] = "",
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=64, show_default=False, help="Default: one per GPU, or per core."),
    ] = None,
    on: Annotated[
        Literal["gpu", "cpu"] | None,
        typer.Option(show_default=False, help="Default: the GPUs, or CPU slots without any."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the proof as JSON, for scripts.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(show_default=False, help="Also write the proof to this file.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(show_default=False, help="Instead: check that a proof's file is unchanged."),
    ] = None,
) -> None:
    """Prove that this node trains as planned: sixteen checks, ten minutes on four GPUs.

    Drain the node first. The proof is named by its hash. Exit code: 0 no check failed, 1 one did
    (or the checked file was changed), 2 invalid input.
    """
    from worker.proving import command as proving

    if check is not None:
        raise typer.Exit(proving.check_file(check))
    names = [name.strip() for name in only.split(",") if name.strip()]
    raise typer.Exit(proving.run(only=names, ranks=ranks, on=on, as_json=as_json, out=out))


def _directory(path: Path | None) -> DataDirectory:
    return DataDirectory(path.absolute()) if path else DataDirectory.default()


def _note(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _become(program: list[str]) -> NoReturn:
    os.execv(program[0], program)
