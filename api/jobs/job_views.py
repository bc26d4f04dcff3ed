"""Views of jobs and attempts for the public API."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, and_, bindparam, select
from sqlalchemy.orm import Session

from api.jobs.inputs import inputs_of
from api.jobs.schemas import (
    AttemptView,
    JobInputView,
    JobView,
    PlaceView,
    PreflightCheck,
    PreflightView,
)
from api.web.identity import Person
from api.web.sharing import find_readable_job
from core.base.errors import Conflict, NotFound
from core.jobs.attempts import limited_to
from core.leases.adjacent import stopped_with
from core.policy.grid import usable_end
from core.spec.spec import AnyJobSpec, AnyPlan, UnreadPlan, stored_plan, stored_spec
from core.states import LIVE_ATTEMPT
from core.tables.agendas import AgendaJob
from core.tables.base import Document
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart, Job, StudyJob
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import User
from core.wire.messages import ExitRecord, HostUse
from strategies.plan.trust.preflight_report import Report

UNREAD = (
    "Its spec or plan was written by another version of the platform, and this version "
    "cannot read it."
)

# Built once: to build a query takes longer than to ask it.
JOBS_WITH_CONTEXT = (
    select(Job, User.name, StudyJob.study_id, AgendaJob.agenda_id, Attempt, Node.name, Lease)
    .join(User, User.id == Job.user_id)
    .outerjoin(StudyJob, StudyJob.job_id == Job.id)
    .outerjoin(AgendaJob, AgendaJob.job_id == Job.id)
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
"""Selects each job with its owner's name and the ids of its study and agenda; while an attempt is
live, also with the attempt, its first node and its lease there."""
JOB_WITH_CONTEXT = JOBS_WITH_CONTEXT.where(Job.id == bindparam("job_id"))
PLACES = (
    select(AttemptPart, Node.name)
    .join(Node, Node.id == AttemptPart.node_id)
    .where(AttemptPart.attempt_id.in_(bindparam("attempt_ids", expanding=True)))
    .order_by(AttemptPart.attempt_id, AttemptPart.position)
)
ATTEMPTS = (
    select(Attempt, Node.name, Checkpoint.step)
    .join(Node, Node.id == Attempt.node_id)
    .outerjoin(Checkpoint, Checkpoint.id == Attempt.resume_checkpoint_id)
    .where(Attempt.job_id == bindparam("job_id"))
    .order_by(Attempt.epoch)
)


def job_views(
    session: Session,
    rows: Sequence[
        Row[Job, str, str, str, Attempt, str, Lease]
        | tuple[Job, str, str | None, str | None, Attempt | None, str | None, Lease | None]
    ],
) -> list[JobView]:
    """Return the views of rows of `JOBS_WITH_CONTEXT`."""
    places = places_of(session, [attempt for _, _, _, _, attempt, _, _ in rows if attempt])
    inputs = inputs_of(session, [row[0] for row in rows])
    return [
        _job_view(
            job,
            user,
            study,
            agenda,
            attempt,
            node,
            stopped_with(session, lease) if lease else None,
            places[attempt.id] if attempt else [],
            inputs.get(job.id, []),
        )
        for job, user, study, agenda, attempt, node, lease in rows
    ]


def places_of(session: Session, attempts: Sequence[Attempt]) -> dict[str, list[PlaceView]]:
    """Map attempt id -> the nodes that the attempt is or was on, the first node first."""
    found: dict[str, list[PlaceView]] = {attempt.id: [] for attempt in attempts}
    if not found:
        return found
    for part, node in session.execute(PLACES, {"attempt_ids": list(found)}):
        reason = part.lost or (part.exit or {}).get("reason", "")
        first = part.position * len(part.slots)
        ranks = list(range(first, first + len(part.slots)))
        found[part.attempt_id].append(
            PlaceView(
                node=node,
                lease=part.lease_id,
                slots=part.slots,
                ranks=ranks,
                reason=reason,
                hosts=[HostUse.model_validate(use) for use in part.hosts or ()],
            )
        )
    return found


def _job_view(
    job: Job,
    user: str,
    study: str | None,
    agenda: str | None,
    attempt: Attempt | None,
    node: str | None,
    lease: Lease | None,
    places: Sequence[PlaceView],
    inputs: Sequence[JobInputView],
) -> JobView:
    spec, plan = stored_spec(job.spec), stored_plan(job.plan)
    is_read = spec is not None and plan is not None
    return JobView.model_validate(
        {
            "id": job.id,
            "name": job.name,
            "user": user,
            "state": job.state,
            "desired": job.desired,
            "reason_code": job.reason_code,
            "reason": job.reason if is_read else _with_unread(job.reason),
            "predicted_start": job.predicted_start,
            "spec": spec or spec_document(job),
            "plan": plan if is_read else UnreadPlan(),
            "lease": job.lease_id,
            "cloned_from": job.cloned_from,
            "tags": job.tags,
            "report_when_ended": job.report_when_ended,
            "report": job.report_sha256,
            "study": study,
            "agenda": agenda,
            "epoch": job.epoch,
            "node": node,
            "nodes": places,
            "steps": job.steps,
            "step": job.last_step,
            "loss": finite(job.last_loss),
            "tokens_per_s": finite(job.last_tokens_per_s),
            "stops_at": stops_at(job, attempt, lease),
            "is_held": attempt is not None and attempt.held_until is not None,
            "wall_time_s": job.wall_time_s,
            "used_s": job.used_s,
            "certificate": job.certificate,
            "result": job.result,
            "inputs": inputs,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
        }
    )


def spec_document(job: Job) -> Document:
    """Return a job's spec as it is stored; empty if the stored value is not a mapping."""
    return job.spec if isinstance(job.spec, dict) else {}


def require_read(job: Job) -> tuple[AnyJobSpec, AnyPlan]:
    """Return a job's spec and plan. Raises Conflict if this version of the platform cannot read
    them."""
    spec, plan = stored_spec(job.spec), stored_plan(job.plan)
    if spec is None or plan is None:
        raise Conflict(f"{job.name}: {UNREAD}", code="unread_spec")
    return spec, plan


def _with_unread(reason: str) -> str:
    return reason if "and this version cannot read it" in reason else f"{reason} {UNREAD}"


def find_job(session: Session, job_id: str, person: Person) -> Job:
    """Return a job that `person` may read. Raises NotFound."""
    job = find_readable_job(session, job_id, person.id, is_staff=person.is_staff)
    if job is None:
        raise NotFound(f"You have no job {job_id!r}.")
    return job


def find_job_locked(session: Session, job_id: str, person: Person) -> Job:
    """Return a job that `person` may steer, their own or as staff any, with its row locked: nobody
    else writes about this job until the commit. Raises NotFound."""
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True))
    job = find_job(session, job_id, person)
    if not (job.user_id == person.id or person.is_staff):
        raise NotFound(f"{job.name} is shared with you to read. Its owner steers it.")
    return job


def show_job(session: Session, job_id: str, person: Person) -> JobView:
    """Return the view of a job that `person` may read. Raises NotFound."""
    row = session.execute(JOB_WITH_CONTEXT, {"job_id": job_id}).one_or_none()
    if row is None or row[0].user_id != person.id:
        find_job(session, job_id, person)
    assert row is not None
    return job_views(session, [row])[0]


def attempt_views(session: Session, job: Job) -> Sequence[AttemptView]:
    """Return all attempts of a job, first one first."""
    rows = session.execute(ATTEMPTS, {"job_id": job.id}).all()
    places = places_of(session, [attempt for attempt, _, _ in rows])
    return [_attempt_view(attempt, node, step, places[attempt.id]) for attempt, node, step in rows]


def stops_at(job: Job, attempt: Attempt | None, lease: Lease | None) -> datetime | None:
    """Return the latest moment at which the present attempt is stopped: usable end, or end of the
    wall time, or of the hold of its sandbox.

    `lease`: the one with which the attempt is stopped.
    """
    if attempt is None or lease is None:
        return None
    lease_stop = usable_end(lease.hold_end, lease.grace_s)
    if attempt.started_at is None:
        return lease_stop
    return min(lease_stop, limited_to(job, attempt, now=attempt.started_at))


def finite(value: float | None) -> float | None:
    """Return `value`, or None for nan and infinity, which JSON does not have."""
    return value if value is not None and abs(value) < float("inf") else None


def _attempt_view(
    attempt: Attempt, node: str, resumed_from_step: int | None, places: list[PlaceView]
) -> AttemptView:
    record = ExitRecord.model_validate(attempt.exit) if attempt.exit else None
    return AttemptView(
        id=attempt.id,
        epoch=attempt.epoch,
        node=node,
        lease=attempt.lease_id,
        nodes=places,
        state=attempt.state,
        outcome=attempt.outcome,
        reason=attempt.reason,
        launcher=attempt.launcher,
        culprit_rank=record.culprit_rank if record else None,
        signal=record.signal if record else None,
        exit_code=record.code if record else None,
        last_lines=record.last_lines if record else [],
        memory=record.memory if record else [],
        resumed_from_step=resumed_from_step,
        preflight=_preflight_view(attempt),
        assigned_at=attempt.assigned_at,
        started_at=attempt.started_at,
        first_step_at=attempt.first_step_at,
        ended_at=attempt.ended_at,
    )


def _preflight_view(attempt: Attempt) -> PreflightView | None:
    if attempt.preflight is None:
        return None
    report = Report.model_validate(attempt.preflight)
    return PreflightView(
        seconds=report.seconds,
        device=report.device,
        backend=report.backend,
        torch=report.torch,
        ranks=len(report.ranks),
        checks=[
            PreflightCheck(
                check=str(timing.check),
                right=timing.right,
                ms=timing.p50_ms,
                bus_gb_per_s=timing.bus_gb_per_s,
                slowest_rank=timing.slowest_rank,
            )
            for timing in report.timings
        ],
        findings=report.findings,
    )
