"""Fencing of nodes' messages: each must be about an attempt of this very node, and not about one
that was given up and replaced by a newer one."""

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.web.clean_text import clean_text
from api.web.identity import NodeIdentity
from core.base.errors import NotFound, StaleEpoch
from core.states import AttemptState
from core.tables.jobs import Attempt, AttemptPart, Job

# Built once: to build a query takes longer than to ask it, and nodes send these all the time.
JOB_EPOCH = select(Job.epoch).where(Job.id == bindparam("job_id")).with_for_update(key_share=True)
OWN_ATTEMPT = (
    select(Attempt.id, AttemptPart.position, Attempt.state, AttemptPart.exit)
    .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
    .where(
        Attempt.job_id == bindparam("job_id"),
        Attempt.epoch == bindparam("epoch"),
        AttemptPart.node_id == bindparam("node_id"),
    )
)


@dataclass(frozen=True)
class FencedAttempt:
    """An attempt that a node may report on; its job's row is locked."""

    job_id: str
    attempt_id: str
    epoch: int
    position: int
    """Position of the node among the attempt's nodes."""
    state: AttemptState
    is_current: bool


def fence(session: Session, node: NodeIdentity, job_id: str, epoch: int) -> FencedAttempt:
    """Return the attempt that a message is about, and lock its job.

    Raises NotFound if the node has no such attempt, StaleEpoch if it was given up and replaced.
    """
    named = {"job_id": clean_text(job_id)}
    job_epoch = session.scalar(JOB_EPOCH, named)
    own = {**named, "epoch": epoch, "node_id": node.id}
    found = session.execute(OWN_ATTEMPT, own).one_or_none()
    if job_epoch is None or found is None:
        raise no_attempt(node, job_id, epoch)
    attempt_id, position, state, record = found
    fenced = FencedAttempt(job_id, attempt_id, epoch, position, state, epoch == job_epoch)
    require_not_abandoned(fenced, job_epoch, has_record=record is not None)
    return fenced


def no_attempt(node: NodeIdentity, job_id: str, epoch: int) -> NotFound:
    """Return the error for a message about an attempt that is not of this node."""
    return NotFound(f"{node.name} has no attempt {epoch} of {job_id[:60]!r}.", param="job_id")


def require_not_abandoned(fenced: FencedAttempt, job_epoch: int, *, has_record: bool) -> None:
    """Raise StaleEpoch if an attempt was given up without a record of its exit, and replaced."""
    if not fenced.is_current and fenced.state is AttemptState.EXITED and not has_record:
        raise StaleEpoch(
            f"Attempt {fenced.epoch} of {fenced.job_id} was abandoned; attempt {job_epoch} is the "
            "current one.",
            param="epoch",
        )
