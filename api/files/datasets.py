"""Datasets: those built in, and those that people have uploaded."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files import resumable
from api.files import store as storage
from api.files.dataset_check import MAX_ERRORS
from api.files.dataset_files import EXTENSIONS, files_of
from api.files.owned import all_readable, find_owned
from api.files.schemas import DatasetFile, DatasetImages, DatasetView, HubOrigin, NewDataset
from api.files.storage_use import require_room
from api.files.store import IncomingFile, Store, StoreEntry
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest, keyed
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from api.web.sharing import end_sharing
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict
from core.base.ids import IdKind, new_id
from core.spec.inputs import tree_listing
from core.tables.base import Document
from core.tables.files import Dataset, Upload
from core.tables.kinds import SharedKind
from core.wire.messages import FileRef
from strategies.plan.built_in import digits
from strategies.plan.built_in.datasets import BUILT_IN, DIGITS, prepare
from strategies.plan.data.compression import ENDINGS, Compression


def list_datasets(
    session: Session, person: Person, process: Process, *, limit: int, after: str | None
) -> Page[DatasetView]:
    """Return the built-in datasets, then a page of those that a person may read, newest first."""
    query = all_readable(session, Dataset, person)
    last = None if after in BUILT_IN else after
    rows = page(session, query, Dataset.id, after=last, limit=limit)
    built_in = [] if after else [built_in_view(process, name) for name in BUILT_IN]
    data = built_in + [view(dataset, owner) for dataset, owner in rows]
    return Page[DatasetView](data=data, has_more=rows.has_more)


def delete_dataset(
    session: Session, _: Bells, dataset_id: str, person: Person, *, now: datetime
) -> None:
    """Mark a dataset as deleted, so that its name is free. Raises NotFound."""
    dataset = find_owned(session, Dataset, person, dataset_id)
    end_sharing(session, SharedKind.DATASET, dataset.id)
    session.execute(
        update(Dataset)
        .where(Dataset.id == dataset.id)
        .values(deleted_at=now, name=f"{dataset.name} (deleted {dataset.id})")
    )


def keep_dataset(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    incoming: IncomingFile,
    report: Document,
    name: str,
    format: str,
    *,
    key: str | None,
    kept: StoreEntry,
) -> DatasetView:
    """Insert a dataset and keep its file, once for each key. Raises Conflict, StorageFull."""
    path = f"/v1/datasets?name={name}&format={format}"
    sent = keyed(person, key, path, kept.sha256.encode())
    dataset_id = sent.begin(session)
    if dataset_id is None:
        refuse_taken(session, person, name)
        require_room(session, process.settings, person.id, adding=kept.size)
        storage.keep(session, incoming)
        dataset_id = insert_dataset(session, person, kept, report, name, format)
        sent.remember(session, dataset_id)
    session.flush()
    dataset = session.get(Dataset, dataset_id)
    assert dataset is not None
    return view(dataset, person.name)


def make_dataset(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewDataset,
    sent: KeyedRequest,
) -> DatasetView:
    """Insert a dataset made of uploads, once for each key. Raises Conflict, BadRequest."""
    dataset_id = sent.begin(session)
    if dataset_id is None:
        refuse_taken(session, person, asked.name)
        arrived = resumable.arrived(session, process, person, asked.uploads, param="uploads")
        arrived.sort(key=lambda file: file.upload.path)
        format = _only_format([file.upload for file in arrived])
        report = joint_report([(file.upload.path, file.upload.report or {}) for file in arrived])
        storage.keep(session, *arrived)
        kept, files = arrived[0].sealed, None
        if len(arrived) > 1:
            files = [
                FileRef(path=file.upload.path, sha256=file.sealed.sha256, size=file.sealed.size)
                for file in arrived
            ]
            kept = keep_listing(session, process.service(Store), files)
        dataset_id = insert_dataset(session, person, kept, report, asked.name, format, files=files)
        for file in arrived:
            session.delete(file.upload)
        sent.remember(session, dataset_id)
    session.flush()
    return view(session.get_one(Dataset, dataset_id), person.name)


def require_free_name(process: Process, person: Person, name: str, key: str | None) -> None:
    """Raise Conflict for a name that is taken, StorageFull if there is no room. A request with a
    key may be a repeated one and is let through."""
    if name in BUILT_IN:
        raise Conflict(f"name: {name} is built in. Choose another name.", param="name")
    if key is not None:
        return  # it may be a repeated request: its own dataset has the name
    with process.read() as session:
        refuse_taken(session, person, name)
        require_room(session, process.settings, person.id)


def refuse_taken(session: Session, person: Person, name: str) -> None:
    """Raise Conflict for a name that is taken or built in."""
    if name in BUILT_IN:
        raise Conflict(f"name: {name} is built in. Choose another name.", param="name")
    taken = session.scalar(
        select(Dataset.id).where(Dataset.user_id == person.id, Dataset.name == name)
    )
    if taken is not None:
        raise Conflict(
            f"name: you already have a dataset {name} ({taken}). Delete it, or choose another "
            "name.",
            code="name_taken",
            param="name",
        )


def _only_format(uploads: Sequence[Upload]) -> str:
    """Return the format of all files of a dataset. Raises BadRequest for several."""
    first = uploads[0]
    for upload in uploads:
        if upload.report is None:
            raise BadRequest(
                f"uploads: {upload.path} was sent as a file without a format. Send it as one of "
                f"{', '.join(EXTENSIONS)}.",
                param="uploads",
            )
        if upload.format != first.format:
            raise BadRequest(
                f"uploads: {first.path} is {first.format}, {upload.path} is {upload.format}. Make "
                "a dataset of files of one format.",
                code="several_formats",
                param="uploads",
            )
        _require_ending(upload, upload.report.get("compression"))
    if first.format == "npz" and len(uploads) > 1:
        raise BadRequest(
            f"uploads: {len(uploads)} archives of images; a dataset of images has one.",
            param="uploads",
        )
    paths = Counter(upload.path for upload in uploads)
    twice = next((path for path, count in paths.items() if count > 1), None)
    if twice is not None:
        raise BadRequest(f"uploads: {twice} is there twice. Send each file once.", param="uploads")
    return first.format


def _require_ending(upload: Upload, compression: Compression | None) -> None:
    """Refuse a path that says another compression than the file has: programs go by it."""
    said = next((one for one, ending in ENDINGS.items() if upload.path.endswith(ending)), None)
    if said == compression or upload.format not in ("text", "jsonl"):
        return
    ending = "no such ending" if compression is None else f"the ending {ENDINGS[compression]}"
    raise BadRequest(
        f"uploads: {upload.path} is {compression or 'not compressed'}. Give it {ending}.",
        code="wrong_ending",
        param="uploads",
    )


def joint_report(reports: Sequence[tuple[str, Document]]) -> Document:
    """Return the report of all files: counts as sums, the first warnings with their files."""
    if len(reports) == 1:
        return reports[0][1]
    warnings = [f"{path}: {warning}" for path, told in reports for warning in told["warnings"]]
    counts = {name: sum(told[name] or 0 for _, told in reports) for name in ("lines", "characters")}
    return {**counts, "warnings": warnings[:MAX_ERRORS]}


def keep_listing(session: Session, store: Store, files: Sequence[FileRef]) -> StoreEntry:
    """Keep the listing of a dataset's files, whose hash names it; return it with their size."""
    with store.incoming_file() as listing:
        listing.write(tree_listing((file.path, file.sha256) for file in files))
        kept = listing.seal()
        storage.keep(session, listing)
    return StoreEntry(kept.sha256, sum(file.size for file in files))


def insert_dataset(
    session: Session,
    person: Person,
    kept: StoreEntry,
    report: Document,
    name: str,
    format: str,
    *,
    files: Sequence[FileRef] | None = None,
    origin: Document | None = None,
) -> str:
    """Insert the row of a dataset whose files are in the store; return its id."""
    dataset = Dataset(
        id=new_id(IdKind.DATASET),
        user_id=person.id,
        name=name,
        format=format,
        sha256=kept.sha256,
        size=kept.size,
        files=None if files is None else [file.model_dump(mode="json") for file in files],
        report=report,
        origin=origin,
        created_at=utc_now(),
    )
    session.add(dataset)
    return dataset.id


def view(dataset: Dataset, owner: str) -> DatasetView:
    """Return the view of an uploaded dataset."""
    return DatasetView(
        id=dataset.id,
        name=dataset.name,
        owner=owner,
        built_in=False,
        format=dataset.format,
        size=dataset.size,
        files=[DatasetFile.model_validate(file.model_dump()) for file in files_of(dataset)],
        lines=dataset.report["lines"],
        characters=dataset.report["characters"],
        images=dataset.report.get("images"),
        warnings=dataset.report["warnings"],
        origin=None if dataset.origin is None else HubOrigin.model_validate(dataset.origin),
        created_at=dataset.created_at,
    )


def built_in_view(process: Process, name: str) -> DatasetView:
    """Return the view of a dataset that is built in, which is made on the disk if need be."""
    if name == DIGITS:  # made on the nodes: they have scikit-learn, an API need not
        images = DatasetImages(
            count=digits.IMAGES, tests=0, image_shape=list(digits.SHAPE), classes=digits.CLASSES
        )
        size = digits.NUM_BYTES
    else:
        images, size = None, prepare(name, process.service(Store).root / "built-in").stat().st_size
    return DatasetView(
        id=name,
        name=name,
        owner=None,
        built_in=True,
        format=BUILT_IN[name],
        size=size,
        files=[],
        lines=None,
        characters=None,
        images=images,
        warnings=[],
        origin=None,
        created_at=None,
    )
