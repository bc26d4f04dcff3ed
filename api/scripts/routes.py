"""/v1/code: the code of scripts, kept once by content. It is checked here, but never unpacked."""

from pathlib import Path as FilePath
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from api.files import resumable
from api.files.schemas import NewCode
from api.files.store import IncomingFile, Store
from api.files.uploads import receive
from api.jobs.job_views import find_job
from api.scripts import archives
from api.scripts.schemas import CodeLine, CodeView
from api.web.auth import SignedIn
from api.web.errors import too_large
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.errors import BadRequest, NotFound
from core.spec.code_archive import ArchiveListing, BadArchive, check
from core.spec.script import MAX_ARCHIVE_BYTES
from core.tables.scripts import CodeArchive

router = APIRouter(tags=["scripts"])

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
ZIP_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/v1/code", status_code=201, summary="Upload code", openapi_extra=ZIP_BODY)
async def upload_code(request: Request, person: SignedIn, process: ProcessDep) -> CodeView:
    """Upload a zip archive of plain files as the raw body.

    Sending the same archive twice is harmless: it is known by its SHA-256, which a job's
    `script.code` names.
    """
    with process.service(Store).incoming_file() as incoming:
        await receive(request, incoming, max_bytes=MAX_ARCHIVE_BYTES)
        return await anyio.to_thread.run_sync(_keep, process, person, incoming)


@router.post("/v1/code/uploaded", status_code=201, summary="Keep an uploaded archive of code")
def make_code(body: NewCode, person: SignedIn, process: ProcessDep) -> CodeView:
    """Keep a zip archive that has arrived by `/v1/uploads`."""
    with process.read() as session:
        (file,) = resumable.arrived(session, process, person, [body.upload], param="upload")
    if file.upload.size > MAX_ARCHIVE_BYTES:
        raise too_large(file.upload.size, MAX_ARCHIVE_BYTES)
    listing = _checked(file.written())
    return process.transact(
        archives.make_code, process, person, body, kept=file.sealed, listing=listing
    )


@router.get("/v1/code/{sha256}", summary="Get an archive of code")
def get_code(sha256: Sha256, person: SignedIn, process: ProcessDep) -> CodeView:
    """Return the size and the file paths of an archive that you have uploaded."""
    with process.read() as session:
        return archives.show_code(session, sha256, person)


@router.get("/v1/code", summary="List code")
def list_code(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[CodeLine]:
    """Return your archives sorted by SHA-256, each with the unfinished jobs that need it."""
    with process.read() as session:
        return archives.list_code(session, person, limit=limit, after=after)


@router.delete("/v1/code/{sha256}", status_code=204, summary="Delete code")
def delete_code(sha256: Sha256, person: SignedIn, process: ProcessDep) -> Response:
    """Delete an archive. Refused while a job that has not ended needs it.

    Jobs of this code that have ended can't be submitted again by cloning.
    """
    process.transact(archives.delete_code, sha256, person)
    return Response(status_code=204)


@router.get(
    "/v1/jobs/{job_id}/code", summary="Download the code of a job", response_class=FileResponse
)
def download_code(job_id: PlainText, person: SignedIn, process: ProcessDep) -> FileResponse:
    """Return the archive of the code that a job runs, as it was uploaded."""
    with process.read() as session:
        job = find_job(session, job_id, person)
        if job.code_sha256 is None:
            raise NotFound(f"{job.name} trains by a recipe and has no code of its own.")
        if session.get(CodeArchive, (job.user_id, job.code_sha256)) is None:
            raise NotFound(f"The code of {job.name} was deleted.")
    return FileResponse(
        process.service(Store).open_path(job.code_sha256),
        media_type="application/zip",
        headers={"Content-Disposition": f"attachment; filename=code-{job.code_sha256[:12]}.zip"},
    )


def _keep(process: Process, person: Person, incoming: IncomingFile) -> CodeView:
    listing = _checked(incoming.written())
    kept = incoming.seal()
    return process.transact(
        archives.keep_code, process, person, incoming, kept=kept, listing=listing
    )


def _checked(archive: FilePath) -> ArchiveListing:
    try:
        return check(archive)
    except BadArchive as error:
        raise BadRequest(
            f"The archive was refused: {error}. `trainyard submit --script` packs a valid one.",
            code="bad_archive",
        ) from error
