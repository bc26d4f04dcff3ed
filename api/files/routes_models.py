"""/v1/models: Hugging Face models to start from, checked while they stream, kept by content."""

from collections.abc import Sequence
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.model_check import ModelCheck
from api.files.owned import find_owned
from api.files.schemas import ModelFile, ModelView
from api.files.storage_use import require_room
from api.files.store import Kept, Store
from api.files.uploads import PIECE
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
from core.tables.files import Model
from strategies.plan.hugging_face.hf_config import parse_config
from strategies.plan.shapes import count_parameters
from strategies.plan.spec import ModelSpec

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
    whole.
    """
    await anyio.to_thread.run_sync(_require_free_name, process, person, name, key)
    check = ModelCheck(process.service(Store).incoming_file)
    try:
        await _receive(request, check, process.settings.max_model_bytes)
        return await anyio.to_thread.run_sync(_keep, process, person, check, name, key)
    finally:
        check.close()


@router.get("", summary="List models")
def list_models(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[ModelView]:
    """Return your models, newest first."""
    query = select(Model).where(Model.user_id == person.id, Model.deleted_at.is_(None))
    with process.read() as session:
        rows = page(session, query, Model.id, after=after, limit=limit)
    return Page[ModelView](data=[_view(model) for (model,) in rows], has_more=rows.has_more)


@router.get("/{model_id}", summary="One model")
def get_model(model_id: PlainText, person: SignedIn, process: ProcessDep) -> ModelView:
    """Return a model by id or name, with the fields that a spec needs to start from it."""
    with process.read() as session:
        return _view(find_owned(session, Model, person, model_id))


@router.delete("/{model_id}", status_code=204, summary="Delete a model")
def delete_model(model_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a model. Its name is free again at once; jobs submitted with it can still run."""
    with process.write() as (session, _):
        model = find_owned(session, Model, person, model_id)
        session.execute(
            update(Model)
            .where(Model.id == model.id)
            .values(deleted_at=utc_now(), name=f"{model.name} (deleted {model.id})")
        )
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


def _require_free_name(process: Process, person: Person, name: str, key: str | None) -> None:
    if key is not None:
        return  # it may be a repeated request: its own model has the name
    with process.read() as session:
        _refuse_taken(session, person, name)
        require_room(session, process.settings, person.id)


def _refuse_taken(session: Session, person: Person, name: str) -> None:
    taken = session.scalar(select(Model.id).where(Model.user_id == person.id, Model.name == name))
    if taken is not None:
        raise Conflict(
            f"name: you already have a model {name} ({taken}). Delete it, or choose another name.",
            code="name_taken",
            param="name",
        )


def _keep(
    process: Process, person: Person, check: ModelCheck, name: str, key: str | None
) -> ModelView:
    files = [(path, file.seal()) for path, file in sorted(check.files.items())]
    content = "".join(f"{path} {kept.sha256}\n" for path, kept in files)
    with process.write() as (session, _):

        def make() -> str:
            _refuse_taken(session, person, name)
            require_room(
                session, process.settings, person.id, adding=sum(kept.size for _, kept in files)
            )
            storage.keep(session, *check.files.values())
            return _insert(session, person, check, files, name)

        model_id = once(
            session,
            user_id=person.id,
            key=key,
            body_sha256=fingerprint("POST", f"/v1/models?name={name}", content.encode()),
            now=utc_now(),
            make=make,
        )
        session.flush()
        model = session.get(Model, model_id)
        assert model is not None
        return _view(model)


def _insert(
    session: Session,
    person: Person,
    check: ModelCheck,
    files: Sequence[tuple[str, Kept]],
    name: str,
) -> str:
    model = Model(
        id=new_id(Kind.MODEL),
        user_id=person.id,
        name=name,
        size=sum(kept.size for _, kept in files),
        files=[{"path": path, "sha256": kept.sha256, "size": kept.size} for path, kept in files],
        config=check.config_text,
        has_tokenizer=check.has_tokenizer,
        created_at=utc_now(),
    )
    session.add(model)
    return model.id


def _view(model: Model) -> ModelView:
    config = parse_config(model.config.encode())
    shape = config.model()
    return ModelView(
        id=model.id,
        name=model.name,
        architecture=config.architectures[0],
        parameters=count_parameters(shape, vocabulary=config.vocab_size),
        size=model.size,
        files=[ModelFile.model_validate(file) for file in model.files],
        has_tokenizer=model.has_tokenizer,
        model=_spec_block(shape, model.name),
        vocabulary_size=config.vocab_size,
        longest_sequence=config.window,
        created_at=model.created_at,
    )


def _spec_block(shape: ModelSpec, name: str) -> dict[str, object]:
    """Return the `model:` block of a spec that starts from this model."""
    fields = shape.model_dump(mode="json", exclude_defaults=True)
    return {**fields, "checkpoint": name}
