"""Workbenches in the database: whose they are, and the attempt to enter."""

from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from api.jobs.job_views import JOB_WITH_CONTEXT, JOBS_WITH_CONTEXT, find_job, stops_at
from api.web.identity import Person
from api.workbenches.schemas import WorkbenchView
from api.workbenches.tunnels import Key
from core.base.errors import Conflict, Forbidden, NotFound
from core.jobs.idleness import idle_note
from core.leases.adjacent import stopped_with
from core.spec.spec import ProgramJobSpec, WorkbenchJobSpec, stored_plan, stored_spec
from core.spec.workbench import WhenIdle, WorkbenchKind
from core.states import (
    LIVE_ATTEMPT,
    LIVE_JOB,
    WAITING_JOB,
    AttemptState,
    JobState,
    LeaseState,
)
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease

IN_BROWSER = (WorkbenchKind.JUPYTER,)
KIND = Job.spec["workbench"]["kind"].as_string()
MAY_BE_HELD = Job.spec["hold_on_failure"].as_string().is_not(None)
WITH_TUNNEL = (
    select(AttemptPart.attempt_id)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
    .where(
        AttemptPart.ended_at.is_(None),
        Attempt.state.in_(LIVE_ATTEMPT),
        or_(KIND.is_not(None), MAY_BE_HELD),
    )
)


def list_workbenches(
    session: Session, person: Person, *, browser_is_off: str, now: datetime
) -> list[WorkbenchView]:
    """Return a person's workbenches that wait or run, and sandboxes that are held, newest first."""
    rows = session.execute(
        JOBS_WITH_CONTEXT.where(
            Job.user_id == person.id,
            Job.state.in_(LIVE_JOB + WAITING_JOB),
            or_(KIND.is_not(None), Attempt.held_until.is_not(None)),
        ).order_by(Job.id.desc())
    )
    found = []
    for job, _, _, _, attempt, node, lease in rows:
        spec, plan = stored_spec(job.spec), stored_plan(job.plan)
        if not isinstance(spec, ProgramJobSpec):
            continue  # another version has written it
        kind = spec.workbench.kind if isinstance(spec, WorkbenchJobSpec) else WorkbenchKind.TERMINAL
        last = stopped_with(session, lease) if lease else None
        found.append(
            WorkbenchView(
                id=job.id,
                name=job.name,
                kind=kind,
                state=job.state,
                reason=job.reason,
                node=node,
                lease=lease.id if lease else job.lease_id,
                slots=1 if plan is None else plan.ranks_per_node,
                ends_at=stops_at(job, attempt, last),
                can_be_entered=job.state is JobState.RUNNING and begins_later(session, job) is None,
                no_browser=browser_is_off if kind in IN_BROWSER else "",
                idle_since=None if attempt is None else attempt.idle_since,
                idle_note=idle_note(session, attempt, _choice(spec), now=now),
                is_held=attempt is not None and attempt.held_until is not None,
            )
        )
    return found


def _choice(spec: ProgramJobSpec) -> WhenIdle:
    return spec.workbench.when_idle if isinstance(spec, WorkbenchJobSpec) else WhenIdle.KEEP


def find_entry(session: Session, job_id: str, person: Person) -> Key:
    """Return the attempt of a running workbench, or of a sandbox that is held, for its owner, who
    alone may enter it.

    Raises NotFound, Forbidden, or Conflict if it does not run.
    """
    job = find_job(session, job_id, person)
    attempt = session.scalar(
        select(Attempt).where(Attempt.job_id == job.id, Attempt.epoch == job.epoch)
    )
    is_held = attempt is not None and attempt.held_until is not None
    if not isinstance(stored_spec(job.spec), WorkbenchJobSpec) and not is_held:
        raise NotFound(f"{job.name} is not a workbench, and its sandbox is not held.")
    if job.user_id != person.id:
        raise Forbidden(f"{job.name} can be entered by its owner alone.", code="not_yours")
    if attempt is None or attempt.state not in (AttemptState.RUNNING, AttemptState.STOPPING):
        raise Conflict(
            f"{job.name} cannot be entered: it is {job.state}. {job.reason}", code="not_running"
        )
    if (begins_at := begins_later(session, job)) is not None:
        raise Conflict(
            f"{job.name} is ready, and can be entered when its lease begins, at "
            f"{begins_at:%H:%M} UTC.",
            code="not_yet",
        )
    return Key(job.id, job.epoch)


def begins_later(session: Session, job: Job) -> datetime | None:
    """Return the start of the lease that a job names and that has not begun; None otherwise. A
    workbench may run before it."""
    lease = None if job.lease_id is None else session.get(Lease, job.lease_id)
    return lease.hold_start if lease is not None and lease.state is LeaseState.BOOKED else None


def end_of(session: Session, key: Key) -> datetime | None:
    """Return the moment at which a running workbench is stopped; None if it does not run."""
    row = session.execute(JOB_WITH_CONTEXT, {"job_id": key.job_id}).one_or_none()
    if row is None or row[4] is None or row[4].epoch != key.epoch:
        return None
    job, attempt, lease = row[0], row[4], row[6]
    return stops_at(job, attempt, stopped_with(session, lease))


def require_browser(session: Session, job_id: str) -> None:
    """Raise Conflict if a workbench has no program in the browser."""
    spec = stored_spec(session.get_one(Job, job_id).spec)
    kind = spec.workbench.kind if isinstance(spec, WorkbenchJobSpec) else WorkbenchKind.TERMINAL
    if kind not in IN_BROWSER:
        raise Conflict(
            f"A workbench of the kind {kind} has nothing to show in the browser but its terminals.",
            code="no_browser",
        )


def require_part(session: Session, job_id: str, epoch: int, *, node_id: str) -> None:
    """Raise NotFound unless a live workbench's attempt is on this node."""
    query = WITH_TUNNEL.where(
        AttemptPart.node_id == node_id, Attempt.job_id == job_id, Attempt.epoch == epoch
    )
    if session.scalar(query) is None:
        raise NotFound(f"There is no workbench {job_id}.{epoch} on this node.")
