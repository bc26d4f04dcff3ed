"""`trainyard leases`."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.finding import LEASES, LeaseKey
from trainyard.cli.group import Lists
from trainyard.cli.leases import calendars, waitlist
from trainyard.cli.leases.waitlist import Gpus
from trainyard.cli.output import (
    AsJson,
    Limit,
    id_cell,
    print_answer,
    print_facts,
    print_json,
    print_list,
    print_table,
    say,
    state_text,
)
from trainyard.cli.session import connect
from trainyard.cli.times import moment_of, start_of
from trainyard.views import BlockVerdict, BusyNode, FreeHour, Lease
from trainyard.wording import counted, moment, part_of

app = typer.Typer(cls=Lists, help="Exclusive hours on nodes.")
app.add_typer(waitlist.app, name="waitlist")
app.add_typer(calendars.app, name="calendar")

Start = Annotated[
    str,
    typer.Argument(
        help="14:00 today, '2026-11-22 14:00' (your zone) or RFC 3339; a day, 2026-11-22: any time."
    ),
]
Hours = Annotated[int, typer.Argument(min=1, help="Number of whole hours.")]
NodeClass = Annotated[str | None, typer.Option("--class", help="Any free node of this class.")]
Nodes = Annotated[
    list[str] | None, typer.Option("--node", help="This node; if repeated, all of them or none.")
]
Count = Annotated[int, typer.Option(min=1, help="Number of nodes of the class, all or none.")]
Until = Annotated[
    str | None,
    typer.Option(help="Any start from START to this one; 14:00 is the first 14:00 after START."),
]
Snug = Annotated[
    bool,
    typer.Option("--snug", help="Among possible starts, the one that fragments free time least."),
]


@app.command("list")
def list_leases(
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your leases, the last booked first."""
    with connect() as client:
        leases = list(client.leases.list(limit=limit))
    print_list(
        leases,
        ["id", "node", "kind", "state", "from", "jobs stop at", "reason"],
        lambda lease: (
            id_cell(lease.id),
            _where_of(lease),
            lease.kind,
            state_text(lease.state),
            moment(lease.hold_start),
            moment(lease.usable_end),
            lease.reason,
        ),
        sentence=True,
        empty="No leases. Book one: trainyard leases book 14:00 2 --class cpu2",
        least=["kind", "jobs stop at"],
        as_json=as_json,
    )


@app.command("book")
def book(
    start: Start,
    hours: Hours,
    node_class: NodeClass = None,
    node: Nodes = None,
    count: Count = 1,
    gpus: Gpus = None,
    until: Until = None,
    snug: Snug = False,
    as_json: AsJson = False,
) -> None:
    """Book whole hours on a node, or on several at once."""
    names = _where(node_class, node)
    with connect() as client:
        lease = client.leases.book(
            start_of(start),
            hours,
            node_class=node_class,
            node=names[0] if len(names) == 1 else None,
            nodes=names if len(names) > 1 else (),
            count=count,
            gpus=gpus,
            last_start=last_start_of(until, start),
            prefer="snuggest" if snug else "earliest",
        )
    if as_json:
        print_json(lease.raw)
    else:
        say(f"Booked {lease.id} on {_where_of(lease)}.")
        _show(lease)
        say(f"Put `lease: {lease.id}` into a job to run it there.")


@app.command("verdict")
def verdict(
    start: Start,
    hours: Hours,
    node_class: NodeClass = None,
    node: Nodes = None,
    count: Count = 1,
    gpus: Gpus = None,
    until: Until = None,
    snug: Snug = False,
    as_json: AsJson = False,
) -> None:
    """Show the answer that `book` would get, and the quotas that it would leave.

    Books nothing. Exit code 2: refused.
    """
    names = _where(node_class, node)
    with connect() as client:
        told = client.leases.verdict(
            start_of(start),
            hours,
            node_class=node_class,
            node=names[0] if len(names) == 1 else None,
            nodes=names if len(names) > 1 else (),
            count=count,
            gpus=gpus,
            last_start=last_start_of(until, start),
            prefer="snuggest" if snug else "earliest",
        )
    if as_json:
        print_json(told.raw)
    else:
        _show_verdict(told)
    if not told.ok:
        raise typer.Exit(ExitCode.BAD_INPUT)


@app.command("extend")
def extend(named: LeaseKey, hours: Hours, as_json: AsJson = False) -> None:
    """Extend a lease, if its node is free and the rules allow it."""
    with connect() as client:
        lease_id = LEASES.id_of(client, named, changes=True)
        lease = client.leases.extend(lease_id, hours)
    _answer(lease, f"{lease.id} is extended.", as_json)


@app.command("release")
def release(named: LeaseKey, as_json: AsJson = False) -> None:
    """Cancel a booked lease, or end an active one early: its jobs save and go back to the queue."""
    with connect() as client:
        lease_id = LEASES.id_of(client, named, changes=True)
        lease = client.leases.release(lease_id)
    _answer(lease, lease.reason, as_json)


@app.command("swap")
def swap(
    named: LeaseKey,
    start: Start,
    hours: Hours,
    node_class: NodeClass = None,
    node: Nodes = None,
    gpus: Gpus = None,
    until: Until = None,
    snug: Snug = False,
    as_json: AsJson = False,
) -> None:
    """Exchange a booked lease for another block; if that is refused, the lease is kept."""
    names = _where(node_class, node)
    if len(names) > 1:
        raise typer.BadParameter("a lease is swapped for one node")
    with connect() as client:
        lease_id = LEASES.id_of(client, named, changes=True)
        lease = client.leases.swap(
            lease_id,
            start_of(start),
            hours,
            node_class=node_class,
            node=names[0] if names else None,
            gpus=gpus,
            last_start=last_start_of(until, start),
            prefer="snuggest" if snug else "earliest",
        )
    _answer(lease, f"{lease_id} was swapped for {lease.id} on {_where_of(lease)}.", as_json)


@app.command("restore")
def restore(named: LeaseKey, as_json: AsJson = False) -> None:
    """Book a cancelled block again, if it is still free."""
    with connect() as client:
        lease_id = LEASES.id_of(client, named, changes=True)
        lease = client.leases.restore(lease_id)
    _answer(lease, f"{lease_id} is booked again, as {lease.id}.", as_json)


@app.command("cancel", hidden=True)  # the word of earlier versions for `release`
def cancel(named: LeaseKey, as_json: AsJson = False) -> None:
    """Cancel a booked lease, or end an active one early."""
    with connect() as client:
        lease_id = LEASES.id_of(client, named, changes=True)
        client.leases.cancel(lease_id)
    print_answer({"id": lease_id, "cancelled": True}, f"{lease_id} is cancelled.", as_json=as_json)


@app.command("availability")
def availability(
    start: Annotated[str | None, typer.Argument(help="First hour; default: this one.")] = None,
    hours: Annotated[int, typer.Option(min=1, help="Number of hours.")] = 24,
    node_class: NodeClass = None,
    block: Annotated[
        int | None, typer.Option(min=1, help="Only starts of a block of N hours that you may book.")
    ] = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Show the free nodes of each hour, and the reasons why the others are not free."""
    now = datetime.now().astimezone()
    first = moment_of(start) if start else now
    with connect() as client:
        shown = client.leases.availability(
            first, hours, node_class=node_class, block_hours=block, gpus=gpus
        )
    if as_json:
        print_json(shown.raw)
        return
    print_table(
        ["from", "free", "nodes", "not free"],
        (
            (
                moment(hour.start),
                hour.free,
                ", ".join(hour.nodes),
                ", ".join(_not_free(one, hour) for one in hour.taken),
            )
            for hour in shown.hours
        ),
        sentence=True,
        empty="No hours.",
    )


def _not_free(taken: BusyNode, hour: FreeHour) -> str:
    """Return a node and why it is not free, with the GPUs of it that nobody holds."""
    left = 0 if taken.message else hour.free_gpus.get(taken.node, 0)
    and_left = f", {counted(left, 'GPU')} free" if left else ""
    return f"{taken.node}: {taken.why}{and_left}"


def last_start_of(until: str | None, start: str) -> datetime | None:
    """Return the end of a range of starts."""
    if until is None:
        return None
    first = start_of(start)
    if not isinstance(first, datetime):
        raise typer.BadParameter("--until needs a first start, not a day")
    return moment_of(until, now=first)


def _where(node_class: str | None, nodes: list[str] | None) -> list[str]:
    if (node_class is None) == (not nodes):
        raise typer.BadParameter("give either --class or --node; `trainyard nodes` lists them")
    return nodes or []


def _where_of(lease: Lease) -> str:
    return part_of(lease.node, None if lease.whole else lease.gpus)


def _answer(lease: Lease, sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(lease.raw)
        return
    say(sentence)
    _show(lease)


def _show(lease: Lease) -> None:
    print_facts(
        [
            ("from", moment(lease.hold_start)),
            ("jobs stop at", moment(lease.usable_end)),
            ("node is free at", moment(lease.hold_end)),
        ]
    )


def _show_verdict(told: BlockVerdict) -> None:
    if told.ok:
        say(f"Would be booked on {', '.join(told.chosen)}.")
    else:
        say("Would be refused.")
        if told.can_wait:
            say("The waitlist may give it: trainyard leases waitlist join")
    print_facts([("from", moment(told.hold_start)), ("to", moment(told.hold_end))])
    for one in told.nodes:
        if told.ok and one.node not in told.chosen:
            continue
        for reason in (*one.reasons, *one.warnings):
            say(f"{one.node}: {reason.message}")
        if one.ok:
            quota = one.charge.quota or "no quota"
            say(f"{one.node}: {one.charge.hours} h are charged to {quota}.")
        for left in one.left:
            say(f"  left of {left.quota}: {left.text}" + (" (by swap)" if left.by_swap else ""))
        if one.next_starts:
            say(f"  next starts: {', '.join(moment(at) for at in one.next_starts)}")
