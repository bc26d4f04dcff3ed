"""Commands for the files of a job: checkpoints and artifacts."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.output import AsJson, print_answer, print_list
from trainyard.cli.session import connect
from trainyard.cli.transfers import transfer_bar
from trainyard.client import Trainyard
from trainyard.errors import BadInput, NotFound
from trainyard.inert import one_line
from trainyard.views import Artifact, Checkpoint
from trainyard.wording import moment, size


def checkpoints(named: JobKey, as_json: AsJson = False) -> None:
    """List the checkpoints of a job that are in the store."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        found = client.jobs.checkpoints(job_id)
    print_list(
        found,
        ["name", "id", "attempt", "size", "files", "saved"],
        lambda checkpoint: (
            step_name(checkpoint),
            checkpoint.id,
            checkpoint.epoch,
            size(checkpoint.size),
            checkpoint.files,
            moment(checkpoint.created_at),
        ),
        empty="No checkpoint is in the store yet.",
        right=["attempt", "size", "files"],
        as_json=as_json,
    )


def artifacts(named: JobKey, as_json: AsJson = False) -> None:
    """List the files that a job has written."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        found = client.jobs.artifacts(job_id)
    print_list(
        found,
        ["name", "id", "attempt", "size", "kept"],
        lambda artifact: (
            artifact.path,
            artifact.id,
            artifact.epoch,
            size(artifact.size),
            moment(artifact.created_at),
        ),
        empty="The job has no artifacts yet.",
        right=["attempt", "size"],
        as_json=as_json,
    )


def download(
    named: JobKey,
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
        job_id = JOBS.id_of(client, named)
        item = _find(client, job_id, name)
        target = _target(item, job_id, to)
        with transfer_bar(show=not as_json) as progress:
            path = client.jobs.download(job_id, item, target, progress=progress)
    print_answer(
        {"path": str(path), "size": path.stat().st_size},
        f"{path} ({size(path.stat().st_size)})",
        as_json=as_json,
    )


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
