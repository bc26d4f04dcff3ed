"""Workbenches in the database: whose they are, and the attempt to enter."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.jobs.job_views import JOBS_WITH_CONTEXT, find_job, stops_at
from api.web.identity import Person
from api.workbenches.schemas import WorkbenchView
from api.workbenches.tunnels import Key
from core.base.errors import Conflict, Forbidden, NotFound
from core.leases.adjacent import stopped_with
from core.spec.spec import WorkbenchJobSpec, stored_plan, stored_spec
from core.spec.workbench import WorkbenchKind
from core.states import LIVE_ATTEMPT, LIVE_JOB, WAITING_JOB, AttemptState, JobState
from core.tables.jobs import Attempt, AttemptPart, Job

IN_BROWSER = (WorkbenchKind.JUPYTER,)
KIND = Job.spec["workbench"]["kind"].as_string()
HELD = (
    select(AttemptPart.attempt_id)
    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
    .join(Job, (Job.id == Attempt.job_id) & (Job.epoch == Attempt.epoch))
    .where(AttemptPart.ended_at.is_(None), Attempt.state.in_(LIVE_ATTEMPT), KIND.is_not(None))
)


def list_workbenches(
    session: Session, person: Person, *, browser_is_off: str
) -> list[WorkbenchView]:
    """Return a person's workbenches that wait or run, newest first."""
    rows = session.execute(
        JOBS_WITH_CONTEXT.where(
            Job.user_id == person.id, Job.state.in_(LIVE_JOB + WAITING_JOB), KIND.is_not(None)
        ).order_by(Job.id.desc())
    )
    found = []
    for job, _, _, _, attempt, node, lease in rows:
        spec, plan = stored_spec(job.spec), stored_plan(job.plan)
        if not isinstance(spec, WorkbenchJobSpec):
            continue  # another version has written it
        last = stopped_with(session, lease) if lease else None
        found.append(
            WorkbenchView(
                id=job.id,
                name=job.name,
                kind=spec.workbench.kind,
                state=job.state,
                reason=job.reason,
                node=node,
                lease=lease.id if lease else job.lease_id,
                slots=1 if plan is None else plan.ranks_per_node,
                ends_at=stops_at(job, attempt, last),
                can_be_entered=job.state is JobState.RUNNING,
                no_browser=browser_is_off if spec.workbench.kind in IN_BROWSER else "",
            )
        )
    return found


def find_entry(session: Session, job_id: str, person: Person) -> Key:
    """Return the attempt of a running workbench for its owner, who alone may enter it.

    Raises NotFound, Forbidden, or Conflict if it does not run.
    """
    job = find_job(session, job_id, person)
    if not isinstance(stored_spec(job.spec), WorkbenchJobSpec):
        raise NotFound(f"{job.name} is not a workbench.")
    if job.user_id != person.id:
        raise Forbidden(f"{job.name} can be entered by its owner alone.", code="not_yours")
    attempt = session.scalar(
        select(Attempt).where(Attempt.job_id == job.id, Attempt.epoch == job.epoch)
    )
    if attempt is None or attempt.state not in (AttemptState.RUNNING, AttemptState.STOPPING):
        raise Conflict(
            f"{job.name} cannot be entered: it is {job.state}. {job.reason}", code="not_running"
        )
    return Key(job.id, job.epoch)


def require_browser(session: Session, job_id: str) -> None:
    """Raise Conflict if a workbench has no program in the browser."""
    spec = stored_spec(session.get_one(Job, job_id).spec)
    assert isinstance(spec, WorkbenchJobSpec)
    if spec.workbench.kind not in IN_BROWSER:
        raise Conflict(
            f"A workbench of the kind {spec.workbench.kind} has nothing to show in the browser but "
            "its terminals.",
            code="no_browser",
        )


def require_part(session: Session, job_id: str, epoch: int, *, node_id: str) -> None:
    """Raise NotFound unless a live workbench's attempt is on this node."""
    query = HELD.where(
        AttemptPart.node_id == node_id, Attempt.job_id == job_id, Attempt.epoch == epoch
    )
    if session.scalar(query) is None:
        raise NotFound(f"There is no workbench {job_id}.{epoch} on this node.")
