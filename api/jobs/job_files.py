"""Files that a job's attempts left in the store."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import find_job
from api.jobs.schemas import ArtifactView, CheckpointView
from api.web.identity import Person
from api.web.schemas import Page
from core.base.errors import NotFound
from core.tables.files import Artifact, Checkpoint
from core.tables.jobs import Job


def checkpoints_of(session: Session, job_id: str, person: Person) -> Page[CheckpointView]:
    """Return the checkpoints of a job, the furthest first. Raises NotFound."""
    job = find_job(session, job_id, person)
    rows = session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
        .order_by(Checkpoint.step.desc(), Checkpoint.epoch.desc())
    ).all()
    return Page[CheckpointView](
        data=[
            CheckpointView(
                id=row.id,
                epoch=row.epoch,
                step=row.step,
                size=row.size,
                files=len(row.files),
                created_at=row.created_at,
            )
            for row in rows
        ]
    )


def artifacts_of(session: Session, job_id: str, person: Person) -> Page[ArtifactView]:
    """Return the artifacts of a job. Raises NotFound."""
    job = find_job(session, job_id, person)
    rows = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.epoch, Artifact.path)
    ).all()
    return Page[ArtifactView](data=[ArtifactView.model_validate(row) for row in rows])


def find_checkpoint(session: Session, job: Job, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint of a job. Raises NotFound."""
    checkpoint = session.get(Checkpoint, checkpoint_id)
    if checkpoint is None or checkpoint.job_id != job.id:
        raise NotFound(f"{job.name} has no checkpoint {checkpoint_id!r}.")
    if checkpoint.deleted_at is not None:
        raise NotFound(
            f"This checkpoint was deleted on {checkpoint.deleted_at:%Y-%m-%d}; the job's events "
            "say why."
        )
    return checkpoint
