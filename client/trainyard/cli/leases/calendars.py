"""`trainyard leases calendar`."""

from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, print_answer, print_list
from trainyard.cli.session import connect
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Leases in your calendar program.")


@app.command("new")
def new(
    node: Annotated[str | None, typer.Option(help="For staff: of this node.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create an address to subscribe to. It is shown only once; anyone who knows it can read it."""
    with connect() as client:
        feed = client.calendars.make(node=node)
    print_answer(feed.raw, feed.url or "", as_json=as_json)


@app.command("list")
def list_feeds(as_json: AsJson = False) -> None:
    """List your calendar feeds, without their addresses."""
    with connect() as client:
        feeds = list(client.calendars.list())
    print_list(
        feeds,
        ["id", "of", "made", "last read"],
        lambda feed: (
            feed.id,
            feed.node or "your leases",
            moment(feed.created_at),
            moment(feed.last_used_at),
        ),
        empty="No feeds. Make one: trainyard leases calendar new",
        as_json=as_json,
    )


@app.command("revoke")
def revoke(
    feed_id: Annotated[str, typer.Argument(metavar="FEED")], as_json: AsJson = False
) -> None:
    """Revoke a calendar feed; its address stops working."""
    with connect() as client:
        client.calendars.revoke(feed_id)
    print_answer({"id": feed_id, "revoked": True}, f"{feed_id} is revoked.", as_json=as_json)
