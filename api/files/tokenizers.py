"""Tokenizers that people have uploaded, or that a job has made."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files import resumable
from api.files import store as storage
from api.files.owned import all_readable, find_owned, show_readable
from api.files.schemas import ModelFile, NewTokenizer, TokenizerOfJob, TokenizerView
from api.files.store import Store
from api.files.tokenizer_check import vocabulary_size
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from api.web.sharing import end_sharing, require_readable_job
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict
from core.base.ids import IdKind, new_id
from core.tables.files import Artifact, StoredFile, Tokenizer
from core.tables.jobs import Job
from core.tables.kinds import SharedKind
from core.wire.messages import FileRef
from strategies.plan.hugging_face.hf_config import TOKENIZER, TOKENIZER_FILES


def list_tokenizers(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[TokenizerView]:
    """Return a page of the tokenizers that a person may read, newest first."""
    query = all_readable(session, Tokenizer, person)
    rows = page(session, query, Tokenizer.id, after=after, limit=limit)
    return Page[TokenizerView](data=[view(*row) for row in rows], has_more=rows.has_more)


def show_tokenizer(session: Session, tokenizer_id: str, person: Person) -> TokenizerView:
    """Return a tokenizer that a person may read. Raises NotFound."""
    return view(*show_readable(session, Tokenizer, person, tokenizer_id))


def delete_tokenizer(session: Session, _: Bells, tokenizer_id: str, person: Person) -> None:
    """Mark a tokenizer as deleted, so that its name is free. Raises NotFound."""
    found = find_owned(session, Tokenizer, person, tokenizer_id)
    end_sharing(session, SharedKind.TOKENIZER, found.id)
    found.deleted_at = utc_now()
    found.name = f"{found.name} (deleted {found.id})"


def make_tokenizer(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewTokenizer,
    sent: KeyedRequest,
) -> TokenizerView:
    """Insert a tokenizer made of uploads, once for each key. Raises Conflict, BadRequest."""
    made = sent.begin(session)
    if made is None:
        arrived = resumable.arrived(session, process, person, asked.uploads, param="uploads")
        size = vocabulary_size({file.upload.path: file.written() for file in arrived})
        storage.keep(session, *arrived)
        files = {
            file.upload.path: FileRef(
                path=file.upload.path, sha256=file.sealed.sha256, size=file.sealed.size
            )
            for file in arrived
        }
        made = _insert(session, person, asked.name, files, size, job_id=None)
        for file in arrived:
            session.delete(file.upload)
        sent.remember(session, made)
    session.flush()
    return view(session.get_one(Tokenizer, made), person.name)


def take_from_job(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: TokenizerOfJob,
    sent: KeyedRequest,
) -> TokenizerView:
    """Insert a tokenizer made of a job's artifacts, once for each key; nothing is copied.

    Raises NotFound, BadRequest, Conflict.
    """
    made = sent.begin(session)
    if made is None:
        job = require_readable_job(session, asked.job, person.id)
        files = _of_job(session, job)
        store = process.service(Store)
        size = vocabulary_size({name: store.open_path(file.sha256) for name, file in files.items()})
        session.execute(  # so that no sweep takes them, even if the artifacts go now
            update(StoredFile)
            .where(StoredFile.sha256.in_([file.sha256 for file in files.values()]))
            .values(named_at=utc_now())
        )
        made = _insert(session, person, asked.name, files, size, job_id=job.id)
        sent.remember(session, made)
    session.flush()
    return view(session.get_one(Tokenizer, made), person.name)


def _of_job(session: Session, job: Job) -> Mapping[str, FileRef]:
    """Return the tokenizer's files among the artifacts of a job's last attempt that has some."""
    rows = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.epoch.desc())
    ).all()
    newest = next((row for row in rows if PurePosixPath(row.path).name == TOKENIZER), None)
    if newest is None:
        raise BadRequest(
            f"job: {job.name} has left no {TOKENIZER}.", code="not_a_tokenizer", param="job"
        )
    folder = PurePosixPath(newest.path).parent
    return {
        path.name: FileRef(path=path.name, sha256=row.sha256, size=row.size)
        for row in rows
        for path in [PurePosixPath(row.path)]
        if row.epoch == newest.epoch and path.parent == folder and path.name in TOKENIZER_FILES
    }


def _insert(
    session: Session,
    person: Person,
    name: str,
    files: Mapping[str, FileRef],
    size: int,
    *,
    job_id: str | None,
) -> str:
    taken = select(Tokenizer.id).where(Tokenizer.user_id == person.id, Tokenizer.name == name)
    if (found := session.scalar(taken)) is not None:
        raise Conflict(
            f"name: you already have a tokenizer {name} ({found}). Delete it, or choose another "
            "name.",
            code="name_taken",
            param="name",
        )
    tokenizer = Tokenizer(
        id=new_id(IdKind.TOKENIZER),
        user_id=person.id,
        name=name,
        size=sum(file.size for file in files.values()),
        files=[files[path].model_dump(mode="json") for path in sorted(files)],
        vocabulary_size=size,
        job_id=job_id,
        created_at=utc_now(),
    )
    session.add(tokenizer)
    return tokenizer.id


def view(tokenizer: Tokenizer, owner: str) -> TokenizerView:
    """Return the view of a tokenizer."""
    return TokenizerView(
        id=tokenizer.id,
        name=tokenizer.name,
        owner=owner,
        vocabulary_size=tokenizer.vocabulary_size,
        size=tokenizer.size,
        files=[ModelFile.model_validate(file) for file in tokenizer.files],
        job=tokenizer.job_id,
        created_at=tokenizer.created_at,
    )
