"""Commands for the files of a job: checkpoints and artifacts."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from trainyard.cli.output import (
    AsJson,
    error_console,
    print_json,
    print_json_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.client import Trainyard
from trainyard.errors import BadInput, NotFound
from trainyard.inert import one_line
from trainyard.views import Artifact, Checkpoint
from trainyard.wording import moment, size

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, job_...")]


def checkpoints(job_id: JobId, as_json: AsJson = False) -> None:
    """List the checkpoints of a job that are in the store."""
    with connect() as client:
        found = client.jobs.checkpoints(job_id)
    if as_json:
        print_json_list(checkpoint.raw for checkpoint in found)
        return
    print_table(
        ["name", "id", "attempt", "size", "files", "saved"],
        (
            (
                step_name(checkpoint),
                checkpoint.id,
                checkpoint.epoch,
                size(checkpoint.size),
                checkpoint.files,
                moment(checkpoint.created_at),
            )
            for checkpoint in found
        ),
        empty="No checkpoint is in the store yet.",
        right=["attempt", "size", "files"],
    )


def artifacts(job_id: JobId, as_json: AsJson = False) -> None:
    """List the files that a job has written."""
    with connect() as client:
        found = client.jobs.artifacts(job_id)
    if as_json:
        print_json_list(artifact.raw for artifact in found)
        return
    print_table(
        ["name", "id", "attempt", "size", "kept"],
        (
            (
                artifact.path,
                artifact.id,
                artifact.epoch,
                size(artifact.size),
                moment(artifact.created_at),
            )
            for artifact in found
        ),
        empty="The job has no artifacts yet.",
        right=["attempt", "size"],
    )


def download(
    job_id: JobId,
    name: Annotated[
        str,
        typer.Argument(help="An artifact such as sample.txt, or a checkpoint such as step-000400."),
    ],
    to: Annotated[
        Path | None, typer.Option(help="Target file or folder; by default its own name, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download an artifact, or a checkpoint as a tar file."""
    with connect() as client:
        item = _find(client, job_id, name)
        target = _target(item, job_id, to)
        path = _fetch(client, job_id, item, target, show=not as_json)
    if as_json:
        print_json({"path": str(path), "size": path.stat().st_size})
    else:
        say(f"{path} ({size(path.stat().st_size)})")


def step_name(checkpoint: Checkpoint) -> str:
    """Return a name such as `step-000400`."""
    return f"step-{checkpoint.step:06d}"


def file_name(item: Artifact | Checkpoint, job_id: str) -> str:
    """Return a name for this machine's disk: only the last part of the server's path."""
    if isinstance(item, Checkpoint):
        return f"{job_id}-{step_name(item)}.tar"
    last = one_line(PurePosixPath(item.path).name).replace("\\", "_")
    if last in ("", ".", ".."):
        raise BadInput(f"{item.path!r} is not a valid file name; choose one with --to")
    return last


def _find(client: Trainyard, job_id: str, name: str) -> Artifact | Checkpoint:
    """Return the newest file of that name."""
    named: Sequence[Artifact] = [
        artifact
        for artifact in client.jobs.artifacts(job_id)
        if name in (artifact.path, artifact.id)
    ]
    if named:
        return max(named, key=lambda artifact: artifact.epoch)
    for checkpoint in sorted(client.jobs.checkpoints(job_id), key=lambda c: c.epoch, reverse=True):
        if name in (step_name(checkpoint), checkpoint.id):
            return checkpoint
    raise NotFound(
        404,
        code="not_found",
        detail=f"{job_id} has no artifact or checkpoint {name!r}. `trainyard artifacts {job_id}` "
        f"and `trainyard checkpoints {job_id}` list them.",
    )


def _target(item: Artifact | Checkpoint, job_id: str, to: Path | None) -> Path:
    if to is None:
        return Path(file_name(item, job_id))
    return to / file_name(item, job_id) if to.is_dir() else to


def _fetch(
    client: Trainyard, job_id: str, item: Artifact | Checkpoint, target: Path, *, show: bool
) -> Path:
    out = error_console()
    if not show or not out.is_terminal:
        return client.jobs.download(job_id, item, target)
    with Progress(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=out, transient=True
    ) as bar:
        task = bar.add_task("download", total=None)
        return client.jobs.download(
            job_id,
            item,
            target,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
