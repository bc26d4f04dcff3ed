"""Models that people have uploaded."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files import store as storage
from api.files.model_check import ModelCheck
from api.files.owned import find_owned
from api.files.schemas import ModelFile, ModelView
from api.files.storage_use import require_room
from api.files.store import StoreEntry
from api.web.bells import Bells
from api.web.idempotency import keyed
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.ids import IdKind, new_id
from core.tables.files import Model
from strategies.plan.hugging_face.hf_config import parse_config
from strategies.plan.shapes import count_parameters
from strategies.plan.spec import ModelSpec


def list_models(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[ModelView]:
    """Return a page of a person's models, newest first."""
    query = select(Model).where(Model.user_id == person.id, Model.deleted_at.is_(None))
    rows = page(session, query, Model.id, after=after, limit=limit)
    return Page[ModelView](data=[_view(model) for (model,) in rows], has_more=rows.has_more)


def show_model(session: Session, model_id: str, person: Person) -> ModelView:
    """Return a model by id or name. Raises NotFound."""
    return _view(find_owned(session, Model, person, model_id))


def delete_model(session: Session, _: Bells, model_id: str, person: Person) -> None:
    """Mark a model as deleted, so that its name is free. Raises NotFound."""
    model = find_owned(session, Model, person, model_id)
    session.execute(
        update(Model)
        .where(Model.id == model.id)
        .values(deleted_at=utc_now(), name=f"{model.name} (deleted {model.id})")
    )


def keep_model(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    check: ModelCheck,
    name: str,
    *,
    files: Sequence[tuple[str, StoreEntry]],
    key: str | None,
) -> ModelView:
    """Insert a model and keep its files, once for each key. Raises Conflict, StorageFull."""
    content = "".join(f"{path} {kept.sha256}\n" for path, kept in files)
    sent = keyed(person, key, f"/v1/models?name={name}", content.encode())
    model_id = sent.begin(session)
    if model_id is None:
        _refuse_taken(session, person, name)
        require_room(
            session, process.settings, person.id, adding=sum(kept.size for _, kept in files)
        )
        storage.keep(session, *check.files.values())
        model_id = _insert(session, person, check, files, name)
        sent.remember(session, model_id)
    session.flush()
    model = session.get(Model, model_id)
    assert model is not None
    return _view(model)


def require_free_name(process: Process, person: Person, name: str, key: str | None) -> None:
    """Raise Conflict for a name that is taken, StorageFull if there is no room. A request with a
    key may be a repeated one and is let through."""
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


def _insert(
    session: Session,
    person: Person,
    check: ModelCheck,
    files: Sequence[tuple[str, StoreEntry]],
    name: str,
) -> str:
    model = Model(
        id=new_id(IdKind.MODEL),
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
