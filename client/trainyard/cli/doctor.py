"""`trainyard doctor`: check everything, and say what to do."""

from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.text import Text

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import AsJson, print_json, print_table, say
from trainyard.cli.platform_commands import INSTALL
from trainyard.doctor import Finding, examine_client, worst
from trainyard.errors import BadInput

PLATFORM = "trainyard.doctor"  # the group in which the platform offers `server` and `node`
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    server: Annotated[
        bool, typer.Option("--server", help="Check this machine as a server (API, scheduler).")
    ] = False,
    node: Annotated[bool, typer.Option("--node", help="Check this machine as a GPU node.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine and its connection; each line says how to fix a problem.

    Without options, check this machine as a user's. `--server` and `--node` read the same
    TRAINYARD_* variables as the processes do. Exit code: 0 no problem or only warnings, 1 something
    won't work.
    """
    findings: list[Finding] = []
    if server:
        findings += _platform("server")
    if node:
        findings += _platform("node")
    if not (server or node):
        findings += examine_client()
    level = worst(findings)
    if as_json:
        print_json({"level": level, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(
            ["", "part", "what", "found", "what to do"],
            (
                (Text(f.level, style=STYLES[f.level]), f.part, f.what, f.found, f.todo)
                for f in findings
            ),
            sentence=True,
            empty="Nothing was checked.",
        )
        if level == "fail":
            say("Something won't work: see the lines that say fail.")
    if level == "fail":
        raise typer.Exit(ExitCode.JOB_FAILED)


def _platform(part: str) -> Iterator[Finding]:
    for entry in entry_points(group=PLATFORM):
        if entry.name == part:
            yield from entry.load()()
            return
    raise BadInput(
        f"--{part} needs the platform, which is not installed here. Install it: {INSTALL}"
    )
