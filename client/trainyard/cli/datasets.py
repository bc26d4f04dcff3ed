"""`trainyard datasets`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from trainyard.cli.output import (
    AsJson,
    error_console,
    note,
    print_json,
    print_json_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.client import Trainyard
from trainyard.datasets import Format
from trainyard.views import Dataset
from trainyard.wording import moment, size

app = typer.Typer(no_args_is_help=True, help="Texts to train on.")


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """Built-in texts and your own."""
    with connect() as client:
        datasets = list(client.datasets.list())
    if as_json:
        print_json_list(dataset.raw for dataset in datasets)
        return
    print_table(
        ["name", "id", "format", "size", "lines", "made"],
        (
            (
                dataset.name,
                dataset.id,
                dataset.format,
                size(dataset.size),
                None if dataset.lines is None else f"{dataset.lines:,}",
                "built in" if dataset.built_in else moment(dataset.created_at),
            )
            for dataset in datasets
        ),
        empty="No datasets. Upload one: trainyard datasets upload FILE NAME",
        right=["size", "lines"],
    )


@app.command("upload")
def upload(
    file: Annotated[Path, typer.Argument(help="UTF-8 text, or texts or chats as JSON lines.")],
    name: Annotated[str, typer.Argument(help="The name that jobs use.")],
    format: Annotated[
        Literal["text", "jsonl"] | None,
        typer.Option(help="By default jsonl for .jsonl and .ndjson, else text."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a file; the server checks it while it arrives."""
    with connect() as client:
        dataset = _upload(client, file, name, format, show=not as_json)
    if as_json:
        print_json(dataset.raw)
        return
    lines = f", {dataset.lines:,} lines" if dataset.lines is not None else ""
    say(f"Uploaded {dataset.name} as {dataset.id}: {size(dataset.size)}{lines}.")
    for warning in dataset.warnings:
        note(f"Note: {warning}")
    say(f"Train on it with `data: {{dataset: {dataset.name}, ...}}` in the job.")


@app.command("delete")
def delete(
    dataset: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False
) -> None:
    """Remove one of your own."""
    with connect() as client:
        client.datasets.delete(dataset)
    if as_json:
        print_json({"dataset": dataset, "deleted": True})
    else:
        say(f"Deleted {dataset}.")


def _upload(
    client: Trainyard, file: Path, name: str, format: Format | None, *, show: bool
) -> Dataset:
    out = error_console()
    if not show or not out.is_terminal:
        return client.datasets.upload(file, name, format)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("upload", total=None)
        return client.datasets.upload(
            file,
            name,
            format,
            progress=lambda sent, total: bar.update(task, completed=sent, total=total),
        )
