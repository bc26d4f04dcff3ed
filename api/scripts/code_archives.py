"""/v1/code: the code of scripts, uploaded once by content. It is looked through, never unpacked."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request
from fastapi.responses import FileResponse

from api.auth import SignedIn
from api.files import store as storage
from api.files.store import IncomingFile
from api.files.uploads import receive
from api.identity import Person
from api.jobs.job_views import find_job
from api.process import Process, ProcessDep
from api.scripts.script_schemas import CodeView
from api.text_types import PlainText
from core.clock import utc_now
from core.code_archive import BadArchive, Listing, check
from core.errors import BadRequest, NotFound
from core.script import MAX_ARCHIVE_BYTES
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
    """A zip archive of plain files as the raw body. Sending the same twice is harmless: it is
    known by its SHA-256, which a job's `script.code` names."""
    with process.store.incoming_file() as incoming:
        await receive(request, incoming, max_bytes=MAX_ARCHIVE_BYTES)
        return await anyio.to_thread.run_sync(_keep, process, person, incoming)


@router.get("/v1/code/{sha256}", summary="One archive of code")
def get_code(sha256: Sha256, person: SignedIn, process: ProcessDep) -> CodeView:
    """What is in an archive that you have uploaded."""
    with process.read() as session:
        archive = session.get(CodeArchive, (person.id, sha256))
        if archive is None:
            raise NotFound(f"You have uploaded no code {sha256}.")
        return CodeView.model_validate(archive)


@router.get("/v1/jobs/{job_id}/code", summary="The code a job runs", response_class=FileResponse)
def download_code(job_id: PlainText, person: SignedIn, process: ProcessDep) -> FileResponse:
    """The archive, as it was uploaded."""
    with process.read() as session:
        job = find_job(session, job_id, person)
    if job.code_sha256 is None:
        raise NotFound(f"{job.name} trains by a recipe and has no code of its own.")
    return FileResponse(
        process.store.open_path(job.code_sha256),
        media_type="application/zip",
        headers={"Content-Disposition": f"attachment; filename=code-{job.code_sha256[:12]}.zip"},
    )


def _keep(process: Process, person: Person, incoming: IncomingFile) -> CodeView:
    listing = _checked(incoming)
    kept = incoming.seal()
    with process.write() as (session, _):
        storage.keep(session, incoming)
        archive = session.get(CodeArchive, (person.id, kept.sha256))
        if archive is None:
            archive = CodeArchive(
                user_id=person.id,
                sha256=kept.sha256,
                size=kept.size,
                paths=list(listing.paths),
                unpacked_size=listing.unpacked_size,
                created_at=utc_now(),
            )
            session.add(archive)
            session.flush()
        return CodeView.model_validate(archive)


def _checked(incoming: IncomingFile) -> Listing:
    try:
        return check(incoming.written())
    except BadArchive as error:
        raise BadRequest(
            f"The archive is refused: {error}. `trainyard submit --script` packs one that is "
            "taken.",
            code="bad_archive",
        ) from error
