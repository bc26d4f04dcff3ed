"""Promotion of a job's checkpoint to a model: the same files of the store under a name.

Nothing is copied. A name that is taken gets its next version; the earlier one stays as `NAME@1`.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.files.model_check import ModelCheck
from api.files.models import insert_model, model_view, supersede
from api.files.schemas import ModelView, NewPromotion
from api.files.store import Store, StoreEntry
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.process import Process
from api.web.sharing import require_readable_job
from core.base.clock import utc_now
from core.base.errors import BadRequest, NotFound
from core.tables.files import Artifact, Checkpoint, Model, StoredFile
from core.tables.jobs import Job
from core.wire.messages import FileRef
from strategies.plan.hugging_face.hf_config import CONFIG, OTHER_FILES, WEIGHT_FILE

MOST_LISTED = 8


def promote(
    session: Session,
    _: Bells,
    process: Process,
    person: Person,
    asked: NewPromotion,
    sent: KeyedRequest,
) -> ModelView:
    """Insert a model made of a checkpoint's files, once for each key.

    Raises NotFound for a job that the person may not read, BadRequest if the checkpoint is not a
    model.
    """
    model_id = sent.begin(session)
    if model_id is None:
        checkpoint = _checkpoint(session, asked, person)
        saved = any(PurePosixPath(file["path"]).name == CONFIG for file in checkpoint.files)
        exported = {} if saved else exported_files(session, checkpoint)
        files = exported or model_files(checkpoint)
        check = check_stored(process.service(Store), files)
        keep_stored(session, files)
        version = supersede(session, person, asked.name)
        origin = {"job": asked.job, "step": asked.step, "epoch": checkpoint.epoch}
        entries = [(path, StoreEntry(file.sha256, file.size)) for path, file in files.items()]
        model_id = insert_model(
            session, person, check, entries, asked.name, version=version, origin=origin
        )
        sent.remember(session, model_id)
    session.flush()
    return model_view(session, session.get_one(Model, model_id), person)


def exported_files(session: Session, checkpoint: Checkpoint) -> Mapping[str, FileRef]:
    """Return the files of the model that a recipe exported at this checkpoint, by name; none if it
    has not.

    Raises BadRequest if it has exported another step: recipes export their last one.
    """
    job = session.get_one(Job, checkpoint.job_id)
    artifacts = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id, Artifact.epoch == checkpoint.epoch)
    )
    files = {
        row.path: FileRef(path=row.path, sha256=row.sha256, size=row.size)
        for row in artifacts
        if row.path in OTHER_FILES or WEIGHT_FILE.match(row.path)
    }
    if CONFIG not in files:
        return {}
    if checkpoint.step != job.steps:
        raise BadRequest(
            f"step: {job.name} has exported the model of its last step, {job.steps:,}. To have one "
            f"near step {checkpoint.step:,}, submit its spec with start_from: {{job: {job.id}, "
            f"step: {checkpoint.step}}} and a few steps more, and promote that job.",
            code="not_a_model",
            param="step",
        )
    return files


def model_files(checkpoint: Checkpoint) -> Mapping[str, FileRef]:
    """Return the files of the model in a checkpoint, by their names in the model's folder.

    The folder is the uppermost one with a config.json. Raises BadRequest if there is none.
    """
    files = [FileRef.model_validate(file) for file in checkpoint.files]
    paths = [PurePosixPath(file.path) for file in files]
    folders = sorted((len(path.parts), path.parent) for path in paths if path.name == CONFIG)
    if not folders:
        listed = ", ".join(str(path) for path in paths[:MOST_LISTED])
        raise BadRequest(
            f"step: the checkpoint of step {checkpoint.step:,} has no {CONFIG}, so it is not a "
            f"model's folder. It has {listed}{' and more' if len(paths) > MOST_LISTED else ''}. A "
            "program makes it one with model.save_pretrained(os.environ['TRAINYARD_OUTPUT']).",
            code="not_a_model",
            param="step",
        )
    folder = folders[0][1]
    return {
        path.name: file
        for path, file in zip(paths, files, strict=True)
        if path.parent == folder and (path.name in OTHER_FILES or WEIGHT_FILE.match(path.name))
    }


def _checkpoint(session: Session, asked: NewPromotion, person: Person) -> Checkpoint:
    job = require_readable_job(session, asked.job, person.id)
    kept = session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
        .order_by(Checkpoint.step.desc(), Checkpoint.epoch.desc())
    ).all()
    found = next((each for each in kept if each.step == asked.step), None)
    if found is None:
        steps = ", ".join(dict.fromkeys(f"{each.step}" for each in kept)) or "none"
        raise NotFound(
            f"{job.name} has no checkpoint of step {asked.step:,}. Its steps: {steps}.",
            param="step",
        )
    return found


def check_stored(store: Store, files: Mapping[str, FileRef]) -> ModelCheck:
    """Return the check of a model whose files are in the store, which it has passed."""
    check = ModelCheck(store.incoming_file)
    for name, file in files.items():
        check.take_stored(name, file.size, store.path(file.sha256))
    check.finish()
    return check


def keep_stored(session: Session, files: Mapping[str, FileRef]) -> None:
    """Name files of the store now, so that no sweep takes them, even if what had them goes."""
    session.execute(
        update(StoredFile)
        .where(StoredFile.sha256.in_([file.sha256 for file in files.values()]))
        .values(named_at=utc_now())
    )
