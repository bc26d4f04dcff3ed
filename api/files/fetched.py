"""Models and datasets made of what a job has fetched from the hub; nothing is copied.

The job's program leaves hub.json beside the files: which repository, and at which commit. Its owner
ran that program, so the origin is as true as its owner.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.models import insert_model, model_view, supersede
from api.files.promotion import check_stored, keep_stored
from api.files.schemas import ModelView, NewFetched
from api.files.storage_use import require_room
from api.files.store import Store, StoreEntry
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.process import Process
from core.base.errors import BadRequest, NotFound
from core.tables.base import Document
from core.tables.files import Artifact, Model
from core.tables.jobs import Job
from core.wire.messages import FileRef, RelativePath

RECORD = "hub.json"
MAX_RECORD_BYTES = 4 << 20
MAX_FILES = 2000  # as many as a node keeps of an output


class HubRecord(BaseModel):
    """Content of hub.json."""

    kind: Literal["model", "dataset"]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,199}$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    files: Annotated[list[RelativePath], Field(min_length=1, max_length=MAX_FILES)]


class Fetched(BaseModel):
    """Files that a job has fetched, by their paths in the repository."""

    origin: Document
    files: dict[str, FileRef]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def take_model(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewFetched,
    sent: KeyedRequest,
) -> ModelView:
    """Insert a model made of fetched files, once for each key.

    Raises NotFound, BadRequest, StorageFull.
    """
    model_id = sent.begin(session)
    if model_id is None:
        store = process.service(Store)
        fetched = fetched_files(session, store, person, asked.job, kind="model")
        require_room(session, process.settings, person.id, adding=fetched.size)
        check = check_stored(store, fetched.files)
        keep_stored(session, fetched.files)
        version = supersede(session, person, asked.name)
        entries = [(path, StoreEntry(one.sha256, one.size)) for path, one in fetched.files.items()]
        model_id = insert_model(
            session, person, check, entries, asked.name, version=version, origin=fetched.origin
        )
        sent.remember(session, model_id)
    session.flush()
    return model_view(session, session.get_one(Model, model_id))


def fetched_files(
    session: Session, store: Store, person: Person, job_id: str, *, kind: str
) -> Fetched:
    """Return what a job's last attempt with a record has fetched.

    Raises NotFound for a job that is not the person's, BadRequest if it has fetched nothing of this
    kind, or not all of it has arrived.
    """
    job = session.get(Job, job_id)
    if job is None or job.user_id != person.id:
        raise NotFound(f"You have no job {job_id!r}.", param="job")
    rows = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.epoch.desc())
    ).all()
    newest = next((row for row in rows if row.path == RECORD), None)
    if newest is None:
        raise _refusal(f"{job.name} has left no {RECORD}, so it has fetched nothing from the hub.")
    record = _read(store, newest, job)
    if record.kind != kind:
        raise _refusal(f"{job.name} has fetched a {record.kind}, not a {kind}.")
    here: Mapping[str, Artifact] = {row.path: row for row in rows if row.epoch == newest.epoch}
    missing = [path for path in record.files if path not in here]
    if missing:
        raise _refusal(
            f"{len(missing):,} of the {len(record.files):,} files that {job.name} has fetched have "
            f"not arrived, such as {missing[0]}."
        )
    files = {
        path: FileRef(path=path, sha256=here[path].sha256, size=here[path].size)
        for path in sorted(set(record.files))
    }
    hub = f"{record.repository}@{record.commit}"
    origin: Document = {"job": job.id, "step": None, "epoch": newest.epoch, "hub": hub}
    return Fetched(origin=origin, files=files)


def _read(store: Store, row: Artifact, job: Job) -> HubRecord:
    """Return the record that a job has left. Raises BadRequest if it is not one."""
    if row.size > MAX_RECORD_BYTES:
        raise _refusal(f"{RECORD} of {job.name} has {row.size:,} bytes; the limit is 4 MiB.")
    try:
        return HubRecord.model_validate_json(store.open_path(row.sha256).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or RECORD
        raise _refusal(
            f"{RECORD} of {job.name} is not a record of the hub: {field}: {first['msg']}."
        ) from error


def _refusal(message: str) -> BadRequest:
    return BadRequest(f"job: {message}", code="not_fetched", param="job")
