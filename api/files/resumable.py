"""Uploads that can be broken off: a row says how much is safe, a file has the bytes.

A part is taken by the request that holds the file's lock and begins at `received`; the row moves
on only from there, so a request that was thought dead changes nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from api.files.arrival import Arrivals
from api.files.schemas import NewUpload, UploadView
from api.files.storage_use import require_room
from api.files.store import Store, StoreEntry
from api.web.bells import Bells
from api.web.errors import too_large
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict, NotFound, TooMany
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.leases.situation import lock_user
from core.process import read_only
from core.process.settings import ApiSettings
from core.tables.base import Document
from core.tables.files import Upload

ABANDONED = timedelta(days=3)  # since the last bytes: a weekend without a network
MOST_OPEN = 2000  # of one person: the shards of a dataset are an upload each


@dataclass(frozen=True)
class ArrivedFile:
    """A whole upload, ready to be kept in the store."""

    store: Store
    upload: Upload
    aside: Path
    """Path at which it has arrived."""

    @property
    def sealed(self) -> StoreEntry:
        """Hash and size of its bytes."""
        assert self.upload.sha256 is not None
        return StoreEntry(self.upload.sha256, self.upload.size)

    def written(self) -> Path:
        """Return where its bytes are: a move may have come before a failed commit."""
        return self.aside if self.aside.exists() else self.store.path(self.sealed.sha256)

    def move(self) -> Path:
        """Move it to its place; return the folder, which the caller has to sync."""
        target = self.store.path(self.sealed.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        if self.aside.exists() or not target.exists():
            os.replace(self.aside, target)
        return target.parent


def begin_upload(
    session: Session, _: Bells, process: Process, person: Person, asked: NewUpload
) -> UploadView:
    """Insert an upload, or find the one of the same mark that was broken off.

    Raises TooLarge, TooMany, and StorageFull if there is no room for all of it.
    """
    lock_user(session, person.id)
    found = session.scalars(
        select(Upload).where(Upload.user_id == person.id, Upload.fingerprint == asked.fingerprint)
    ).one_or_none()
    if found is not None:
        if (found.size, found.format) != (asked.size, asked.format):
            raise Conflict(
                f"fingerprint: {found.id} has it, with {found.size:,} bytes of {found.format}. Use "
                "another mark for another file.",
                param="fingerprint",
            )
        found.path = asked.path
        return view(found)
    cap = most_bytes(process.settings, asked.format)
    if asked.size > cap:
        raise too_large(asked.size, cap)
    of_person = select(func.count()).select_from(Upload).where(Upload.user_id == person.id)
    if (session.scalar(of_person) or 0) >= MOST_OPEN:
        raise TooMany(
            f"You have {MOST_OPEN:,} unfinished uploads. `trainyard uploads list` shows them."
        )
    require_room(session, process.settings, person.id, adding=asked.size)
    now = utc_now()
    upload = Upload(
        id=new_id(IdKind.UPLOAD),
        user_id=person.id,
        received=0,
        touched_at=now,
        created_at=now,
        **asked.model_dump(),
    )
    process.service(Arrivals).begin(upload.id)
    session.add(upload)
    session.flush()
    return view(upload)


def most_bytes(settings: ApiSettings, format: str) -> int:
    """Return the cap of an upload of this format."""
    if format == "npz":
        return min(settings.max_dataset_bytes, settings.max_images_bytes)
    return settings.max_model_bytes if format == "file" else settings.max_dataset_bytes


def list_uploads(session: Session, person: Person) -> list[UploadView]:
    """Return a person's unfinished uploads, newest first."""
    query = select(Upload).where(Upload.user_id == person.id).order_by(Upload.id.desc())
    return [view(upload) for upload in session.scalars(query)]


def find_upload(session: Session, upload_id: str, person: Person) -> Upload:
    """Return an upload. Raises NotFound, also for somebody else's."""
    upload = session.get(Upload, upload_id)
    if upload is None or upload.user_id != person.id:
        raise NotFound(
            f"You have no unfinished upload {upload_id!r}. It may have been finished, deleted, or "
            f"left alone for {ABANDONED.days} days. Begin it again."
        )
    return upload


def advance(session: Session, _: Bells, upload_id: str, *, before: int, received: int) -> None:
    """Record that the first `received` bytes are safe. Raises Conflict if another request did."""
    moved = session.scalar(
        update(Upload)
        .where(Upload.id == upload_id, Upload.received == before)
        .values(received=received, touched_at=utc_now())
        .returning(Upload.id)
    )
    if moved is None:
        raise Conflict("Another request has continued this upload.", code="upload_busy")


def complete(
    session: Session, _: Bells, upload_id: str, *, sha256: str, report: Document | None
) -> None:
    """Record that an upload is whole and has passed its check."""
    session.execute(
        update(Upload).where(Upload.id == upload_id).values(sha256=sha256, report=report)
    )


def delete_upload(session: Session, _: Bells, upload_id: str) -> None:
    """Delete the row of an upload; the caller removes its bytes afterwards."""
    session.execute(delete(Upload).where(Upload.id == upload_id))


def arrived(
    session: Session, process: Process, person: Person, ids: Sequence[str], *, param: str
) -> list[ArrivedFile]:
    """Return whole uploads, in this order. Raises NotFound, BadRequest for one with a gap."""
    arrivals, store = process.service(Arrivals), process.service(Store)
    files = []
    for number, upload_id in enumerate(ids):
        upload = find_upload(session, upload_id, person)
        if upload.sha256 is None:
            raise BadRequest(
                f"{param}.{number}: {upload.path} is not complete: {upload.received:,} of "
                f"{upload.size:,} bytes have arrived. Send the rest.",
                code="upload_incomplete",
                param=f"{param}.{number}",
            )
        files.append(ArrivedFile(store, upload, arrivals.path(upload_id)))
    return files


def forget_abandoned(database: Database, arrivals: Arrivals, now: datetime) -> None:
    """Delete uploads without new bytes for ABANDONED, and files that no row names."""
    with database.write() as session:
        if read_only.state(session, now=now) is not None:
            return
        session.execute(delete(Upload).where(Upload.touched_at < now - ABANDONED))
    if not arrivals.folder.is_dir():
        return
    on_disk = {path.name for path in arrivals.folder.iterdir()}  # before the rows: none is too new
    with database.read() as session:
        known = set(session.scalars(select(Upload.id)))
    for upload_id in on_disk - known:
        arrivals.remove(upload_id)


def view(upload: Upload) -> UploadView:
    """Return the view of an upload."""
    return UploadView.model_validate(upload)
