"""/v1/node/files: nodes bring checkpoints and artifacts, and fetch files that attempts need."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from api.files import store as storage
from api.files.store import Store
from api.files.uploads import receive
from api.nodes import files
from api.web.auth import NodeOnly
from api.web.process import Process, ProcessDep
from core.base.clock import utc_now
from core.base.errors import NotFound

router = APIRouter(prefix="/v1/node/files", tags=["node protocol"])

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.head("/{sha256}", summary="Check whether a file is in the store")
def head_file(sha256: Sha256, node: NodeOnly, process: ProcessDep) -> Response:
    """Answer 200 with the size of a stored file, or 404.

    The answer is always 404 while the node has no attempt whose files are still to be kept.
    """
    with process.read() as session:
        may_bring = files.has_files_to_bring(session, node)
    size = files.stored_size(process, sha256) if may_bring else None
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
    known = await anyio.to_thread.run_sync(files.may_bring, process, node, sha256)
    if known:
        return Response(status_code=200)
    with process.service(Store).incoming_file() as incoming:
        await receive(request, incoming, max_bytes=process.settings.max_file_bytes)
        await anyio.to_thread.run_sync(_keep, process, incoming, sha256)
    return Response(status_code=201)


@router.get("/{sha256}", summary="Fetch a file", response_class=FileResponse)
def get_file(sha256: Sha256, node: NodeOnly, process: ProcessDep) -> FileResponse:
    """Return a dataset, code, or model or checkpoint file that a live attempt of the node needs, or
    a job whose lease on it begins soon."""
    with process.read() as session:
        if sha256 not in files.needed(session, node, now=utc_now()):
            raise NotFound(f"No attempt on {node.name} needs the file {sha256}.")
    path = process.service(Store).open_path(sha256)
    return FileResponse(path, media_type="application/octet-stream")


def _keep(process: Process, incoming: storage.IncomingFile, sha256: str) -> None:
    incoming.seal(expected_sha256=sha256)
    process.transact(files.keep_file, incoming)
