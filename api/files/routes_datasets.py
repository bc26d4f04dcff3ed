"""/v1/datasets: texts and images to train on, uploaded, checked, kept by content. Text is checked
while it streams, an archive of images when it is complete."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.dataset_check import DatasetCheck
from api.files.image_check import check_images
from api.files.owned import find_owned
from api.files.schemas import DatasetImages, DatasetPreview, DatasetView
from api.files.storage_use import require_room
from api.files.store import IncomingFile, Kept, Store
from api.files.uploads import PIECE, receive
from api.web.auth import SignedIn
from api.web.errors import too_large
from api.web.idempotency import IdempotencyKey, fingerprint, once
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.ids import Kind, new_id
from core.tables.base import Document
from core.tables.files import Dataset
from strategies.plan.built_in import digits
from strategies.plan.built_in.datasets import BUILT_IN, DIGITS, DatasetFormat, prepare
from strategies.plan.words import counted

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

Name = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="Name by which job specs refer to it.",
    ),
]
Format = Annotated[
    DatasetFormat,
    Query(
        description='jsonl: one object per line: {"text"}, {"prompt", "completion"} or '
        '{"messages"}. npz: the arrays images and labels, or x_train, y_train, '
        "x_test and y_test, as numpy.savez writes them."
    ),
]
RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post(
    "",
    status_code=201,
    summary="Upload a dataset",
    openapi_extra=RAW_BODY,
)
async def upload_dataset(
    request: Request,
    person: SignedIn,
    process: ProcessDep,
    name: Name,
    format: Format = "text",
    key: IdempotencyKey = None,
) -> DatasetView:
    """Upload raw text, or the bytes of a .npz file, as the body.

    A dataset with a mistake is refused, and the answer names the line or the array. Otherwise it
    is kept as a whole.
    """
    await anyio.to_thread.run_sync(_require_free_name, process, person, name, key)
    max_bytes = process.settings.max_dataset_bytes
    with process.service(Store).incoming_file() as incoming:
        report: Document
        if format == "npz":
            await receive(request, incoming, max_bytes=max_bytes)
            report = await anyio.to_thread.run_sync(_images_report, incoming, max_bytes)
        else:
            check = DatasetCheck(is_jsonl=format == "jsonl")
            await _receive(request, check, incoming, max_bytes)
            report = _text_report(check)
        return await anyio.to_thread.run_sync(
            _keep, process, person, incoming, report, name, format, key
        )


@router.get("", summary="List datasets")
def list_datasets(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[DatasetView]:
    """Return the built-in datasets, then your own, newest first."""
    query = select(Dataset).where(Dataset.user_id == person.id, Dataset.deleted_at.is_(None))
    last = None if after in BUILT_IN else after
    with process.read() as session:
        rows = page(session, query, Dataset.id, after=last, limit=limit)
    built_in = [] if after else [_built_in_view(process, name) for name in BUILT_IN]
    data = built_in + [_view(dataset) for (dataset,) in rows]
    return Page[DatasetView](data=data, has_more=rows.has_more)


@router.get("/{dataset_id}", summary="Get a dataset")
def get_dataset(dataset_id: PlainText, person: SignedIn, process: ProcessDep) -> DatasetView:
    """Return a dataset by id or name, with the results of its check."""
    if dataset_id in BUILT_IN:
        return _built_in_view(process, dataset_id)
    with process.read() as session:
        return _view(find_owned(session, Dataset, person, dataset_id))


@router.get("/{dataset_id}/preview", summary="Preview a dataset")
def preview_dataset(
    dataset_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    num_bytes: Annotated[int, Query(ge=1, le=100_000)] = 2000,
) -> DatasetPreview:
    """Return the first bytes of a dataset as text; for images, a sentence that describes them."""
    view = get_dataset(dataset_id, person, process)
    if view.images is not None:
        return DatasetPreview(text=_sentence(view.images), is_all=True)
    if dataset_id in BUILT_IN:
        path = prepare(dataset_id, process.service(Store).root / "built-in")
        size = path.stat().st_size
    else:
        with process.read() as session:
            dataset = find_owned(session, Dataset, person, dataset_id)
        path, size = process.service(Store).open_path(dataset.sha256), dataset.size
    with path.open("rb") as file:
        text = file.read(num_bytes).decode("utf-8", "ignore")
    return DatasetPreview(text=text, is_all=size <= num_bytes)


@router.delete("/{dataset_id}", status_code=204, summary="Delete a dataset")
def delete_dataset(dataset_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a dataset. Its name is free again at once; jobs submitted with it can still run."""
    if dataset_id in BUILT_IN:
        raise Conflict(f"{dataset_id} is built in and cannot be deleted.")
    now = utc_now()
    with process.write() as (session, _):
        dataset = find_owned(session, Dataset, person, dataset_id)
        session.execute(
            update(Dataset)
            .where(Dataset.id == dataset.id)
            .values(deleted_at=now, name=f"{dataset.name} (deleted {dataset.id})")
        )
    return Response(status_code=204)


async def _receive(
    request: Request, check: DatasetCheck, incoming: IncomingFile, max_bytes: int
) -> None:
    promised = request.headers.get("content-length", "")
    if promised.isdigit() and int(promised) > max_bytes:
        raise too_large(int(promised), max_bytes)
    received = 0
    pending = bytearray()
    async for piece in request.stream():
        pending += piece
        received += len(piece)
        if received > max_bytes:
            raise too_large(received, max_bytes)
        if len(pending) >= PIECE:
            await anyio.to_thread.run_sync(_check_and_write, check, incoming, bytes(pending))
            pending.clear()
    await anyio.to_thread.run_sync(_check_and_write, check, incoming, bytes(pending))
    await anyio.to_thread.run_sync(check.finish)


def _check_and_write(check: DatasetCheck, incoming: IncomingFile, piece: bytes) -> None:
    check.feed(piece)
    incoming.write(piece)


def _text_report(check: DatasetCheck) -> Document:
    return {
        "lines": check.lines,
        "characters": check.characters,
        "warnings": check.warnings,
    }


def _images_report(incoming: IncomingFile, max_bytes: int) -> Document:
    found = check_images(incoming.written(), max_bytes=max_bytes)
    images = DatasetImages(
        count=found.num_train,
        tests=found.num_tests,
        image_shape=list(found.shape),
        classes=found.classes,
    )
    return {"lines": None, "characters": None, "warnings": [], "images": images.model_dump()}


def _sentence(images: DatasetImages) -> str:
    tests = f", and {images.tests:,} test images" if images.tests else ""
    height, width, channels = images.image_shape
    return (
        f"{images.count:,} training images{tests}: {height} x {width} pixels, "
        f"{counted(channels, 'channel')}, {counted(images.classes, 'class', 'classes')}.\n"
    )


def _require_free_name(process: Process, person: Person, name: str, key: str | None) -> None:
    if name in BUILT_IN:
        raise Conflict(f"name: {name} is built in. Choose another name.", param="name")
    if key is not None:
        return  # it may be a repeated request: its own dataset has the name
    with process.read() as session:
        _refuse_taken(session, person, name)
        require_room(session, process.settings, person.id)


def _refuse_taken(session: Session, person: Person, name: str) -> None:
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


def _keep(
    process: Process,
    person: Person,
    incoming: IncomingFile,
    report: Document,
    name: str,
    format: str,
    key: str | None,
) -> DatasetView:
    kept = incoming.seal()
    now = utc_now()
    path = f"/v1/datasets?name={name}&format={format}"
    with process.write() as (session, _):

        def make() -> str:
            _refuse_taken(session, person, name)
            require_room(session, process.settings, person.id, adding=kept.size)
            storage.keep(session, incoming)
            return _insert(session, person, kept, report, name, format)

        dataset_id = once(
            session,
            user_id=person.id,
            key=key,
            body_sha256=fingerprint("POST", path, kept.sha256.encode()),
            now=now,
            make=make,
        )
        session.flush()
        dataset = session.get(Dataset, dataset_id)
        assert dataset is not None
        return _view(dataset)


def _insert(
    session: Session, person: Person, kept: Kept, report: Document, name: str, format: str
) -> str:
    dataset = Dataset(
        id=new_id(Kind.DATASET),
        user_id=person.id,
        name=name,
        format=format,
        sha256=kept.sha256,
        size=kept.size,
        report=report,
        created_at=utc_now(),
    )
    session.add(dataset)
    return dataset.id


def _view(dataset: Dataset) -> DatasetView:
    return DatasetView(
        id=dataset.id,
        name=dataset.name,
        built_in=False,
        format=dataset.format,
        size=dataset.size,
        lines=dataset.report["lines"],
        characters=dataset.report["characters"],
        images=dataset.report.get("images"),
        warnings=dataset.report["warnings"],
        created_at=dataset.created_at,
    )


def _built_in_view(process: Process, name: str) -> DatasetView:
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
        built_in=True,
        format=BUILT_IN[name],
        size=size,
        lines=None,
        characters=None,
        images=images,
        warnings=[],
        created_at=None,
    )
