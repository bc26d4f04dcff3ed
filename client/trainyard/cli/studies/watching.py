"""Watching of several jobs that belong together, an agenda or a study, to their end."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

import typer
from rich.live import Live
from rich.table import Table

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import console, note, print_json, say
from trainyard.cli.patience import look_again
from trainyard.client import Trainyard

POLL_S = 2.0


class Several(Protocol):
    """State of several jobs."""

    @property
    def raw(self) -> object: ...
    @property
    def is_final(self) -> bool: ...


Seen = TypeVar("Seen", bound=Several)


class Change(NamedTuple):
    """State of a job; its line is printed when the state differs from the previous one."""

    job: str
    standing: object
    line: str


def follow(
    client: Trainyard,
    look: Callable[[], Seen],
    *,
    again: str,
    table: Callable[[Seen], Table],
    changes: Callable[[Seen], Iterable[Change]],
    as_json: bool,
) -> Seen:
    """Return the result of `look` once all jobs have ended; printed whole with `as_json`.

    Until then shows a table on a terminal, else a line for each change. `again`: the command that
    resumes watching.
    """
    try:
        seen = _wait(client, look, table=table, changes=changes, quiet=as_json)
    except KeyboardInterrupt as error:
        note(f"Stopped watching; the jobs continue. Watch again: {again}")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    if as_json:
        print_json(seen.raw)
    return seen


def _wait(
    client: Trainyard,
    look: Callable[[], Seen],
    *,
    table: Callable[[Seen], Table],
    changes: Callable[[Seen], Iterable[Change]],
    quiet: bool,
) -> Seen:
    out = console()
    seen = look()
    if quiet or not out.is_terminal:
        told: dict[str, object] = {}
        while True:
            for change in () if quiet else changes(seen):
                if told.get(change.job) != change.standing:
                    told[change.job] = change.standing
                    say(change.line)
            if seen.is_final:
                return seen
            seen = look_again(client, look, after_s=POLL_S)
    with Live(table(seen), console=out, auto_refresh=False, transient=True) as display:
        while not seen.is_final:
            seen = look_again(client, look, after_s=POLL_S)
            display.update(table(seen), refresh=True)
    return seen
