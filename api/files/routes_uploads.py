"""/v1/uploads: files that arrive in parts and go on after a break.

The headers and their meaning are those of the IETF's resumable uploads for HTTP
(draft-ietf-httpbis-resumable-upload); docs/data.md has the whole exchange.
"""

import base64
import binascii
import os
from contextlib import suppress
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Request, Response
from starlette.requests import ClientDisconnect

from api.files import resumable
from api.files.arrival import PIECE, Arrival, Arrivals
from api.files.image_check import images_report
from api.files.schemas import NewUpload, UploadView
from api.files.table_check import tables_report
from api.web.auth import SignedIn
from api.web.errors import problem_response, service_problem
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.errors import BadRequest, Conflict, ServiceError
from core.tables.base import Document
from core.tables.files import Upload

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

TABLES = ("parquet", "arrow")
SILENT_S = 30.0  # without a byte: then the connection is taken for dead, and others may go on
MOST_UNREAD = 256 << 20  # bytes of a refused part that are read, so that its sender sees why
Offset = Annotated[
    int,
    Header(alias="Upload-Offset", ge=0, description="Number of bytes before this part's first."),
]
Complete = Annotated[
    str,
    Header(
        alias="Upload-Complete",
        pattern=r"^\?[01]$",
        description="?1 for the last part, which may be empty; ?0 for any other.",
    ),
]
Digest = Annotated[
    str | None,
    Header(
        alias="Repr-Digest",
        pattern=r"^sha-256=:[A-Za-z0-9+/]{43}=:$",
        description="With the last part: the SHA-256 of the whole (RFC 9530).",
    ),
]
PART_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, summary="Begin an upload")
def begin_upload(
    body: NewUpload, person: SignedIn, process: ProcessDep, response: Response
) -> UploadView:
    """Announce a file, or find the one that was broken off: the one with the same fingerprint.

    The room for all of it is checked, and reserved, before the first byte.
    """
    found = process.transact(resumable.begin_upload, process, person, body)
    response.headers.update({"Location": f"/v1/uploads/{found.id}", **_headers(found)})
    return found


@router.get("", summary="List unfinished uploads")
def list_uploads(person: SignedIn, process: ProcessDep) -> Page[UploadView]:
    """Return your uploads that nothing has been made of yet, newest first."""
    with process.read() as session:
        return Page[UploadView](data=resumable.list_uploads(session, person))


@router.head("/{upload_id}", status_code=204, summary="Offset of an upload")
def get_offset(upload_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Return in the headers how far an upload is: Upload-Offset, -Length and -Complete."""
    with process.read() as session:
        found = resumable.view(resumable.find_upload(session, upload_id, person))
    return Response(status_code=204, headers={**_headers(found), "Cache-Control": "no-store"})


@router.patch(
    "/{upload_id}", status_code=204, summary="Send a part of an upload", openapi_extra=PART_BODY
)
async def send_part(
    request: Request,
    upload_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    offset: Offset,
    is_complete: Complete = "?0",
    digest: Digest = None,
) -> Response:
    """Append bytes that begin at the upload's offset. What has arrived when a connection breaks
    is kept.

    A mistake in the content is refused with its line, and ends the upload. Of an upload whose last
    part was sent, a dataset, model or archive can be made.
    """
    try:
        found = await _take_part(request, process, person, upload_id, offset)
        if is_complete == "?1":
            found = await anyio.to_thread.run_sync(_complete, process, person, upload_id, digest)
    except (BadRequest, Conflict) as error:
        await _drain(request)
        return await anyio.to_thread.run_sync(_refusal, process, person, upload_id, error)
    return Response(status_code=204, headers=_headers(found))


@router.delete("/{upload_id}", status_code=204, summary="Delete an upload")
def delete_upload(upload_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete an unfinished upload with the bytes that have arrived."""
    with process.read() as session:
        resumable.find_upload(session, upload_id, person)
    _drop(process, upload_id)
    return Response(status_code=204)


async def _take_part(
    request: Request, process: Process, person: Person, upload_id: str, offset: int
) -> UploadView:
    """Write the body behind what is there. Raises BadRequest, and Conflict for a wrong offset."""
    await anyio.to_thread.run_sync(_find, process, person, upload_id)
    arrivals = process.service(Arrivals)
    with arrivals.locked(upload_id) as descriptor:
        upload = await anyio.to_thread.run_sync(_find, process, person, upload_id)
        _require_fits(request, upload, offset)
        arrival = await anyio.to_thread.run_sync(
            arrivals.resume, upload_id, descriptor, offset, upload.format
        )
        try:
            await _write(request, descriptor, arrival, upload.size)
        except BadRequest:
            await anyio.to_thread.run_sync(_drop, process, upload_id)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(
                    _save, process, upload_id, descriptor, offset, arrival
                )
    return await anyio.to_thread.run_sync(lambda: resumable.view(_find(process, person, upload_id)))


def _require_fits(request: Request, upload: Upload, offset: int) -> None:
    if upload.sha256 is not None and offset == upload.size:
        return  # the answer to its last part was lost
    if offset != upload.received:
        raise Conflict(
            f"Upload-Offset: {upload.received:,} bytes are here, the part begins at {offset:,}.",
            code="wrong_offset",
            param="Upload-Offset",
        )
    promised = request.headers.get("content-length", "")
    if promised.isdigit() and offset + int(promised) > upload.size:
        raise _too_long(upload.size)


async def _write(request: Request, descriptor: int, arrival: Arrival, size: int) -> None:
    pending = bytearray()
    stream = aiter(request.stream())
    is_open = True
    while is_open:
        try:
            with anyio.fail_after(SILENT_S):
                pending += await anext(stream)
        except (StopAsyncIteration, ClientDisconnect, TimeoutError):
            is_open = False
        if arrival.received + len(pending) > size:
            raise _too_long(size)
        if pending and (len(pending) >= PIECE or not is_open):
            await anyio.to_thread.run_sync(_write_piece, descriptor, arrival, bytes(pending))
            pending.clear()


def _write_piece(descriptor: int, arrival: Arrival, piece: bytes) -> None:
    arrival.take(piece)
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _save(process: Process, upload_id: str, descriptor: int, offset: int, arrival: Arrival) -> None:
    """Record what has arrived, once it is safe on the disk."""
    arrivals = process.service(Arrivals)
    if not arrivals.path(upload_id).exists():
        return  # refused, or deleted meanwhile
    os.fsync(descriptor)
    process.transact(resumable.advance, upload_id, before=offset, received=arrival.received)
    arrivals.remember(upload_id, arrival)


def _complete(process: Process, person: Person, upload_id: str, digest: str | None) -> UploadView:
    """Check the whole of an upload. Raises BadRequest, after which it is gone, or if it has a
    gap."""
    arrivals = process.service(Arrivals)
    with arrivals.locked(upload_id) as descriptor:
        upload = _find(process, person, upload_id)
        if upload.received < upload.size:
            raise Conflict(
                f"Upload-Complete: {upload.size - upload.received:,} of {upload.size:,} bytes are "
                "missing.",
                code="upload_incomplete",
                param="Upload-Complete",
            )
        if upload.sha256 is None:
            arrival = arrivals.resume(upload_id, descriptor, upload.size, upload.format)
            try:
                report = _report(process, upload, arrival)
                _require_same(arrival.hash.hexdigest(), digest, upload.size)
            except BadRequest:
                _drop(process, upload_id)
                raise
            sha256 = arrival.hash.hexdigest()
            process.transact(resumable.complete, upload_id, sha256=sha256, report=report)
    return resumable.view(_find(process, person, upload_id))


def _report(process: Process, upload: Upload, arrival: Arrival) -> Document | None:
    if upload.format == "npz":
        path = process.service(Arrivals).path(upload.id)
        return images_report(path, max_bytes=process.settings.max_images_bytes)
    if upload.format in TABLES:
        return tables_report(process.service(Arrivals).path(upload.id), upload.format)
    return arrival.finish()


def _require_same(found: str, digest: str | None, size: int) -> None:
    if digest is None:
        return
    try:
        told = base64.b64decode(digest.removeprefix("sha-256=:").removesuffix(":")).hex()
    except binascii.Error as error:
        raise BadRequest("Repr-Digest: this is not base64.", param="Repr-Digest") from error
    if told != found:
        raise BadRequest(
            f"Repr-Digest: the {size:,} bytes here have the SHA-256 {found}, the file has {told}. "
            "It changed while it was sent. Send it again.",
            code="hash_mismatch",
            param="Repr-Digest",
        )


def _find(process: Process, person: Person, upload_id: str) -> Upload:
    with process.read() as session:
        return resumable.find_upload(session, upload_id, person)


def _drop(process: Process, upload_id: str) -> None:
    process.transact(resumable.delete_upload, upload_id)
    process.service(Arrivals).remove(upload_id)


async def _drain(request: Request) -> None:
    """Read the rest of a refused body: who is still sending would not see the answer."""
    read = 0
    try:
        async for piece in request.stream():
            read += len(piece)
            if read > MOST_UNREAD:
                return
    except (ClientDisconnect, RuntimeError):  # gone, or read to its end before
        return


def _refusal(process: Process, person: Person, upload_id: str, error: ServiceError) -> Response:
    """Return the refusal with the offset at which the upload can go on, if it still can."""
    headers = {}
    with suppress(ServiceError):
        headers = _headers(resumable.view(_find(process, person, upload_id)))
    return problem_response(service_problem(error), headers)


def _headers(upload: UploadView) -> dict[str, str]:
    return {
        "Upload-Offset": str(upload.received),
        "Upload-Length": str(upload.size),
        "Upload-Complete": "?0" if upload.sha256 is None else "?1",
    }


def _too_long(size: int) -> BadRequest:
    return BadRequest(
        f"The part goes beyond the {size:,} bytes that were announced.",
        code="too_long",
        param="body",
    )
