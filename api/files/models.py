"""Models that people have uploaded."""

from collections.abc import Sequence

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session

from api.files import resumable
from api.files import store as storage
from api.files.model_check import ModelCheck
from api.files.owned import find_owned
from api.files.schemas import ModelFile, ModelOrigin, ModelView, NewModel
from api.files.storage_use import require_room
from api.files.store import Store, StoreEntry
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest, keyed
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.tables.base import Document
from core.tables.files import Model
from core.tables.jobs import Job, JobInput
from strategies.plan.hugging_face.hf_config import parse_config
from strategies.plan.shapes import count_parameters
from strategies.plan.spec import ModelSpec

MOST_JOBS = 20  # named with a model


def list_models(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[ModelView]:
    """Return a page of a person's models, newest first."""
    query = select(Model).where(Model.user_id == person.id, Model.deleted_at.is_(None))
    rows = page(session, query, Model.id, after=after, limit=limit)
    return Page[ModelView](data=[_view(model) for (model,) in rows], has_more=rows.has_more)


def show_model(session: Session, model_id: str, person: Person) -> ModelView:
    """Return a model by id or name. Raises NotFound."""
    return model_view(session, find_owned(session, Model, person, model_id))


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
    """Insert a model and keep its files, once for each key. Raises StorageFull."""
    content = "".join(f"{path} {kept.sha256}\n" for path, kept in files)
    sent = keyed(person, key, f"/v1/models?name={name}", content.encode())
    model_id = sent.begin(session)
    if model_id is None:
        require_room(
            session, process.settings, person.id, adding=sum(kept.size for _, kept in files)
        )
        storage.keep(session, *check.files.values())
        version = supersede(session, person, name)
        model_id = insert_model(session, person, check, files, name, version=version)
        sent.remember(session, model_id)
    session.flush()
    return model_view(session, session.get_one(Model, model_id))


def make_model(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewModel,
    sent: KeyedRequest,
) -> ModelView:
    """Insert a model made of uploads, once for each key. Raises BadRequest."""
    model_id = sent.begin(session)
    if model_id is None:
        arrived = resumable.arrived(session, process, person, asked.uploads, param="uploads")
        check = ModelCheck(process.service(Store).incoming_file)
        for file in arrived:
            check.take_stored(file.upload.path, file.upload.size, file.written())
        check.finish()
        storage.keep(session, *arrived)
        files = sorted((file.upload.path, file.sealed) for file in arrived)
        version = supersede(session, person, asked.name)
        model_id = insert_model(session, person, check, files, asked.name, version=version)
        for file in arrived:
            session.delete(file.upload)
        sent.remember(session, model_id)
    session.flush()
    return model_view(session, session.get_one(Model, model_id))


def require_any_room(process: Process, person: Person) -> None:
    """Raise StorageFull if there is no room at all, before the bytes arrive."""
    with process.read() as session:
        require_room(session, process.settings, person.id)


def supersede(session: Session, person: Person, name: str) -> int:
    """Free a name for the next version of its model; return that version's number."""
    taken = session.scalars(
        select(Model).where(Model.user_id == person.id, Model.name == name)
    ).one_or_none()
    if taken is None:
        return 1
    taken.name = f"{name}@{taken.version}"
    session.flush()
    return taken.version + 1


def insert_model(
    session: Session,
    person: Person,
    check: ModelCheck,
    files: Sequence[tuple[str, StoreEntry]],
    name: str,
    *,
    version: int = 1,
    origin: Document | None = None,
) -> str:
    """Insert the row of a model that has passed its check; return its id."""
    model = Model(
        id=new_id(IdKind.MODEL),
        user_id=person.id,
        name=name,
        size=sum(kept.size for _, kept in files),
        files=[{"path": path, "sha256": kept.sha256, "size": kept.size} for path, kept in files],
        config=check.config_text,
        has_tokenizer=check.has_tokenizer,
        version=version,
        origin=origin,
        created_at=utc_now(),
    )
    session.add(model)
    return model.id


def model_view(session: Session, model: Model) -> ModelView:
    """Return the view of one model, with the jobs that its owner submitted with it."""
    as_input = exists().where(JobInput.job_id == Job.id, JobInput.source_id == model.id)
    jobs = session.scalars(
        select(Job.id)
        .where(Job.user_id == model.user_id, or_(Job.model_id == model.id, as_input))
        .order_by(Job.id.desc())
        .limit(MOST_JOBS)
    )
    return _view(model, used_by=list(jobs))


def _view(model: Model, *, used_by: Sequence[str] = ()) -> ModelView:
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
        version=model.version,
        origin=None if model.origin is None else ModelOrigin.model_validate(model.origin),
        used_by=list(used_by),
        created_at=model.created_at,
    )


def _spec_block(shape: ModelSpec, name: str) -> dict[str, object]:
    """Return the `model:` block of a spec that starts from this model."""
    fields = shape.model_dump(mode="json", exclude_defaults=True)
    return {**fields, "checkpoint": name}
