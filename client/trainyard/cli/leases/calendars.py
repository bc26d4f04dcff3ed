"""`trainyard leases calendar`."""

from typing import Annotated

import typer

from trainyard.cli.output import AsJson, print_json, print_json_list, print_table, say
from trainyard.cli.session import connect
from trainyard.wording import moment

app = typer.Typer(no_args_is_help=True, help="Leases in your calendar program.")


@app.command("new")
def new(
    node: Annotated[str | None, typer.Option(help="For staff: of this node.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create an address to subscribe to. It is shown only once; anyone who knows it can read it."""
    with connect() as client:
        feed = client.calendars.make(node=node)
    if as_json:
        print_json(feed.raw)
    else:
        say(feed.url or "")


@app.command("list")
def list_feeds(as_json: AsJson = False) -> None:
    """List your calendar feeds, without their addresses."""
    with connect() as client:
        feeds = list(client.calendars.list())
    if as_json:
        print_json_list(feed.raw for feed in feeds)
        return
    print_table(
        ["id", "of", "made", "last read"],
        (
            (
                feed.id,
                feed.node or "your leases",
                moment(feed.created_at),
                moment(feed.last_used_at),
            )
            for feed in feeds
        ),
        empty="No feeds. Make one: trainyard leases calendar new",
    )


@app.command("revoke")
def revoke(
    feed_id: Annotated[str, typer.Argument(metavar="FEED")], as_json: AsJson = False
) -> None:
    """Revoke a calendar feed; its address stops working."""
    with connect() as client:
        client.calendars.revoke(feed_id)
    if as_json:
        print_json({"id": feed_id, "revoked": True})
    else:
        say(f"{feed_id} is revoked.")
