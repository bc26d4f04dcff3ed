"""`trainyard admin maintenance`: hours that staff reserve, once or repeatedly."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    Limit,
    error_console,
    note,
    print_answer,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.views import Maintenance
from trainyard.wording import as_moment, moment

app = typer.Typer(cls=Lists, help="Reserve hours on nodes, or take one out of service.")


@app.command("list")
def list_maintenance(
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List all maintenance, the newest first."""
    with connect() as client:
        found = list(client.maintenance.list(limit=limit))
    print_list(
        found,
        ["id", "first", "hours", "times", "nodes", "repeats", "state", "why"],
        lambda one: (
            one.id,
            moment(min(each.start for each in one.occurrences)) if one.occurrences else "",
            one.hours,
            len({each.start for each in one.occurrences}),
            ", ".join(sorted({each.node for each in one.occurrences})),
            f"{one.rule} ({one.zone})" if one.rule else "",
            "reserved" if one.cancelled_at is None else f"ended {moment(one.cancelled_at)}",
            one.why,
        ),
        right=["hours", "times"],
        sentence=True,
        empty="No maintenance.",
        as_json=as_json,
    )


@app.command("add")
def add(
    start: Annotated[str, typer.Argument(help="14:00, '2026-11-22 14:00' or RFC 3339.")],
    hours: Annotated[int, typer.Argument(min=1, help="Number of whole hours.")],
    node: Annotated[list[str], typer.Option(help="On this node; may be repeated.")],
    why: Annotated[str, typer.Option(help="Reason, visible to everyone.")],
    repeat: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Recurrence rule (RFC 5545), such as FREQ=WEEKLY;BYDAY=SU;COUNT=10.",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of its hours, such as Europe/Berlin. Default: yours."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Accept the effects on leases that --dry-run showed."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the effects on leases; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Reserve hours for maintenance. Leases in the way are moved or refunded if you name the plan.

    Exit code 5: some leases could not be, or leases are in the way and no plan is named.
    """
    first = _start(start, zone)
    with connect() as client:
        planned = client.maintenance.plan(node, first, hours, why=why, rule=repeat, zone=zone)
        if dry_run or (planned.displaced and plan is None):
            _show(planned, as_json)
            if planned.displaced:
                note(f"To do this, repeat it with --plan {planned.plan}")
            if not dry_run:
                raise typer.Exit(ExitCode.CONFLICT)
            return
        with error_console().status(
            f"Reserving {len(planned.occurrences)} times; {len(planned.displaced)} leases to move"
        ):
            kept = client.maintenance.keep(
                node, first, hours, why=why, rule=repeat, zone=zone, plan=plan
            )
    _show(kept, as_json)
    left = [one for one in kept.occurrences if not one.held]
    if left:
        note(
            f"{len(left)} of {len(kept.occurrences)} are not reserved: leases are still in the way."
        )
        raise typer.Exit(ExitCode.CONFLICT)


@app.command("cancel")
def cancel(
    maintenance_id: Annotated[str, typer.Argument(metavar="MAINTENANCE")], as_json: AsJson = False
) -> None:
    """End a maintenance from now on; leases that were moved or refunded stay so."""
    with connect() as client:
        client.maintenance.end(maintenance_id)
    print_answer(
        {"id": maintenance_id, "cancelled": True},
        f"{maintenance_id} has ended; its hours can be booked.",
        as_json=as_json,
    )


@app.command("begin")
def begin(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name or id.")],
    as_json: AsJson = False,
) -> None:
    """Take a node out of service to work on it; it is drained first if it is in use."""
    with connect() as client:
        changed = client.admin.maintenance(node)
    print_answer(
        changed.raw,
        f"{changed.name} is {changed.state}. {changed.reason}".rstrip(),
        as_json=as_json,
    )


def _show(shown: Maintenance, as_json: bool) -> None:
    if as_json:
        print_json(shown.raw)
        return
    kept = {True: "yes", False: "no"}
    print_table(
        ["node", "from", "to", "reserved"],
        (
            (one.node, moment(one.start), moment(one.end), kept[one.held])
            for one in shown.occurrences
        ),
        empty="This rule never occurs.",
    )
    if shown.displaced:
        print_table(
            ["lease", "owner", "node", "from", "to", "result"],
            (
                (
                    one.lease,
                    one.user,
                    one.node,
                    moment(one.hold_start),
                    moment(one.hold_end),
                    one.result or (f"moves to {one.to_node}" if one.to_node else one.act),
                )
                for one in shown.displaced
            ),
            sentence=True,
            empty="",
        )
    if shown.id is not None:
        say(f"{shown.id} is reserved; `trainyard admin maintenance cancel {shown.id}` ends it.")


def _start(text: str, zone: str | None) -> datetime:
    """Parse a start; without an offset but with a zone it is a clock time there, for the server."""
    try:
        if zone is not None:
            return datetime.fromisoformat(text.strip())
        return as_moment(text, now=datetime.now().astimezone())
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a valid time; write '2026-11-22 14:00' or 2026-11-22T14:00+01:00"
        ) from error
