"""`trainyard leases waitlist`."""

from typing import Annotated

import typer

from trainyard.cli.finding import WAITS, WaitKey
from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, id_cell, print_answer, print_list, state_text
from trainyard.cli.session import connect
from trainyard.cli.times import optional_moment, start_of
from trainyard.wording import moment, part_of

app = typer.Typer(cls=Lists, help="Wait for hours that are not free.")

Gpus = Annotated[
    int | None,
    typer.Option(min=1, help="GPUs (CPU slots) of each node; default: the whole node."),
]


@app.command("list")
def list_waits(as_json: AsJson = False) -> None:
    """List your waitlist entries, newest first; open offers with their deadline."""
    with connect() as client:
        waits = list(client.waitlist.list())
    print_list(
        waits,
        ["id", "hours", "on", "starts from", "to", "state", "ahead", "offer"],
        lambda wait: (
            id_cell(wait.id),
            wait.hours,
            part_of(wait.node or wait.node_class or "", wait.gpus),
            moment(wait.first_start),
            moment(wait.last_start),
            state_text(wait.state),
            wait.ahead,
            f"{wait.offer.node} {moment(wait.offer.hold_start)}, "
            f"until {moment(wait.offer.expires_at)}"
            if wait.offer and wait.offer.state == "open"
            else "",
        ),
        empty="You are not on the waitlist.",
        as_json=as_json,
    )


@app.command("join")
def join(
    first_start: Annotated[str, typer.Argument(help="Earliest acceptable start, or a day.")],
    hours: Annotated[int, typer.Argument(min=1, help="Number of whole hours.")],
    last_start: Annotated[
        str | None, typer.Option("--until", help="Latest acceptable start.")
    ] = None,
    node_class: Annotated[str | None, typer.Option("--class")] = None,
    node: Annotated[str | None, typer.Option()] = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Join the waitlist. Hours that become free are held for you for ten minutes."""
    if (node_class is None) == (node is None):
        raise typer.BadParameter("give either --class or --node")
    with connect() as client:
        wait = client.waitlist.join(
            start_of(first_start),
            hours,
            last_start=optional_moment(last_start),
            node_class=node_class,
            node=node,
            gpus=gpus,
        )
    print_answer(
        wait.raw,
        f"{wait.id} is on the waitlist; entries ahead of it: {wait.ahead}.",
        as_json=as_json,
    )


@app.command("accept")
def accept(named: WaitKey, as_json: AsJson = False) -> None:
    """Book the block that is offered to a waitlist entry."""
    with connect() as client:
        wait_id = WAITS.id_of(client, named, changes=True)
        lease = client.waitlist.accept(wait_id)
    print_answer(
        lease.raw,
        f"Booked {lease.id} on {lease.node} from {moment(lease.hold_start)}.",
        as_json=as_json,
    )


@app.command("decline")
def decline(named: WaitKey, as_json: AsJson = False) -> None:
    """Decline the offered block; the entry goes to the end of the waitlist."""
    with connect() as client:
        wait_id = WAITS.id_of(client, named, changes=True)
        wait = client.waitlist.decline(wait_id)
    print_answer(
        wait.raw,
        f"{wait.id} is on the waitlist again; entries ahead of it: {wait.ahead}.",
        as_json=as_json,
    )


@app.command("leave")
def leave(named: WaitKey, as_json: AsJson = False) -> None:
    """Remove an entry from the waitlist."""
    with connect() as client:
        wait_id = WAITS.id_of(client, named, changes=True)
        client.waitlist.leave(wait_id)
    print_answer(
        {"id": wait_id, "left": True}, f"{wait_id} is no longer on the waitlist.", as_json=as_json
    )
