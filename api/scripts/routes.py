"""/v1/code: the code of scripts, kept once by content. It is checked here, but never unpacked."""

from collections.abc import Collection
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.storage_use import require_room
from api.files.store import IncomingFile, Store
from api.files.uploads import receive
from api.jobs.job_views import find_job
from api.scripts.schemas import CodeLine, CodeView
from api.web.auth import SignedIn
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, NotFound
from core.base.words import in_words
from core.leases.situation import lock_user
from core.spec.code_archive import BadArchive, Listing, check
from core.spec.script import MAX_ARCHIVE_BYTES
from core.states import TERMINAL_JOB
from core.tables.jobs import Job
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


@router.get("/v1/code/{sha256}", summary="Get an archive of code")
def get_code(sha256: Sha256, person: SignedIn, process: ProcessDep) -> CodeView:
    """Return the size and the file paths of an archive that you have uploaded."""
    with process.read() as session:
        archive = session.get(CodeArchive, (person.id, sha256))
        if archive is None:
            raise NotFound(f"You have uploaded no code {sha256}.")
        return CodeView.model_validate(archive)


@router.get("/v1/code", summary="List code")
def list_code(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[CodeLine]:
    """Return your archives sorted by SHA-256, each with the unfinished jobs that need it."""
    query = select(CodeArchive).where(CodeArchive.user_id == person.id)
    with process.read() as session:
        rows = page(session, query, CodeArchive.sha256, after=after, limit=limit, rising=True)
        needed = _jobs_in_need(session, person.id, [row.sha256 for (row,) in rows])
    data = [
        CodeLine(
            sha256=row.sha256,
            size=row.size,
            files=len(row.paths),
            jobs=needed.get(row.sha256, []),
            created_at=row.created_at,
        )
        for (row,) in rows
    ]
    return Page[CodeLine](data=data, has_more=rows.has_more)


@router.delete("/v1/code/{sha256}", status_code=204, summary="Delete code")
def delete_code(sha256: Sha256, person: SignedIn, process: ProcessDep) -> Response:
    """Delete an archive. Refused while a job that has not ended needs it.

    Jobs of this code that have ended can't be submitted again by cloning.
    """
    with process.write() as (session, _):
        lock_user(session, person.id)
        archive = session.get(CodeArchive, (person.id, sha256))
        if archive is None:
            raise NotFound(f"You have uploaded no code {sha256}.")
        needed = _jobs_in_need(session, person.id, [sha256]).get(sha256)
        if needed:
            raise Conflict(
                f"Jobs that have not ended need this code: {in_words(needed)}. Cancel them, "
                "or wait for their end.",
                code="code_in_use",
            )
        session.delete(archive)
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
    listing = _checked(incoming)
    kept = incoming.seal()
    with process.write() as (session, _):
        lock_user(session, person.id)
        archive = session.get(CodeArchive, (person.id, kept.sha256))
        if archive is None:
            require_room(session, process.settings, person.id, adding=kept.size)
        storage.keep(session, incoming)
        if archive is None:
            archive = CodeArchive(
                user_id=person.id,
                sha256=kept.sha256,
                size=kept.size,
                paths=list(listing.paths),
                unpacked_size=listing.unpacked_size,
            )
            session.add(archive)
        archive.created_at = utc_now()  # retention counts from the last upload
        session.flush()
        return CodeView.model_validate(archive)


def _jobs_in_need(
    session: Session, user_id: str, archives: Collection[str]
) -> dict[str, list[str]]:
    """Return ids of the person's jobs that have not ended, by the archive that they need."""
    rows = session.execute(
        select(Job.code_sha256, Job.id)
        .where(
            Job.user_id == user_id,
            Job.code_sha256.in_(archives),
            Job.state.not_in(TERMINAL_JOB),
        )
        .order_by(Job.id)
    )
    found: dict[str, list[str]] = {}
    for sha256, job_id in rows:
        found.setdefault(str(sha256), []).append(job_id)
    return found


def _checked(incoming: IncomingFile) -> Listing:
    try:
        return check(incoming.written())
    except BadArchive as error:
        raise BadRequest(
            f"The archive was refused: {error}. `trainyard submit --script` packs a valid one.",
            code="bad_archive",
        ) from error
