"""`trainyard archives`."""

from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import AsJson, print_list, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.wording import moment, size

app = typer.Typer(cls=Lists, help="The code of scripts that you have uploaded.")

SHORTEST = 8  # digits of a hash that name an archive


@app.command("list")
def list_archives(as_json: AsJson = False) -> None:
    """List archives of code, and the jobs that still need them."""
    with connect() as client:
        archives = list(client.code.list())
    print_list(
        archives,
        ["archive", "size", "files", "needed by", "uploaded"],
        lambda archive: (
            archive.sha256[:12],
            size(archive.size),
            str(archive.files),
            ", ".join(archive.jobs) or "no job",
            moment(archive.created_at),
        ),
        empty="No code. `trainyard submit --script FILE` uploads some.",
        right=["size", "files"],
        as_json=as_json,
    )


@app.command("delete")
def delete_archive(
    archive: Annotated[
        str, typer.Argument(help="First digits of its hash, as in `archives list`.")
    ],
) -> None:
    """Delete code that no unfinished job needs."""
    if len(archive) < SHORTEST:
        raise BadInput(f"{archive!r}: give at least {SHORTEST} digits of its hash.")
    with connect() as client:
        found = [one for one in client.code.list() if one.sha256.startswith(archive)]
        if len(found) != 1:
            raise BadInput(
                f"{len(found)} archives begin with {archive}. `trainyard archives list` shows all."
            )
        client.code.delete(found[0].sha256)
    say(f"Deleted {found[0].sha256[:12]}, {size(found[0].size)}.")
