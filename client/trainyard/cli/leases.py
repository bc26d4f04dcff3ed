"""`trainyard leases`."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.output import (
    AsJson,
    print_facts,
    print_json,
    print_json_list,
    print_table,
    say,
    state_text,
)
from trainyard.cli.session import connect
from trainyard.views import Lease
from trainyard.wording import as_moment, moment

app = typer.Typer(no_args_is_help=True, help="Hours on a node that are yours alone.")


@app.command("list")
def list_leases(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Your leases, the last made first."""
    with connect() as client:
        leases = list(client.leases.list(limit=limit))
    if as_json:
        print_json_list(lease.raw for lease in leases)
        return
    print_table(
        ["id", "node", "kind", "state", "from", "jobs stop at", "reason"],
        (
            (
                lease.id,
                lease.node,
                lease.kind,
                state_text(lease.state),
                moment(lease.hold_start),
                moment(lease.usable_end),
                lease.reason,
            )
            for lease in leases
        ),
        sentence=True,
        empty="No leases. Book one: trainyard leases book 14:00 2 --class cpu2",
    )


@app.command("book")
def book(
    start: Annotated[
        str, typer.Argument(help="14:00, '2026-11-22 14:00' (your zone) or RFC 3339.")
    ],
    hours: Annotated[int, typer.Argument(min=1, help="How many whole hours.")],
    node_class: Annotated[
        str | None, typer.Option("--class", help="Any free node of this class.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="This node.")] = None,
    as_json: AsJson = False,
) -> None:
    """Book whole hours on a node."""
    if (node_class is None) == (node is None):
        raise typer.BadParameter("give either --class or --node; `trainyard nodes` lists them")
    try:
        at = as_moment(start, now=datetime.now().astimezone())
    except ValueError as error:
        raise typer.BadParameter(
            f"{start!r} is no time; write 14:00, '2026-11-22 14:00' or 2026-11-22T14:00+01:00"
        ) from error
    with connect() as client:
        lease = client.leases.book(at, hours, node_class=node_class, node=node)
    if as_json:
        print_json(lease.raw)
    else:
        say(f"Booked {lease.id} on {lease.node}.")
        _show(lease)
        say(f"Put `lease: {lease.id}` into a job to run it there.")


@app.command("cancel")
def cancel(
    lease_id: Annotated[str, typer.Argument(metavar="LEASE")], as_json: AsJson = False
) -> None:
    """Give a booked lease back, or end an active one early."""
    with connect() as client:
        client.leases.cancel(lease_id)
    if as_json:
        print_json({"id": lease_id, "cancelled": True})
    else:
        say(f"{lease_id} is given back.")


def _show(lease: Lease) -> None:
    print_facts(
        [
            ("from", moment(lease.hold_start)),
            ("jobs stop at", moment(lease.usable_end)),
            ("node is free at", moment(lease.hold_end)),
        ]
    )
