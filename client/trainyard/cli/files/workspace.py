"""`trainyard workspace`."""

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    note,
    print_answer,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.transfers import transfer_bar
from trainyard.errors import BadInput
from trainyard.views import SharedUse, Workspace, WorkspaceEntry
from trainyard.wording import counted, moment, size

app = typer.Typer(cls=Lists, help="Your folder that outlives leases.")
Snapshot = Annotated[
    str | None, typer.Option(help="A snapshot's id; by default what it holds now.")
]


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show what it holds of its quota, and the program that writes to it."""
    with connect() as client:
        found = client.workspace.get()
    if as_json:
        print_json(found.raw)
        return
    say(
        f"{size(found.used)} of {size(found.max_bytes)}, {found.files:,} of {found.max_files:,} "
        f"files and folders{'' if found.taken_at is None else f', kept {moment(found.taken_at)}'}."
    )
    say(writer_text(found))
    if found.trouble:
        note(f"Note: {found.trouble}")
    if found.shared is not None:
        _show_shared(found, found.shared)
    elif found.shared_classes:
        note(
            f"Note: on nodes of {', '.join(found.shared_classes)} it lies in a folder of the site. "
            "No program of yours has used it there yet."
        )


def _show_shared(workspace: Workspace, shared: SharedUse) -> None:
    least = "" if shared.is_whole else "at least "
    say("")
    say(
        f"In the site's shared folder, seen {moment(shared.seen_at)}: {least}{size(shared.used)} "
        f"of {size(workspace.max_bytes)}, {shared.files:,} of {workspace.max_files:,} files and "
        "folders."
    )
    print_table(
        ["path", "size", "below it"],
        [
            (f"{one.path}/" if one.kind == "folder" else one.path, size(one.size), f"{one.files:,}")
            for one in shared.top
        ],
        empty="It is empty.",
        right=["size", "below it"],
    )


@app.command("list")
def list_files(
    folder: Annotated[str, typer.Argument(help="A folder; by default the whole.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is in the folders below.")
    ] = False,
    snapshot: Snapshot = None,
    as_json: AsJson = False,
) -> None:
    """List the files in a folder of it."""
    with connect() as client:
        entries = list(client.workspace.list(folder, recursive=everything, snapshot=snapshot))
    print_list(
        entries,
        ["path", "size", "changed"],
        lambda entry: (
            path_text(entry),
            size(entry.size) if entry.kind == "file" else None,
            None if entry.modified_at is None else moment(entry.modified_at),
        ),
        empty="Nothing here. Programs write to it as $TRAINYARD_WORKSPACE.",
        right=["size"],
        as_json=as_json,
    )


@app.command("get")
def get(
    path: Annotated[str, typer.Argument(help="A file or folder of it.")],
    to: Annotated[
        Path | None, typer.Argument(help="A new file or folder; by default its name, here.")
    ] = None,
    snapshot: Snapshot = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a file, or a folder with everything in it. Links are left out."""
    name = PurePosixPath(path.strip("/")).name
    target = to or Path(name or "workspace")
    with connect() as client:
        fetched = list(client.workspace.download_tree(path, target, snapshot=snapshot))
    print_answer(
        {"path": path, "to": str(target), "files": len(fetched)},
        f"Fetched {counted(len(fetched), 'file')} to {target}.",
        as_json=as_json,
    )


@app.command("put")
def put(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files and folders.")],
    to: Annotated[str, typer.Option(help="Folder of the workspace; made if need be.")] = "",
    as_json: AsJson = False,
) -> None:
    """Put files, or folders with everything in them, in the place of what has their names."""
    chosen = [pair for file in files for pair in placed(file, to.strip("/"))]
    with connect() as client:
        for source, path in chosen:
            with transfer_bar(show=not as_json) as progress:
                client.workspace.put(source, path, progress=progress)
    print_answer(
        {"paths": [path for _, path in chosen]},
        f"Put {counted(len(chosen), 'file')} into your workspace.",
        as_json=as_json,
    )


@app.command("rm")
def remove(
    path: Annotated[str, typer.Argument(help="A file, link or folder of it.")],
    as_json: AsJson = False,
) -> None:
    """Delete a file, or a folder with everything in it. Earlier snapshots keep it."""
    with connect() as client:
        client.workspace.delete(path.strip("/"))
    print_answer({"path": path, "deleted": True}, f"Deleted {path}.", as_json=as_json)


@app.command("snapshots")
def snapshots(as_json: AsJson = False) -> None:
    """List its snapshots: the newest 24 of the last week."""
    with connect() as client:
        found = client.workspace.snapshots()
    print_list(
        found,
        ["id", "kept", "files", "size", "by", ""],
        lambda one: (
            one.id,
            moment(one.taken_at),
            f"{one.files:,}",
            size(one.used),
            one.job or one.origin,
            "current" if one.is_current else None,
        ),
        empty="No snapshots: nothing was ever kept.",
        right=["files", "size"],
        as_json=as_json,
    )


@app.command("restore")
def restore(
    snapshot: Annotated[str, typer.Argument(help="A snapshot's id.")], as_json: AsJson = False
) -> None:
    """Go back to an earlier snapshot. What is there now stays in the list."""
    with connect() as client:
        restored = client.workspace.restore(snapshot)
    print_answer(
        restored.raw,
        f"Restored: {counted(restored.files, 'file')}, {size(restored.used)}.",
        as_json=as_json,
    )


def writer_text(found: Workspace) -> str:
    """Return who writes to it now."""
    if found.writer is None:
        return "No program writes to it; the next one that brings it may."
    return (
        f"{found.writer.name} ({found.writer.job}) writes to it since "
        f"{moment(found.writer.since)}; others get it read-only."
    )


def path_text(entry: WorkspaceEntry) -> str:
    """Return `notes/`, `run.sh` or `latest -> runs/7`."""
    if entry.kind == "folder":
        return f"{entry.path}/"
    return entry.path if entry.target is None else f"{entry.path} -> {entry.target}"


def placed(source: Path, folder: str) -> list[tuple[Path, str]]:
    """Return (file, path in the workspace) of a file, or of everything in a folder."""
    if not source.exists():
        raise BadInput(f"{source}: there is no such file.")
    name = source.resolve().name
    base = f"{folder}/{name}" if folder else name
    if source.is_file():
        return [(source, base)]
    inside = sorted(path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    return [(path, f"{base}/{path.relative_to(source).as_posix()}") for path in inside]
