"""`trainyard uploads`."""

from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, print_answer, print_list
from trainyard.cli.session import connect
from trainyard.wording import moment, size

app = typer.Typer(cls=Lists, help="Uploads that were broken off; they can go on.")


@app.command("list")
def list_uploads(as_json: AsJson = False) -> None:
    """List unfinished uploads. The same upload command goes on where one broke off."""
    with connect() as client:
        uploads = client.uploads.list()
    print_list(
        uploads,
        ["upload", "file", "arrived", "size", "last bytes"],
        lambda upload: (
            upload.id,
            upload.path,
            size(upload.received),
            size(upload.size),
            moment(upload.touched_at),
        ),
        empty="No unfinished uploads.",
        right=["arrived", "size"],
        as_json=as_json,
    )


@app.command("delete")
def delete(
    upload: Annotated[str, typer.Argument(help="Id, up_...")], as_json: AsJson = False
) -> None:
    """Delete an unfinished upload; three days after its last bytes that happens by itself."""
    with connect() as client:
        client.uploads.delete(upload)
    print_answer({"upload": upload, "deleted": True}, f"Deleted {upload}.", as_json=as_json)
