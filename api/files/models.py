"""Models that people have uploaded."""

from collections.abc import Sequence

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session

from api.files import resumable
from api.files import store as storage
from api.files.model_check import ModelCheck
from api.files.owned import all_readable, find_owned, show_readable
from api.files.schemas import ModelFile, ModelOrigin, ModelView, NewModel
from api.files.storage_use import require_room
from api.files.store import Store, StoreEntry
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest, keyed
from api.web.identity import Person
from api.web.paging import page
from api.web.process import Process
from api.web.schemas import Page
from api.web.sharing import end_sharing, pass_on
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.tables.base import Document
from core.tables.files import Model
from core.tables.jobs import Job, JobInput
from core.tables.kinds import SharedKind
from strategies.plan.hugging_face.hf_config import parse_config
from strategies.plan.shapes import count_parameters
from strategies.plan.spec import ModelSpec

MOST_JOBS = 20  # named with a model


def list_models(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[ModelView]:
    """Return a page of the models that a person may read, newest first."""
    query = all_readable(session, Model, person)
    rows = page(session, query, Model.id, after=after, limit=limit)
    data = [_view(model, owner, person) for model, owner in rows]
    return Page[ModelView](data=data, has_more=rows.has_more)


def show_model(session: Session, model_id: str, person: Person) -> ModelView:
    """Return a model that a person may read. Raises NotFound."""
    model, owner = show_readable(session, Model, person, model_id)
    return _view(model, owner, person, used_by=_jobs_with(session, model, person))


def delete_model(session: Session, _: Bells, model_id: str, person: Person) -> None:
    """Mark a model as deleted, so that its name is free. Raises NotFound."""
    model = find_owned(session, Model, person, model_id)
    end_sharing(session, SharedKind.MODEL, model.id)
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
    return model_view(session, session.get_one(Model, model_id), person)


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
    return model_view(session, session.get_one(Model, model_id), person)


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
    if version > 1:
        earlier = (Model.user_id == person.id, Model.name == f"{name}@{version - 1}")
        pass_on(
            session,
            SharedKind.MODEL,
            session.scalars(select(Model.id).where(*earlier)).one(),
            model.id,
        )
    return model.id


def model_view(session: Session, model: Model, owner: Person) -> ModelView:
    """Return the view of a model for its owner."""
    return _view(model, owner.name, owner, used_by=_jobs_with(session, model, owner))


def _jobs_with(session: Session, model: Model, person: Person) -> Sequence[str]:
    """Return the ids of the jobs that a person submitted with a model, newest first."""
    as_input = exists().where(JobInput.job_id == Job.id, JobInput.source_id == model.id)
    return session.scalars(
        select(Job.id)
        .where(Job.user_id == person.id, or_(Job.model_id == model.id, as_input))
        .order_by(Job.id.desc())
        .limit(MOST_JOBS)
    ).all()


def _view(model: Model, owner: str, person: Person, *, used_by: Sequence[str] = ()) -> ModelView:
    config = parse_config(model.config.encode())
    shape = config.model()
    reference = model.name if model.user_id == person.id else f"{owner}/{model.name}"
    return ModelView(
        id=model.id,
        name=model.name,
        owner=owner,
        architecture=config.architectures[0],
        parameters=count_parameters(shape, vocabulary=config.vocab_size),
        size=model.size,
        files=[ModelFile.model_validate(file) for file in model.files],
        has_tokenizer=model.has_tokenizer,
        model=_spec_block(shape, reference),
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
