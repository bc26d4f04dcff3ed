"""/v1/datasets: texts and images to train on, uploaded, checked, kept by content. Text is checked
while it streams, an archive of images when it is complete."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response

from api.files import datasets, fetched
from api.files.dataset_files import files_of
from api.files.image_check import images_report
from api.files.owned import show_readable
from api.files.resumable import most_bytes
from api.files.row_preview import first_rows
from api.files.schemas import (
    DatasetImages,
    DatasetPreview,
    DatasetRows,
    DatasetView,
    NewDataset,
    NewFetchedFiles,
)
from api.files.store import IncomingFile, Store
from api.files.table_check import tables_report
from api.files.text_check import TextCheck
from api.files.uploads import PIECE, receive
from api.web.auth import SignedIn
from api.web.errors import too_large
from api.web.idempotency import IdempotencyKey, keyed
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest, Conflict
from core.tables.base import Document
from core.tables.files import Dataset, Tokenizer
from strategies.plan.built_in.datasets import BUILT_IN, DatasetFormat, prepare
from strategies.plan.data.compression import BadCompression, opened
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
    await anyio.to_thread.run_sync(datasets.require_free_name, process, person, name, key)
    max_bytes = most_bytes(process.settings, format)
    with process.service(Store).incoming_file() as incoming:
        report: Document
        if format in ("npz", "parquet", "arrow"):
            await receive(request, incoming, max_bytes=max_bytes)
            report = await anyio.to_thread.run_sync(_report, incoming, format, max_bytes)
        else:
            check = TextCheck(is_jsonl=format == "jsonl")
            await _receive(request, check, incoming, max_bytes)
            report = check.report()
        return await anyio.to_thread.run_sync(
            _keep, process, person, incoming, report, name, format, key
        )


@router.post("/uploaded", status_code=201, summary="Make a dataset of uploads")
def make_dataset(
    body: NewDataset, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> DatasetView:
    """Make a dataset of the files that have arrived by `/v1/uploads`; nothing is copied.

    Several files are one dataset in the order of their paths.
    """
    sent = keyed(person, key, "/v1/datasets/uploaded", body.model_dump_json().encode())
    return process.transact(datasets.make_dataset, process, person, body, sent)


@router.post("/fetched", status_code=201, summary="Take a dataset that a job has fetched")
def take_fetched_dataset(
    body: NewFetchedFiles, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> DatasetView:
    """Make a dataset of the files that a job has fetched from the hub (`trainyard datasets fetch`).

    It is checked as an upload is: of texts the first 64 MiB, of tables the first four. Nothing is
    copied.
    """
    sent = keyed(person, key, "/v1/datasets/fetched", body.model_dump_json().encode())
    checked = fetched.check_dataset(process, person, body)
    return process.transact(fetched.take_dataset, process, person, body, checked, sent)


@router.get("", summary="List datasets")
def list_datasets(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[DatasetView]:
    """Return the built-in datasets, then your own and those shared with you, newest first."""
    with process.read() as session:
        return datasets.list_datasets(session, person, process, limit=limit, after=after)


@router.get("/{dataset_id}", summary="Get a dataset")
def get_dataset(dataset_id: PlainText, person: SignedIn, process: ProcessDep) -> DatasetView:
    """Return a dataset that you may read, with the results of its check: by id, or one of your own
    by name."""
    if dataset_id in BUILT_IN:
        return datasets.built_in_view(process, dataset_id)
    with process.read() as session:
        return datasets.view(*show_readable(session, Dataset, person, dataset_id))


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
    if view.format in ("parquet", "arrow"):
        return DatasetPreview(text=f"{view.format} in {len(view.files):,} files.\n", is_all=True)
    path, _ = _first_file(process, person, dataset_id)
    try:
        with opened(path) as file:
            text = file.read(num_bytes + 1)
    except BadCompression as error:  # a fetched file is checked only at its beginning
        raise BadRequest(f"There is no preview: the file {error}.", code="no_preview") from error
    is_all = len(text) <= num_bytes and len(view.files) <= 1
    return DatasetPreview(text=text[:num_bytes].decode("utf-8", "ignore"), is_all=is_all)


@router.get("/{dataset_id}/rows", summary="Preview a dataset as tokens")
def preview_rows(
    dataset_id: PlainText,
    person: SignedIn,
    process: ProcessDep,
    tokenizer: Annotated[
        str,
        Query(
            max_length=128,
            description="`bytes`, or one of your tokenizers by name, id or OWNER/NAME.",
        ),
    ] = "bytes",
    count: Annotated[int, Query(ge=1, le=50)] = 5,
    max_tokens: Annotated[int, Query(ge=1, le=5000, description="Of each row.")] = 500,
) -> DatasetRows:
    """Return the first rows of a text as tokens, with those marked that a model learns to write."""
    path, format = _first_file(process, person, dataset_id)
    if format == "npz":
        raise BadRequest(f"{dataset_id} holds images, which have no tokens.", code="no_preview")
    with TemporaryDirectory(prefix="trainyard-") as folder:
        if tokenizer != "bytes":
            _link_tokenizer(process, person, tokenizer, Path(folder))
        rows = first_rows(
            path,
            format,
            None if tokenizer == "bytes" else Path(folder),
            count=count,
            most_tokens=max_tokens,
        )
    return DatasetRows(tokenizer=tokenizer, rows=rows)


@router.delete("/{dataset_id}", status_code=204, summary="Delete a dataset")
def delete_dataset(dataset_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a dataset. Its name is free again at once; jobs submitted with it can still run."""
    if dataset_id in BUILT_IN:
        raise Conflict(f"{dataset_id} is built in and cannot be deleted.")
    now = utc_now()
    process.transact(datasets.delete_dataset, dataset_id, person, now=now)
    return Response(status_code=204)


async def _receive(
    request: Request, check: TextCheck, incoming: IncomingFile, max_bytes: int
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


def _check_and_write(check: TextCheck, incoming: IncomingFile, piece: bytes) -> None:
    check.feed(piece)
    incoming.write(piece)


def _first_file(process: Process, person: Person, dataset_id: str) -> tuple[Path, str]:
    """Return the path and the format of a dataset's first file. Raises NotFound."""
    store = process.service(Store)
    if dataset_id in BUILT_IN:
        return prepare(dataset_id, store.root / "built-in"), BUILT_IN[dataset_id]
    with process.read() as session:
        dataset, _ = show_readable(session, Dataset, person, dataset_id)
    return store.open_path(files_of(dataset)[0].sha256), dataset.format


def _link_tokenizer(process: Process, person: Person, name: str, folder: Path) -> None:
    """Fill a folder with a tokenizer's files. Raises NotFound."""
    store = process.service(Store)
    with process.read() as session:
        found, _ = show_readable(session, Tokenizer, person, name)
    for file in found.files:
        (folder / file["path"]).symlink_to(store.open_path(file["sha256"]).resolve())


def _report(incoming: IncomingFile, format: str, max_bytes: int) -> Document:
    if format == "npz":
        return images_report(incoming.written(), max_bytes=max_bytes)
    return tables_report(incoming.written(), format)


def _sentence(images: DatasetImages) -> str:
    tests = f", and {images.tests:,} test images" if images.tests else ""
    height, width, channels = images.image_shape
    return (
        f"{images.count:,} training images{tests}: {height} x {width} pixels, "
        f"{counted(channels, 'channel')}, {counted(images.classes, 'class', 'classes')}.\n"
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
    return process.transact(
        datasets.keep_dataset,
        process,
        person,
        incoming,
        report,
        name,
        format,
        key=key,
        kept=kept,
    )
