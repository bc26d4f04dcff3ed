"""What the platform wants of a node: every attempt that should live there, with its deadlines."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.messages import (
    AttemptRef,
    Deadlines,
    FileRef,
    Observed,
    Order,
    Orders,
    Phase,
    Request,
    Resume,
    StopOrder,
)
from core.policy import Timetable, usable_end
from core.spec import JobSpec
from core.states import LIVE_ATTEMPT, AttemptState, Outcome
from core.tables import Attempt, Checkpoint, Dataset, Job, Lease, Model
from strategies.data.built_in import BUILT_IN, DatasetFormat
from strategies.planning.planner import Plan
from strategies.spec import TrainSpec

DATASET_FILE = "dataset"
# Seconds for the checkpoint before SIGTERM. A cancelled job is not waited for as long as one that
# goes on later.
STOP_GRACE_S = {Outcome.CANCELLED: 10.0}
DEFAULT_STOP_GRACE_S = 60.0


def orders_for(
    session: Session,
    node_id: str,
    seen: Sequence[Observed],
    *,
    now: datetime,
    timetable: Timetable,
) -> Orders:
    """The full desired set of a node, and what it may wipe."""
    rows = session.execute(
        select(Attempt, Job, Lease)
        .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
        .join(Lease, Lease.id == Attempt.lease_id)
        .where(Attempt.node_id == node_id, Attempt.state.in_(LIVE_ATTEMPT))
        .order_by(Attempt.assigned_at)
    ).all()
    wanted = [
        _order(session, job, attempt, lease, now=now, timetable=timetable)
        for attempt, job, lease in rows
    ]
    return Orders(attempts=wanted, forget=_forgettable(session, node_id, seen))


def deadlines(
    job: Job, attempt: Attempt, lease: Lease, *, now: datetime, timetable: Timetable
) -> Deadlines:
    """Seconds that remain, by the end of the lease or of the wall time, whichever is first."""
    to_lease_stop = (usable_end(lease.hold_end, lease.grace_s) - now).total_seconds()
    running = now - attempt.started_at if attempt.started_at else timedelta()
    to_time_limit = job.wall_time_s - job.used_s - running.total_seconds()
    stop_in_s = min(to_lease_stop, to_time_limit)
    to_hold_end = (lease.hold_end - now).total_seconds()
    return Deadlines(
        checkpoint_in_s=to_hold_end - timetable.checkpoint_s,
        stop_in_s=stop_in_s,
        stop_reason=Outcome.LEASE_ENDED if to_lease_stop <= to_time_limit else Outcome.TIME_LIMIT,
        kill_in_s=stop_in_s + timetable.kill_after_stop_s,
    )


def _order(
    session: Session,
    job: Job,
    attempt: Attempt,
    lease: Lease,
    *,
    now: datetime,
    timetable: Timetable,
) -> Order:
    spec = JobSpec.model_validate(job.spec)
    dataset = session.get(Dataset, job.dataset_id) if job.dataset_id else None
    training = {name: job.spec[name] for name in TrainSpec.model_fields if name in job.spec}
    stop = None
    if attempt.state is AttemptState.STOPPING:
        reason = attempt.stop_reason or Outcome.PREEMPTED
        stop = StopOrder(reason=reason, grace_s=STOP_GRACE_S.get(reason, DEFAULT_STOP_GRACE_S))
    return Order(
        job_id=job.id,
        epoch=attempt.epoch,
        spec=TrainSpec.model_validate(training),
        plan=Plan.model_validate(job.plan),
        launcher=spec.launcher,
        threads_per_rank=spec.resources.threads_per_rank,
        dataset=FileRef(path=DATASET_FILE, sha256=dataset.sha256, size=dataset.size)
        if dataset
        else None,
        dataset_format=_format(dataset, spec),
        model=_model_files(session, job),
        resume=_resume(session, attempt),
        deadlines=deadlines(job, attempt, lease, now=now, timetable=timetable),
        stop=stop,
        request=attempt.request and Request.model_validate(attempt.request),
    )


def _format(dataset: Dataset | None, spec: JobSpec) -> DatasetFormat:
    if dataset is None:
        return BUILT_IN[spec.data.dataset]
    return cast(DatasetFormat, dataset.format)  # as it was checked when it was uploaded


def _model_files(session: Session, job: Job) -> list[FileRef]:
    if job.model_id is None:
        return []
    model = session.get(Model, job.model_id)
    assert model is not None
    return [FileRef.model_validate(file) for file in model.files]


def _resume(session: Session, attempt: Attempt) -> Resume | None:
    if attempt.resume_checkpoint_id is None:
        return None
    checkpoint = session.get(Checkpoint, attempt.resume_checkpoint_id)
    assert checkpoint is not None
    files = [FileRef.model_validate(file) for file in checkpoint.files]
    return Resume(step=checkpoint.step, files=files)


def _forgettable(session: Session, node_id: str, seen: Sequence[Observed]) -> list[AttemptRef]:
    """Exited attempts whose files are all here, or that a newer attempt has made worthless."""
    exited = [one for one in seen if one.phase is Phase.EXITED]
    if not exited:
        return []
    known = {
        (attempt.job_id, attempt.epoch): (attempt, job_epoch)
        for attempt, job_epoch in session.execute(
            select(Attempt, Job.epoch)
            .join(Job, Job.id == Attempt.job_id)
            .where(
                Attempt.node_id == node_id,
                Attempt.state == AttemptState.EXITED,
                Attempt.job_id.in_({one.job_id for one in exited}),
            )
        )
    }
    refs = []
    for one in exited:
        attempt, job_epoch = known.get((one.job_id, one.epoch), (None, 0))
        if attempt is None:
            continue
        is_superseded = attempt.exit is None and job_epoch > attempt.epoch
        if attempt.files_kept or is_superseded:
            refs.append(AttemptRef(job_id=one.job_id, epoch=one.epoch))
    return refs
