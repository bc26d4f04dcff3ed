"""`trainyard datasets`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from trainyard.cli.files.fetching import (
    Lease,
    Mirror,
    Repository,
    Revision,
    Secret,
    WallTime,
    fetch_in_job,
    name_of,
)
from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    note,
    print_answer,
    print_json,
    print_list,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.transfers import transfer_bar
from trainyard.errors import BadInput
from trainyard.idx import is_idx, pack
from trainyard.resources.datasets import files_below
from trainyard.views import Dataset
from trainyard.wording import moment, reference, size

app = typer.Typer(cls=Lists, help="Texts and images to train on.")


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List the built-in datasets, your own, and those shared with you as OWNER/NAME."""
    with connect() as client:
        datasets, own = list(client.datasets.list()), client.me().user.name
    print_list(
        datasets,
        ["name", "id", "format", "size", "holds", "made"],
        lambda dataset: (
            reference(dataset.name, dataset.owner, own),
            dataset.id,
            dataset.format,
            size(dataset.size),
            holds(dataset),
            "built in" if dataset.built_in else moment(dataset.created_at),
        ),
        empty="No datasets. Upload one: trainyard datasets upload FILE NAME",
        right=["size", "holds"],
        as_json=as_json,
    )


@app.command("upload")
def upload(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="UTF-8 text, JSON lines (texts, instructions, chats), parquet or arrow; several "
            "files or a folder are one dataset. Or images: a .npz file, or MNIST's files (IDX), "
            "which are packed into one.",
        ),
    ],
    name: Annotated[str, typer.Argument(help="The name that jobs use.")],
    format: Annotated[
        Literal["text", "jsonl", "npz", "parquet", "arrow"] | None,
        typer.Option(help="By default by the name's ending: .jsonl, .npz, .parquet; else text."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload files or a folder; the server checks them before storing them.

    What was broken off goes on with the same command.
    """
    with connect() as client, packed(files) as found, transfer_bar(show=not as_json) as progress:
        if isinstance(found, Path):
            dataset = client.datasets.upload(found, name, format, progress=progress)
        else:
            dataset = client.datasets.upload_files(found, name, format, progress=progress)
    if as_json:
        print_json(dataset.raw)
        return
    inside = f", {held}" if (held := holds(dataset)) is not None else ""
    say(f"Uploaded {dataset.name} as {dataset.id}: {size(dataset.size)}{inside}.")
    for warning in dataset.warnings:
        note(f"Note: {warning}")
    say(f"Train on it with `data: {{dataset: {dataset.name}, {how_to_read(dataset)}}}` in the job.")


@app.command("fetch")
def fetch(
    repository: Repository,
    name: Annotated[
        str | None, typer.Argument(help="The name that jobs use; by default the repository's.")
    ] = None,
    revision: Revision = "main",
    files: Annotated[
        list[str] | None,
        typer.Option(help="Only files like this, such as 'data/train-*.parquet'; repeatable."),
    ] = None,
    secret: Secret = None,
    hub: Mirror = None,
    wall_time: WallTime = "1h",
    lease: Lease = None,
    job: Annotated[str | None, typer.Option(help="Keep what this job has fetched already.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset from the hub in a job on a node, and keep it.

    Its files are text, JSON lines, parquet or arrow, of one exact commit. The job may run where an
    administrator lists the hub: `trainyard admin network`.
    """
    chosen = name_of(repository, name)
    with connect() as client:
        if job is None:
            job = fetch_in_job(
                client,
                "dataset",
                repository,
                chosen,
                revision=revision,
                patterns=files or ["*"],
                secret=secret,
                mirror=hub,
                wall_time=wall_time,
                lease=lease,
                as_json=as_json,
            )
        dataset = client.datasets.take_fetched(job, chosen)
    if as_json:
        print_json(dataset.raw)
        return
    origin = "" if dataset.origin is None else f", fetched from {dataset.origin.hub}"
    say(f"{dataset.name} ({dataset.id}){origin}: {size(dataset.size)}.")
    for warning in dataset.warnings:
        note(f"Note: {warning}")
    say(f"Train on it with `data: {{dataset: {dataset.name}, ...}}` in the job.")


@app.command("preview")
def preview(
    dataset: Annotated[str, typer.Argument(help="Name or id.")],
    tokenizer: Annotated[str, typer.Option(help="bytes, or a tokenizer of yours.")] = "bytes",
    count: Annotated[int, typer.Option(min=1, max=50, help="Number of rows.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show the first rows as tokens; what a model only reads is in [brackets]."""
    with connect() as client:
        found = client.datasets.rows(dataset, tokenizer=tokenizer, count=count)
    if as_json:
        print_json(found.raw)
        return
    apart = "" if tokenizer == "bytes" else "|"
    for row in found.rows:
        say(f"{row.place}: {row.num_tokens:,} tokens, {row.num_learned:,} of them learned")
        pieces = (piece.text if piece.learned else f"[{piece.text}]" for piece in row.pieces)
        say("  " + apart.join(pieces).replace("\n", "\\n") + (" ..." if row.is_cut else ""))


@app.command("delete")
def delete(
    dataset: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False
) -> None:
    """Delete one of your own datasets."""
    with connect() as client:
        client.datasets.delete(dataset)
    print_answer({"dataset": dataset, "deleted": True}, f"Deleted {dataset}.", as_json=as_json)


def holds(dataset: Dataset) -> str | None:
    """Return the count of the dataset's content."""
    if dataset.images is not None:
        return f"{dataset.images.count + dataset.images.tests:,} images"
    return None if dataset.lines is None else f"{dataset.lines:,} lines"


def how_to_read(dataset: Dataset) -> str:
    """Return the other fields that a job's `data` needs for this dataset."""
    if dataset.images is None:
        return "..."
    height, width, channels = dataset.images.image_shape
    shape = [height, width] if channels == 1 else [height, width, channels]
    return f"image_shape: {shape}, classes: {dataset.images.classes}"


@contextmanager
def packed(files: list[Path]) -> Iterator[Path | list[tuple[Path, str]]]:
    """Yield the one file to send, IDX files packed into one, or several files with their paths."""
    pairs = [pair for file in files for pair in _with_paths(file)]
    paths = [path for path, _ in pairs]
    if any(map(is_idx, paths)) and not all(map(is_idx, paths)):
        raise BadInput(f"{' '.join(map(str, files))}: IDX images and other files don't mix.")
    if paths and all(map(is_idx, paths)):
        with TemporaryDirectory(prefix="trainyard-") as folder:
            target = Path(folder) / "images.npz"
            pack(paths, target)
            yield target
    elif len(files) == 1 and not files[0].is_dir():
        yield files[0]
    else:
        yield pairs


def _with_paths(file: Path) -> list[tuple[Path, str]]:
    return files_below(file) if file.is_dir() else [(file, file.name)]
