"""/v1/jobs/{id}/checkpoints and /artifacts: list and download a job's files in the store."""

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse, StreamingResponse

from api.files.store import Store
from api.jobs import job_files
from api.jobs.job_views import find_job
from api.jobs.reading import record_reading
from api.jobs.schemas import ArtifactView, CheckpointView
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.errors import NotFound
from core.tables.files import Artifact, Checkpoint
from core.wire.messages import FileRef
from strategies.plan.run_directory import checkpoint_name

router = APIRouter(prefix="/v1/jobs", tags=["files of a job"])

PIECE = 1 << 20
BLOCK = tarfile.BLOCKSIZE
BINARY = "application/octet-stream"
DOWNLOAD = {200: {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}}


@router.get("/{job_id}/checkpoints", summary="List a job's checkpoints")
def list_checkpoints(
    job_id: PlainText, person: SignedIn, process: ProcessDep
) -> Page[CheckpointView]:
    """List all checkpoints in the store, the furthest first."""
    with process.read() as session:
        return job_files.checkpoints_of(session, job_id, person)


@router.get(
    "/{job_id}/checkpoints/{checkpoint_id}",
    summary="Download a checkpoint",
    response_class=Response,
    responses=DOWNLOAD,  # type: ignore[arg-type]  # FastAPI asks for dict, which is invariant
)
def download_checkpoint(
    job_id: PlainText,
    checkpoint_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    path: Annotated[
        PlainText | None,
        Query(
            description="Only this file of the checkpoint, such as manifest.json. Default: "
            "all, as a tar archive."
        ),
    ] = None,
) -> Response:
    """Download the whole checkpoint as an uncompressed tar, or one file of it."""
    with process.read() as session:
        job = find_job(session, job_id, person)
        checkpoint = job_files.find_checkpoint(session, job, checkpoint_id)
    record_reading(process, person, job, "checkpoint", checkpoint.id)
    files = [FileRef.model_validate(file) for file in checkpoint.files]
    if path is not None:
        for file in files:
            if file.path == path:
                return _attachment(process.service(Store), file.sha256, PurePosixPath(path).name)
        raise NotFound(f"The checkpoint has no file {path!r}.", param="path")
    folder = checkpoint_name(checkpoint.step)
    headers = [_tar_header(f"{folder}/{file.path}", file.size, checkpoint) for file in files]
    for file in files:
        process.service(Store).open_path(file.sha256)
    size = sum(map(len, headers)) + sum(_padded(file.size) for file in files) + 2 * BLOCK
    return StreamingResponse(
        _tar(process.service(Store), files, headers),
        media_type="application/x-tar",
        headers={**_as_attachment(f"{folder}.tar"), "Content-Length": str(size)},
    )


@router.get("/{job_id}/artifacts", summary="List a job's artifacts")
def list_artifacts(job_id: PlainText, person: SignedIn, process: ProcessDep) -> Page[ArtifactView]:
    """List files that the job's attempts left behind, such as sample.txt and the final weights."""
    with process.read() as session:
        return job_files.artifacts_of(session, job_id, person)


@router.get(
    "/{job_id}/artifacts/{artifact_id}",
    summary="Download an artifact",
    response_class=Response,
    responses=DOWNLOAD,  # type: ignore[arg-type]
)
def download_artifact(
    job_id: PlainText, artifact_id: PlainText, person: SignedIn, process: ProcessDep
) -> Response:
    """Download the file, as an attachment."""
    with process.read() as session:
        job = find_job(session, job_id, person)
        artifact = session.get(Artifact, artifact_id)
    if artifact is None or artifact.job_id != job.id:
        raise NotFound(f"{job.name} has no artifact {artifact_id!r}.")
    record_reading(process, person, job, "artifact", artifact.id)
    return _attachment(process.service(Store), artifact.sha256, PurePosixPath(artifact.path).name)


def _attachment(store: Store, sha256: str, name: str) -> FileResponse:
    return FileResponse(store.open_path(sha256), media_type=BINARY, headers=_as_attachment(name))


def _as_attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}


def _tar_header(name: str, size: int, checkpoint: Checkpoint) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    member.mtime = int(checkpoint.created_at.timestamp())
    return member.tobuf(tarfile.PAX_FORMAT)


def _tar(store: Store, files: Sequence[FileRef], headers: Sequence[bytes]) -> Iterator[bytes]:
    for file, header in zip(files, headers, strict=True):
        yield header
        with store.path(file.sha256).open("rb") as content:
            while piece := content.read(PIECE):
                yield piece
        yield b"\0" * (_padded(file.size) - file.size)
    yield b"\0" * (2 * BLOCK)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
