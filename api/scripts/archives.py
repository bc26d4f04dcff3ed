"""Code of scripts that people have uploaded."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files import resumable
from api.files import store as storage
from api.files.retention import code_of_templates
from api.files.schemas import NewCode
from api.files.storage_use import require_room
from api.files.store import SealedFile, StoreEntry
from api.scripts.schemas import CodeLine, CodeView
from api.web.bells import Bells
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound
from core.base.words import in_words
from core.leases.situation import lock_user
from core.spec.code_archive import ArchiveListing
from core.states import TERMINAL_JOB
from core.tables.jobs import Job
from core.tables.scripts import CodeArchive


def show_code(session: Session, sha256: str, person: Person) -> CodeView:
    """Return an archive of this person. Raises NotFound."""
    archive = session.get(CodeArchive, (person.id, sha256))
    if archive is None:
        raise NotFound(f"You have uploaded no code {sha256}.")
    return CodeView.model_validate(archive)


def list_code(session: Session, person: Person, *, limit: int, after: str | None) -> Page[CodeLine]:
    """Return a page of a person's archives by SHA-256, each with unfinished jobs that need it."""
    query = select(CodeArchive).where(CodeArchive.user_id == person.id)
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


def delete_code(session: Session, _: Bells, sha256: str, person: Person) -> None:
    """Delete an archive. Raises NotFound, and Conflict while a job needs it."""
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
    if sha256 in code_of_templates(session):
        raise Conflict(
            "A template starts this code. Delete the template first, or keep it with other code.",
            code="code_in_use",
        )
    session.delete(archive)


def keep_code(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    incoming: SealedFile,
    *,
    kept: StoreEntry,
    listing: ArchiveListing,
) -> CodeView:
    """Insert an archive, unless it is known, and keep its file. Raises StorageFull."""
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


def make_code(
    session: Session,
    bells: Bells,
    process: Process,
    person: Person,
    asked: NewCode,
    *,
    kept: StoreEntry,
    listing: ArchiveListing,
) -> CodeView:
    """Keep an archive that has arrived, and that was checked. Raises NotFound if it is gone."""
    (file,) = resumable.arrived(session, process, person, [asked.upload], param="upload")
    session.delete(file.upload)
    session.flush()  # its bytes count as code from here on
    return keep_code(session, bells, process, person, file, kept=kept, listing=listing)


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
