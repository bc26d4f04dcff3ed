"""`trainyard usage` and `trainyard admin usage`."""

from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.output import AsJson, note, print_json, print_table, say
from trainyard.cli.session import connect
from trainyard.cli.times import optional_moment
from trainyard.client import Trainyard
from trainyard.views import Usage
from trainyard.wording import moment


class By(StrEnum):
    """Unit whose hours are added up."""

    USER = "user"
    LAB = "lab"
    NODE = "node"


class Per(StrEnum):
    """Length of the periods."""

    DAY = "day"
    WEEK = "week"


PerOption = Annotated[Per, typer.Option(help="Length of the periods.")]
Since = Annotated[str | None, typer.Option("--from", help="By default 28 days ago.")]
Until = Annotated[str | None, typer.Option("--to", help="By default now.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")]


def usage(
    per: PerOption = Per.WEEK,
    since: Since = None,
    until: Until = None,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Show your booked, used and useful GPU-hours, and your remaining quotas."""
    with connect() as client:
        _print(client, By.USER, per, since, until, as_csv=as_csv, as_json=as_json)
        if as_csv or as_json:
            return
        left = client.usage.left()
    for quota in left.quotas:
        until_text = f" until {moment(quota.window_end)}" if quota.window_end else ""
        if quota.left:
            say(f"Left on {', '.join(quota.nodes)}{until_text} (policy {quota.policy}):")
        for index, one in enumerate(quota.left):
            say(f"  {'or ' if index else ''}{one.text}")


def admin_usage(
    by: Annotated[By, typer.Option(help="Add up hours by user, lab or node.")] = By.USER,
    per: PerOption = Per.WEEK,
    since: Since = None,
    until: Until = None,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Show everybody's booked, used and useful GPU-hours, by user, lab or node."""
    with connect() as client:
        _print(client, by, per, since, until, as_csv=as_csv, as_json=as_json)


def _print(
    client: Trainyard,
    by: By,
    per: Per,
    since: str | None,
    until: str | None,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    start, end = optional_moment(since), optional_moment(until)
    if as_csv:
        typer.echo(client.usage.csv(by=by, per=per, start=start, end=end), nl=False)
        return
    found = client.usage.get(by=by, per=per, start=start, end=end)
    if as_json:
        print_json(found.raw)
        return
    _table(found)


def _table(found: Usage) -> None:
    note(f"{moment(found.start)} to {moment(found.end)}, days in the time zone {found.zone}.")
    totals = [("all", row) for row in found.total]
    print_table(
        [found.per, found.by, "booked", "used", "useful"],
        (
            (
                period,
                row.name,
                f"{row.booked_hours:.1f}",
                f"{row.used_hours:.1f}",
                f"{row.useful_hours:.1f}",
            )
            for period, row in [*((row.period, row) for row in found.rows), *totals]
        ),
        right=["booked", "used", "useful"],
        empty="No past hour was booked or used; future bookings count once they begin.",
    )
