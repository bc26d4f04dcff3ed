"""Commands of the platform.

Its distribution provides them in the entry-point group `trainyard.commands`; they are imported only
when they are called.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import note

GROUP = "trainyard.commands"
INSTALL = "in a copy of Trainyard's repository, pip install -c constraints.txt ./client ."
PANEL = "Platform (installed from a copy of Trainyard's repository)"

# Shown in the help without importing anything.
KNOWN = {
    "up": "Start the whole platform on this machine and leave it running until Ctrl-C.",
    "demo": "Start the platform, train a small GPT through all of it, and show the result.",
    "login-link": "Print a link that signs an administrator in, for an owner without a login.",
    "api": "Serve the HTTP API (production).",
    "scheduler": "Run a scheduler (production).",
    "worker": "Run this GPU node's worker (production).",
    "preflight": "Test this machine's ranks: every collective, its numbers and its speed.",
    "prove": "Prove that this node trains as planned: sixteen checks, ten minutes on four GPUs.",
}


class PlatformCommand(TyperCommand):
    """Stand-in for a platform's command until it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name=name,
            help=KNOWN.get(name, "From an installed extension."),
            rich_help_panel=PANEL,
            callback=lambda: None,
        )
        self._loaded_name = name

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Hand over to the real command."""
        return load(self._loaded_name).make_context(info_name, args, parent=parent, **extra)


@cache
def installed() -> dict[str, EntryPoint]:
    """Return the entry points by command."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def load(name: str) -> Any:
    """Return the command itself.

    If it can't be loaded: says why on stderr and raises typer.Exit.
    """
    entry = installed().get(name)
    if entry is None:
        raise _refused(
            f"`trainyard {name}` is part of the platform, which is not installed here. "
            f"Install it: {INSTALL}"
        )
    try:
        loaded = entry.load()
    except ImportError as error:
        raise _refused(
            f"`trainyard {name}` is installed ({entry.value}) but can't be loaded: {error}. "
            f"Install it again: {INSTALL}"
        ) from error
    if isinstance(loaded, typer.Typer):
        return typer.main.get_command(loaded)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(loaded)
    return typer.main.get_command(app)


def _refused(sentence: str) -> typer.Exit:
    note(sentence)
    return typer.Exit(ExitCode.BAD_INPUT)
