"""/v1/models: Hugging Face models to start from, checked while they stream, kept by content."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response

from api.files import fetched, models, promotion
from api.files.model_check import ModelCheck
from api.files.schemas import ModelView, NewFetchedFiles, NewModel, NewPromotion
from api.files.store import Store
from api.files.uploads import PIECE
from api.web.auth import SignedIn
from api.web.errors import too_large
from api.web.idempotency import IdempotencyKey, keyed
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText

router = APIRouter(prefix="/v1/models", tags=["models"])

Name = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="Name by which job specs refer to it.",
    ),
]
RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, summary="Upload a model", openapi_extra=RAW_BODY)
async def upload_model(
    request: Request,
    person: SignedIn,
    process: ProcessDep,
    name: Name,
    key: IdempotencyKey = None,
) -> ModelView:
    """Upload a tar archive of a model's folder: config.json, safetensors, the tokenizer's files.

    A model with a mistake is refused, and the answer names the file. Otherwise it is kept as a
    whole. If you have a model of that name, this becomes its next version.
    """
    await anyio.to_thread.run_sync(models.require_any_room, process, person)
    check = ModelCheck(process.service(Store).incoming_file)
    try:
        await _receive(request, check, process.settings.max_model_bytes)
        return await anyio.to_thread.run_sync(_keep, process, person, check, name, key)
    finally:
        check.close()


@router.post("/uploaded", status_code=201, summary="Make a model of uploads")
def make_model(
    body: NewModel, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> ModelView:
    """Make a model of the files of its folder, which have arrived by `/v1/uploads`.

    If you have a model of that name, this becomes its next version, and the earlier one NAME@1.
    """
    sent = keyed(person, key, "/v1/models/uploaded", body.model_dump_json().encode())
    return process.transact(models.make_model, process, person, body, sent)


@router.post("/promoted", status_code=201, summary="Promote a checkpoint")
def promote_checkpoint(
    body: NewPromotion, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> ModelView:
    """Make a model of a job's checkpoint that holds one; nothing is copied.

    If you have a model of that name, this becomes its next version, and the earlier one NAME@1.
    """
    sent = keyed(person, key, "/v1/models/promoted", body.model_dump_json().encode())
    return process.transact(promotion.promote, process, person, body, sent)


@router.post("/fetched", status_code=201, summary="Take a model that a job has fetched")
def take_fetched_model(
    body: NewFetchedFiles, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> ModelView:
    """Make a model of the files that a job has fetched from the hub (`trainyard models fetch`).

    If you have a model of that name, this becomes its next version, and the earlier one NAME@1.
    """
    sent = keyed(person, key, "/v1/models/fetched", body.model_dump_json().encode())
    return process.transact(fetched.take_model, process, person, body, sent)


@router.get("", summary="List models")
def list_models(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[ModelView]:
    """Return your models and those shared with you, newest first."""
    with process.read() as session:
        return models.list_models(session, person, limit=limit, after=after)


@router.get("/{model_id}", summary="One model")
def get_model(model_id: PlainText, person: SignedIn, process: ProcessDep) -> ModelView:
    """Return a model that you may read, with the fields that a spec needs to start from it: by id,
    or one of your own by name."""
    with process.read() as session:
        return models.show_model(session, model_id, person)


@router.delete("/{model_id}", status_code=204, summary="Delete a model")
def delete_model(model_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a model. Its name is free again at once; jobs submitted with it can still run."""
    process.transact(models.delete_model, model_id, person)
    return Response(status_code=204)


async def _receive(request: Request, check: ModelCheck, max_bytes: int) -> None:
    promised = request.headers.get("content-length", "")
    if promised.isdigit() and int(promised) > max_bytes:
        raise too_large(int(promised), max_bytes)
    received, pending = 0, bytearray()
    async for piece in request.stream():
        pending += piece
        received += len(piece)
        if received > max_bytes:
            raise too_large(received, max_bytes)
        if len(pending) >= PIECE:
            await anyio.to_thread.run_sync(check.feed, bytes(pending))
            pending.clear()
    await anyio.to_thread.run_sync(check.feed, bytes(pending))
    await anyio.to_thread.run_sync(check.finish)


def _keep(
    process: Process, person: Person, check: ModelCheck, name: str, key: str | None
) -> ModelView:
    files = [(path, file.seal()) for path, file in sorted(check.files.items())]
    return process.transact(
        models.keep_model,
        process,
        person,
        check,
        name,
        files=files,
        key=key,
    )
