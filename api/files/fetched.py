"""Models and datasets made of what a job has fetched from the hub; nothing is copied.

The job's program leaves hub.json beside the files: which repository, and at which commit. Its owner
ran that program, so the origin is as true as its owner.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.files.dataset_check import DatasetCheck
from api.files.dataset_files import EXTENSIONS
from api.files.datasets import insert_dataset, joint_report, keep_listing, refuse_taken, view
from api.files.models import insert_model, model_view, supersede
from api.files.promotion import check_stored, keep_stored
from api.files.schemas import DatasetView, ModelView, NewFetchedFiles
from api.files.storage_use import require_room
from api.files.store import Store, StoreEntry
from api.files.table_check import tables_report
from api.web.bells import Bells
from api.web.errors import InvalidRequest
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.process import Process
from core.base.errors import BadRequest, NotFound
from core.tables.base import Document
from core.tables.files import Artifact, Dataset, Model
from core.tables.jobs import Job
from core.wire.messages import FileRef, RelativePath
from strategies.plan.data.compression import ENDINGS, BadCompression, compression_in, opened

RECORD = "hub.json"
MAX_RECORD_BYTES = 4 << 20
MAX_FILES = 2000  # as many as a node keeps of an output
FORMATS = {f".{ending}": format for format, ending in EXTENSIONS.items()} | {".ndjson": "jsonl"}
PACKED = tuple(ENDINGS.values())
MOST_TEXT = 64 << 20  # bytes checked within a request: some 2 s of JSON lines
MOST_TABLES = 4  # each is read by a process of its own, in some seconds
PIECE = 1 << 20


class HubRecord(BaseModel):
    """Content of hub.json."""

    kind: Literal["model", "dataset"]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,199}$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    files: Annotated[list[RelativePath], Field(min_length=1, max_length=MAX_FILES)]


@dataclass(frozen=True)
class FetchedFiles:
    """Files that a job has fetched, by their paths in the repository."""

    job: str
    epoch: int
    hub: str
    """Repository and commit, `owner/name@COMMIT`."""
    files: Mapping[str, FileRef]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def take_model(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewFetchedFiles,
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
        origin = {"job": fetched.job, "step": None, "epoch": fetched.epoch, "hub": fetched.hub}
        model_id = insert_model(
            session, person, check, entries, asked.name, version=version, origin=origin
        )
        sent.remember(session, model_id)
    session.flush()
    return model_view(session, session.get_one(Model, model_id), person)


@dataclass(frozen=True)
class CheckedDataset:
    """Files of a dataset that have passed their check."""

    fetched: FetchedFiles
    format: str
    report: Document


def check_dataset(process: Process, person: Person, asked: NewFetchedFiles) -> CheckedDataset:
    """Check fetched files as a dataset, before the transaction that inserts it.

    Raises NotFound, BadRequest or InvalidRequest, which name the file.
    """
    store = process.service(Store)
    with process.read() as session:
        fetched = fetched_files(session, store, person, asked.job, kind="dataset")
    formats = {_format_of(path) for path in fetched.files}
    if len(formats) > 1 or not formats <= {"text", "jsonl", "parquet", "arrow"}:
        raise _refusal(
            f"its files are {', '.join(sorted(formats))}. Make a dataset of files of one format: "
            "text, jsonl, parquet or arrow."
        )
    [format] = formats
    reports = list(_reports(store, fetched.files, format))
    report = joint_report(reports)
    num_files = len(fetched.files)
    if len(reports) < num_files:
        warning = f"The first {len(reports):,} of {num_files:,} files were checked."
        report["warnings"] = [warning, *report["warnings"]]
    if len(reports) < num_files or any(told["lines"] is None for _, told in reports):
        report |= {"lines": None, "characters": None}
    return CheckedDataset(fetched, format, report)


def take_dataset(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewFetchedFiles,
    checked: CheckedDataset,
    sent: KeyedRequest,
) -> DatasetView:
    """Insert a dataset made of fetched files, once for each key. Raises Conflict, StorageFull."""
    dataset_id = sent.begin(session)
    if dataset_id is None:
        fetched = checked.fetched
        refuse_taken(session, person, asked.name)
        require_room(session, process.settings, person.id, adding=fetched.size)
        keep_stored(session, fetched.files)
        files = [fetched.files[path] for path in sorted(fetched.files)]
        kept = StoreEntry(files[0].sha256, files[0].size)
        if len(files) > 1:
            kept = keep_listing(session, process.service(Store), files)
        dataset_id = insert_dataset(
            session,
            person,
            kept,
            checked.report,
            asked.name,
            checked.format,
            files=files if len(files) > 1 else None,
            origin={"job": fetched.job, "epoch": fetched.epoch, "hub": fetched.hub},
        )
        sent.remember(session, dataset_id)
    session.flush()
    return view(session.get_one(Dataset, dataset_id), person.name)


def _format_of(path: str) -> str:
    """Return the format that a file's name says, without its compression."""
    name = PurePosixPath(path)
    return FORMATS.get(
        name.with_suffix("").suffix if name.suffix in PACKED else name.suffix, "unknown"
    )


def _reports(
    store: Store, files: Mapping[str, FileRef], format: str
) -> Iterator[tuple[str, Document]]:
    """Yield the reports of the files that are checked within a request, in order."""
    left = MOST_TEXT
    for number, path in enumerate(sorted(files)):
        if (number == MOST_TABLES) if format in ("parquet", "arrow") else left <= 0:
            return
        stored = store.open_path(files[path].sha256)
        try:
            if format in ("parquet", "arrow"):
                yield path, tables_report(stored, format)
            else:
                report, read = _text_report(stored, is_jsonl=format == "jsonl", most=left)
                yield path, report
                left -= read
        except InvalidRequest as error:
            items = [
                item.model_copy(update={"message": f"{path}: {item.message}"})
                for item in error.items
            ]
            raise InvalidRequest(items, code=error.code) from error
        except BadRequest as error:
            raise BadRequest(f"{path}: {error}", code=error.code, param="job") from error


def _text_report(path: Path, *, is_jsonl: bool, most: int) -> tuple[Document, int]:
    """Return the report of a text, of which about `most` bytes are read, to the end of a line, and
    how many were."""
    check, read = DatasetCheck(is_jsonl=is_jsonl), 0
    try:
        with opened(path) as file:
            while read < most and (piece := file.read(min(PIECE, most - read))):
                check.feed(piece)
                read += len(piece)
            while not piece.endswith(b"\n") and (piece := file.readline(PIECE)):
                check.feed(piece)
                read += len(piece)
            is_whole = not file.read(1)
    except BadCompression as error:
        raise BadRequest(f"the file {error}", code="bad_compression") from error
    check.finish()
    report = {**check.report(), "compression": compression_in(path)}
    if not is_whole:
        warning = f"The first {check.lines:,} lines were checked."
        report |= {"lines": None, "characters": None, "warnings": [warning, *check.warnings]}
    return report, read


def fetched_files(
    session: Session, store: Store, person: Person, job_id: str, *, kind: str
) -> FetchedFiles:
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
    return FetchedFiles(job.id, newest.epoch, f"{record.repository}@{record.commit}", files)


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
