"""`trainyard admin backup`, `restore`, `read-only`: commands for the operator of the platform."""

from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import AsJson, note, print_json, print_list, say
from trainyard.cli.platform_commands import INSTALL
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.wording import moment

PLATFORM = "trainyard.operation"  # the group in which the platform offers `backup` and `restore`


class ProgramsNetwork(StrEnum):
    """Network of users' programs that run on several nodes."""

    RELAY = "relay"
    HOST = "host"


IN_WORDS = {
    ProgramsNetwork.RELAY: "a private network, relayed through the first node over TCP",
    ProgramsNetwork.HOST: "the nodes' own network, with their RDMA devices",
}

Folder = Annotated[Path, typer.Argument(help="The backup's folder.")]


def read_only(
    minutes: Annotated[
        int, typer.Option("--for", min=1, max=1440, help="Maximum number of minutes.")
    ] = 30,
    reason: Annotated[
        str, typer.Option(help="Sentence shown to users until it ends.")
    ] = "It is being backed up.",
    off: Annotated[bool, typer.Option("--off", help="Allow changes again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the platform read-only: changes get 503 with the reason, running jobs continue."""
    with connect() as client:
        if off:
            client.admin.end_read_only()
            say("Changes are allowed again.")
            return
        found = client.admin.begin_read_only(minutes=minutes, reason=reason)
    if as_json:
        print_json(found.raw)
    elif found.until is not None:
        say(f"Read-only until {moment(found.until)} at the latest.")
        note("End it sooner with: trainyard admin read-only --off")


def fabric(
    node_class: Annotated[str, typer.Argument(help="Node class, such as a100x4.")],
    interface: Annotated[
        str | None, typer.Option(help="Interface for NCCL and gloo, such as ib0; '' for default.")
    ] = None,
    adapters: Annotated[
        str | None, typer.Option(help="RDMA adapters for NCCL, such as mlx5_0,mlx5_1; '' for all.")
    ] = None,
    programs: Annotated[
        ProgramsNetwork | None,
        typer.Option(help="Network of programs on several nodes: relay (private), or the host's."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the network between the nodes of a class, or set it for attempts that start later."""
    given = {"interface": interface, "adapters": adapters, "programs": programs}
    with connect() as client:
        found = client.admin.fabric(node_class)
        if any(value is not None for value in given.values()):
            wanted = {
                name: getattr(found, name) if value is None else str(value)
                for name, value in given.items()
            }
            found = client.admin.set_fabric(node_class, **wanted)
    if as_json:
        print_json(found.raw)
        return
    say(f"Interface: {found.interface or 'the one with the address that the node reports'}")
    say(f"RDMA adapters: {found.adapters or 'chosen by NCCL'}")
    say(f"Programs on several nodes: {IN_WORDS[ProgramsNetwork(found.programs)]}")


def unsafe_settings(as_json: AsJson = False) -> None:
    """List unsafe settings of this installation, with remedies. Exit code 1: one is dangerous."""
    with connect() as client:
        found = client.admin.unsafe_settings()
    print_list(
        found,
        ["", "setting", "found", "what to do"],
        lambda one: (one.level, one.setting, one.found, one.todo),
        sentence=True,
        empty="Nothing unsafe was found.",
        as_json=as_json,
    )
    if any(one.level == "danger" for one in found):
        raise typer.Exit(ExitCode.JOB_FAILED)


def backup(folder: Folder, as_json: AsJson = False) -> None:
    """Save database and store into a folder; the platform may keep running.

    Runs where the API runs, with its TRAINYARD_DATABASE_URL and TRAINYARD_STORE. A second backup
    into the same folder copies only new files.
    """
    _tell(_platform("backup"), folder, as_json)


def restore(folder: Folder, as_json: AsJson = False) -> None:
    """Load a backup into an empty database and a store, with all processes stopped.

    TRAINYARD_DATABASE_URL and TRAINYARD_STORE name the target. Everything is verified first.
    """
    _tell(_platform("restore"), folder, as_json)


def _tell(work: Callable[..., dict[str, Any]], folder: Path, as_json: bool) -> None:
    try:
        done = work(folder.absolute(), note)
    except ValueError as error:
        note(f"Error: {error}")
        raise typer.Exit(ExitCode.JOB_FAILED) from error
    if as_json:
        print_json(done)
    else:
        say(f"Done: {done['rows']:,} rows, {done['files']:,} files, made at {done['made_at']}.")


def _platform(name: str) -> Callable[..., dict[str, Any]]:
    for entry in entry_points(group=PLATFORM):
        if entry.name == name:
            loaded: Callable[..., dict[str, Any]] = entry.load()
            return loaded
    raise BadInput(
        f"`trainyard admin {name}` needs the platform, which is not installed here. Install it: "
        f"{INSTALL}"
    )
