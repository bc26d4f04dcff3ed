"""Jobs, attempts and leases as the public API shows them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Session

from api.identity import Person
from api.schemas import AttemptView, JobView
from core.errors import NotFound
from core.messages import ExitRecord
from core.policy import usable_end
from core.states import LIVE_ATTEMPT
from core.tables import Attempt, Checkpoint, Job, Lease, Node, StudyJob, User


def jobs_with_context() -> Select[Job, str, str, Attempt, str, Lease]:
    """Each job with its owner's name and the id of its study; while an attempt is live, with it,
    its node and its lease."""
    return (
        select(Job, User.name, StudyJob.study_id, Attempt, Node.name, Lease)
        .join(User, User.id == Job.user_id)
        .outerjoin(StudyJob, StudyJob.job_id == Job.id)
        .outerjoin(
            Attempt,
            and_(
                Attempt.job_id == Job.id,
                Attempt.epoch == Job.epoch,
                Attempt.state.in_(LIVE_ATTEMPT),
            ),
        )
        .outerjoin(Node, Node.id == Attempt.node_id)
        .outerjoin(Lease, Lease.id == Attempt.lease_id)
    )


def job_view(
    job: Job,
    user: str,
    study: str | None,
    attempt: Attempt | None,
    node: str | None,
    lease: Lease | None,
) -> JobView:
    """One job, as its owner sees it."""
    return JobView.model_validate(
        {
            "id": job.id,
            "name": job.name,
            "user": user,
            "state": job.state,
            "desired": job.desired,
            "reason_code": job.reason_code,
            "reason": job.reason,
            "predicted_start": job.predicted_start,
            "spec": job.spec,
            "plan": job.plan,
            "lease": job.lease_id,
            "cloned_from": job.cloned_from,
            "study": study,
            "epoch": job.epoch,
            "node": node,
            "steps": job.steps,
            "step": job.last_step,
            "loss": finite(job.last_loss),
            "tokens_per_s": finite(job.last_tokens_per_s),
            "stops_at": stops_at(job, attempt, lease),
            "wall_time_s": job.wall_time_s,
            "used_s": job.used_s,
            "certificate": job.certificate,
            "result": job.result,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
        }
    )


def find_job(session: Session, job_id: str, person: Person) -> Job:
    """A job that `person` may see. Somebody else's is NotFound, except for staff."""
    job = session.get(Job, job_id)
    if job is None or not (job.user_id == person.id or person.is_staff):
        raise NotFound(f"You have no job {job_id!r}.")
    return job


def find_job_locked(session: Session, job_id: str, person: Person) -> Job:
    """The same, with its row locked: nobody else writes about this job until the commit."""
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True))
    return find_job(session, job_id, person)


def show_job(session: Session, job_id: str, person: Person) -> JobView:
    """The view of a job that `person` may see."""
    row = session.execute(jobs_with_context().where(Job.id == job_id)).one_or_none()
    if row is None or not (row[0].user_id == person.id or person.is_staff):
        raise NotFound(f"You have no job {job_id!r}.")
    return job_view(*row)


def attempt_views(session: Session, job: Job) -> Sequence[AttemptView]:
    """All attempts of a job, the first one first."""
    rows = session.execute(
        select(Attempt, Node.name, Checkpoint.step)
        .join(Node, Node.id == Attempt.node_id)
        .outerjoin(Checkpoint, Checkpoint.id == Attempt.resume_checkpoint_id)
        .where(Attempt.job_id == job.id)
        .order_by(Attempt.epoch)
    )
    return [_attempt_view(attempt, node, step) for attempt, node, step in rows]


def stops_at(job: Job, attempt: Attempt | None, lease: Lease | None) -> datetime | None:
    """When the present attempt is stopped at the latest: usable end, or end of the wall time."""
    if attempt is None or lease is None:
        return None
    lease_stop = usable_end(lease.hold_end, lease.grace_s)
    if attempt.started_at is None:
        return lease_stop
    return min(lease_stop, attempt.started_at + timedelta(seconds=job.wall_time_s - job.used_s))


def finite(value: float | None) -> float | None:
    """JSON has no nan and no infinity."""
    return value if value is not None and abs(value) < float("inf") else None


def _attempt_view(attempt: Attempt, node: str, resumed_from_step: int | None) -> AttemptView:
    record = ExitRecord.model_validate(attempt.exit) if attempt.exit else None
    return AttemptView(
        id=attempt.id,
        epoch=attempt.epoch,
        node=node,
        lease=attempt.lease_id,
        state=attempt.state,
        outcome=attempt.outcome,
        reason=attempt.reason,
        launcher=attempt.launcher,
        culprit_rank=record.culprit_rank if record else None,
        signal=record.signal if record else None,
        exit_code=record.code if record else None,
        last_lines=record.last_lines if record else [],
        resumed_from_step=resumed_from_step,
        assigned_at=attempt.assigned_at,
        started_at=attempt.started_at,
        first_step_at=attempt.first_step_at,
        ended_at=attempt.ended_at,
    )
