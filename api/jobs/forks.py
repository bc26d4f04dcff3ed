"""Fork of a training: a new job that begins with a checkpoint of another one, in any layout.

The new job gets the checkpoint as its own, of attempt 0: the same files in the store, by their
hashes. So it starts as a job that was interrupted there, and keeps them as long as it needs them.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.web.sharing import find_readable_job
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.base.ids import IdKind, new_id
from core.spec.spec import Fork, JobSpec, stored_spec
from core.tables.files import Checkpoint, StoredFile
from core.tables.jobs import Job

SAME = ("model", "adapter", "precision")
"""Parts of a spec that a checkpoint fixes; all others may change, the layout too."""
BEFORE_ALL = 0  # epoch: attempts are numbered from 1 on


def find_fork(session: Session, spec: JobSpec, *, user_id: str) -> Checkpoint | None:
    """Return the checkpoint that the spec starts from; None if it starts anew.

    Raises BadRequest if the user may read no such checkpoint, or if it belongs to another model.
    """
    wanted = spec.start_from
    if wanted is None:
        return None
    job = find_readable_job(session, wanted.job, user_id)
    if job is None:
        raise _refusal(
            "job", "unknown_job", f"you have no job {wanted.job}, and none is shared with you."
        )
    theirs = stored_spec(job.spec)
    if not isinstance(theirs, JobSpec):
        raise _refusal(
            "job", "not_a_recipe", f"{job.name} is a program; give its checkpoint as an input."
        )
    for part in SAME:
        if getattr(theirs, part) != getattr(spec, part):
            raise _refusal(
                "job", "another_model", f"{job.name} has another `{part}`. Take it from its spec."
            )
    if theirs.data.tokenizer != spec.data.tokenizer:
        raise _refusal(
            "job", "another_model", f"{job.name} has the tokenizer {theirs.data.tokenizer}."
        )
    return _checkpoint(session, job, wanted, spec.training.steps)


def _checkpoint(session: Session, job: Job, wanted: Fork, steps: int) -> Checkpoint:
    kept = session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
        .order_by(Checkpoint.step.desc(), Checkpoint.epoch.desc())
    ).all()
    found = next((each for each in kept if each.step == wanted.step), None)
    if found is None:
        there = ", ".join(dict.fromkeys(f"{each.step}" for each in kept)) or "none"
        raise _refusal(
            "step",
            "unknown_checkpoint",
            f"{job.name} has no checkpoint of step {wanted.step:,}. Its steps: {there}.",
        )
    if steps <= found.step:
        raise BadRequest(
            f"training.steps: {steps:,} steps are done at step {found.step:,}, at which the job "
            "starts. Give more.",
            code="nothing_to_do",
            param="training.steps",
        )
    return found


def insert_fork(session: Session, job_id: str, checkpoint: Checkpoint) -> None:
    """Give a new job the checkpoint as its own."""
    session.execute(  # so that no sweep takes its files, even if the other job's row goes now
        update(StoredFile)
        .where(StoredFile.sha256.in_([file["sha256"] for file in checkpoint.files]))
        .values(named_at=utc_now())
    )
    session.add(
        Checkpoint(
            id=new_id(IdKind.CHECKPOINT),
            job_id=job_id,
            epoch=BEFORE_ALL,
            step=checkpoint.step,
            size=checkpoint.size,
            files=checkpoint.files,
            created_at=utc_now(),
        )
    )


def _refusal(field: str, code: str, why: str) -> BadRequest:
    return BadRequest(f"start_from.{field}: {why}", code=code, param=f"start_from.{field}")
