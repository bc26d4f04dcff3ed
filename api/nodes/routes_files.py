"""/v1/node/files: nodes bring checkpoints and artifacts, and fetch files that attempts need."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.store import Store
from api.files.uploads import receive
from api.web.auth import NodeOnly
from api.web.identity import NodeIdentity
from api.web.process import Process, ProcessDep
from core.base.errors import Conflict, NotFound
from core.states import LIVE_ATTEMPT
from core.tables.files import Checkpoint, Dataset, Model, StoredFile
from core.tables.jobs import Attempt, AttemptPart, Job

router = APIRouter(prefix="/v1/node/files", tags=["node protocol"])

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.head("/{sha256}", summary="Check whether a file is in the store")
def head_file(sha256: Sha256, node: NodeOnly, process: ProcessDep) -> Response:
    """Answer 200 with the size of a stored file, or 404.

    The answer is always 404 while the node has no attempt whose files are still to be kept.
    """
    with process.read() as session:
        may_bring = _has_files_to_bring(session, node)
    size = _stored_size(process, sha256) if may_bring else None
    if size is None or not process.service(Store).has(sha256):
        raise NotFound(f"{sha256} is not in the store.")
    return Response(headers={"Content-Length": str(size)})


@router.put(
    "/{sha256}",
    status_code=201,
    summary="Upload a file",
    response_class=Response,
    responses={200: {"description": "The file was already in the store."}},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def put_file(
    sha256: Sha256, request: Request, node: NodeOnly, process: ProcessDep
) -> Response:
    """Store the raw bytes, checked against their hash. Sending a file twice is harmless."""
    known = await anyio.to_thread.run_sync(_may_bring, process, node, sha256)
    if known:
        return Response(status_code=200)
    with process.service(Store).incoming_file() as incoming:
        await receive(request, incoming, max_bytes=process.settings.max_file_bytes)
        await anyio.to_thread.run_sync(_keep, process, incoming, sha256)
    return Response(status_code=201)


@router.get("/{sha256}", summary="Fetch a file", response_class=FileResponse)
def get_file(sha256: Sha256, node: NodeOnly, process: ProcessDep) -> FileResponse:
    """Return a dataset, code, or model or checkpoint file that a live attempt of the node needs."""
    with process.read() as session:
        if sha256 not in _needed(session, node):
            raise NotFound(f"No attempt on {node.name} needs the file {sha256}.")
    path = process.service(Store).open_path(sha256)
    return FileResponse(path, media_type="application/octet-stream")


def _stored_size(process: Process, sha256: str) -> int | None:
    with process.read() as session:
        return session.scalar(
            select(StoredFile.size).where(StoredFile.sha256 == sha256, StoredFile.gone_at.is_(None))
        )


def _may_bring(process: Process, node: NodeIdentity, sha256: str) -> bool:
    """Return True if the file is in the store already.

    Raises Conflict if the node has no attempt whose files are still to be kept.
    """
    with process.read() as session:
        if not _has_files_to_bring(session, node):
            raise Conflict(f"{node.name} has no attempt with files that are still to be uploaded.")
    return _stored_size(process, sha256) is not None and process.service(Store).has(sha256)


def _has_files_to_bring(session: Session, node: NodeIdentity) -> bool:
    query = select(AttemptPart.attempt_id).where(
        AttemptPart.node_id == node.id, AttemptPart.files_kept.is_(False)
    )
    return session.scalar(query.limit(1)) is not None


def _keep(process: Process, incoming: storage.IncomingFile, sha256: str) -> None:
    incoming.seal(expected_sha256=sha256)
    with process.write() as (session, _):
        storage.keep(session, incoming)


def _needed(session: Session, node: NodeIdentity) -> set[str]:
    """Return the hashes of datasets, code, models and checkpoints of a node's live attempts."""
    here = select(AttemptPart.attempt_id).where(
        AttemptPart.node_id == node.id, AttemptPart.ended_at.is_(None)
    )
    live = Attempt.id.in_(here) & Attempt.state.in_(LIVE_ATTEMPT)
    datasets = session.scalars(
        select(Dataset.sha256)
        .join(Job, Job.dataset_id == Dataset.id)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live)
    )
    models = session.scalars(
        select(Model.files)
        .join(Job, Job.model_id == Model.id)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live)
    )
    checkpoints = session.scalars(
        select(Checkpoint.files)
        .join(Attempt, Attempt.resume_checkpoint_id == Checkpoint.id)
        .where(live)
    )
    code = session.scalars(
        select(Job.code_sha256)
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.epoch == Job.epoch))
        .where(live, Job.code_sha256.is_not(None))
    )
    folders = [*models, *checkpoints]
    return {*datasets, *(sha256 for sha256 in code if sha256)} | {
        file["sha256"] for files in folders for file in files
    }
