"""Steering of a job by its owner: cancel, pause, or stop and queue it again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from api.jobs.job_views import (
    find_job_locked,
    show_job,
)
from api.jobs.schemas import JobView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from core.base.clock import utc_now
from core.base.errors import Conflict
from core.base.reasons import ReasonCode
from core.jobs.attempts import ask_to_stop, live_attempt, node_names
from core.spec.spec import JobSpec, stored_spec
from core.states import TERMINAL_JOB, WAITING_JOB, Desired, JobState, Outcome
from core.tables.jobs import Attempt, Job
from core.transitions import advance, note
from core.wire.messages import Request, RequestAction

WHAT = {"profile": "profile", "snapshot": "memory snapshot"}


def want(session: Session, bells: Bells, job: Job, desired: Desired, person: Person) -> None:
    """Cancel or pause a job: at once if it waits, else by asking its attempt to stop."""
    outcome, state, word = {
        Desired.CANCEL: (Outcome.CANCELLED, JobState.CANCELLED, "Cancelled"),
        Desired.PAUSE: (Outcome.PAUSED, JobState.PAUSED, "Paused"),
    }[desired]
    message = f"{word} by {person.name}."
    now = utc_now()
    job.desired = desired
    session.flush()
    if job.state in WAITING_JOB:
        final: dict[str, object] = {"finished_at": now} if desired is Desired.CANCEL else {}
        advance(
            session,
            job,
            state,
            now=now,
            reason_code=outcome,
            message=message,
            actor=person.id,
            predicted_start=None,
            **final,
        )
    elif job.state is not JobState.STOPPING:
        stop(session, bells, job, outcome, message, person)
    else:
        note(
            session,
            job.id,
            f"{desired}_asked",
            now=now,
            message=f"{word} by {person.name} while it was stopping.",
            actor=person.id,
            epoch=job.epoch,
        )
    audit_others(session, job, person, f"job.{desired}")
    bells.scheduler = True
    bells.jobs.add(job.id)


def stop(
    session: Session, bells: Bells, job: Job, outcome: Outcome, message: str, person: Person
) -> None:
    """Ask the live attempt to stop with a checkpoint. Raises Conflict if there is none."""
    now = utc_now()
    if not ask_to_stop(session, job, outcome, now=now, message=message, actor=person.id):
        raise Conflict(f"{job.name} has just changed. Read it again.")
    attempt = live_attempt(session, job)
    if attempt is not None:
        bells.nodes.update(node_names(session, attempt))
    if outcome is Outcome.PREEMPTED:
        audit_others(session, job, person, "job.requeue")
    bells.jobs.add(job.id)


def request(
    session: Session, bells: Bells, job: Job, action: Literal["profile", "snapshot"], person: Person
) -> None:
    """Ask the running attempt for something that it leaves behind as an artifact. Raises Conflict
    if there is none."""
    if not isinstance(stored_spec(job.spec), JobSpec):
        raise Conflict(
            f"{job.name} is a program of its owner's; the platform cannot take a {WHAT[action]} "
            "of it."
        )
    attempt = live_attempt(session, job) if job.state is JobState.RUNNING else None
    if attempt is None:
        raise Conflict(
            f"{job.name} is {job.state}; only a running job can be asked for a {WHAT[action]}."
        )
    message = (
        f"{person.name} asked for a {WHAT[action]}; it is among the artifacts once this attempt "
        "has ended."
    )
    _ask_node(session, bells, job, attempt, action, person, message)


def _ask_node(
    session: Session,
    bells: Bells,
    job: Job,
    attempt: Attempt,
    action: RequestAction,
    person: Person,
    message: str,
) -> None:
    number = Request.model_validate(attempt.request).number + 1 if attempt.request else 1
    attempt.request = Request(number=number, action=action).model_dump()
    note(
        session,
        job.id,
        f"{action}_asked",
        now=utc_now(),
        message=message,
        actor=person.id,
        epoch=attempt.epoch,
    )
    audit_others(session, job, person, f"job.{action}")
    bells.nodes.update(node_names(session, attempt))
    bells.jobs.add(job.id)


def refuse_final(job: Job, what: str) -> None:
    """Raise Conflict for a job that has ended."""
    if job.state in TERMINAL_JOB:
        ended = "has been cancelled" if job.state is JobState.CANCELLED else f"has {job.state}"
        raise Conflict(f"{job.name} {ended} and cannot be {what}.", code="job_is_final")


def audit_others(session: Session, job: Job, person: Person, action: str) -> None:
    """Record an action of staff on somebody else's job."""
    if job.user_id != person.id:
        audit.record(session, person.id, action, job.id, now=utc_now(), owner=job.user_id)


def cancel(session: Session, bells: Bells, job_id: str, person: Person) -> JobView:
    """End a job for good. Raises NotFound, Conflict."""
    job = find_job_locked(session, job_id, person)
    if job.state is not JobState.CANCELLED:
        refuse_final(job, "cancelled")
        want(session, bells, job, Desired.CANCEL, person)
    return show_job(session, job_id, person)


def pause(session: Session, bells: Bells, job_id: str, person: Person) -> JobView:
    """Stop a job with a checkpoint and keep it. Raises NotFound, Conflict."""
    job = find_job_locked(session, job_id, person)
    refuse_final(job, "paused")
    if job.desired is Desired.CANCEL:
        raise Conflict(f"{job.name} is being cancelled and cannot be paused.")
    if job.state is not JobState.PAUSED:
        want(session, bells, job, Desired.PAUSE, person)
    return show_job(session, job_id, person)


def resume(
    session: Session, bells: Bells, job_id: str, person: Person, *, now: datetime
) -> JobView:
    """Queue a paused job again. Raises NotFound, Conflict."""
    job = find_job_locked(session, job_id, person)
    refuse_final(job, "resumed")
    if job.desired is Desired.CANCEL:
        raise Conflict(f"{job.name} is being cancelled and cannot be resumed.")
    if job.state is JobState.PAUSED:
        advance(
            session,
            job,
            JobState.QUEUED,
            now=now,
            reason_code=ReasonCode.RESUMED,
            message="Resumed; waiting for the scheduler's next cycle.",
            actor=person.id,
            desired=Desired.RUN,
        )
        audit_others(session, job, person, "job.resume")
    elif job.desired is Desired.PAUSE:
        job.desired = Desired.RUN  # it is still stopping: it will be queued, not paused
        note(
            session,
            job.id,
            "resumed",
            now=now,
            message="Resumed while it was stopping.",
            actor=person.id,
            epoch=job.epoch,
        )
        audit_others(session, job, person, "job.resume")
    bells.scheduler = True
    bells.jobs.add(job.id)
    session.flush()
    return show_job(session, job_id, person)


def requeue(session: Session, bells: Bells, job_id: str, person: Person) -> JobView:
    """Stop a job with a checkpoint and queue it again. Raises NotFound, Conflict."""
    job = find_job_locked(session, job_id, person)
    refuse_final(job, "queued again; clone it instead")
    if job.state in WAITING_JOB:
        raise Conflict(f"{job.name} is {job.state}; it has no running attempt to stop.")
    if job.state is JobState.STOPPING:
        raise Conflict(f"{job.name} is already stopping.")
    stop(session, bells, job, Outcome.PREEMPTED, "Asked to give up its node.", person)
    return show_job(session, job_id, person)


def release(session: Session, bells: Bells, job_id: str, person: Person) -> JobView:
    """End the hold of a failed job's sandbox. Raises NotFound, Conflict if it is not held."""
    job = find_job_locked(session, job_id, person)
    attempt = live_attempt(session, job)
    if attempt is None or attempt.held_until is None:
        raise Conflict(f"{job.name} is {job.state}; its sandbox is not held.", code="not_held")
    if job.state is JobState.RUNNING:
        message = f"{person.name} released the sandbox."
        _ask_node(session, bells, job, attempt, "release", person, message)
        session.flush()
    return show_job(session, job_id, person)


def put_tags(
    session: Session, bells: Bells, job_id: str, person: Person, tags: Sequence[str]
) -> JobView:
    """Set the tags of a job. Raises NotFound."""
    job = find_job_locked(session, job_id, person)
    if list(tags) != job.tags:
        job.tags = list(tags)
        audit_others(session, job, person, "job.tag")
        bells.jobs.add(job.id)
    session.flush()
    return show_job(session, job_id, person)


def put_report(
    session: Session, bells: Bells, job_id: str, person: Person, *, when_ended: bool
) -> JobView:
    """Choose whether a report is written when a job has ended. Raises NotFound, Conflict if it is
    written already and was not to be."""
    job = find_job_locked(session, job_id, person)
    if not when_ended and job.report_sha256 is not None:
        raise Conflict(
            f"The report of {job.name} is written already. Its owner can delete it among the "
            "reports.",
            code="report_written",
        )
    is_due = when_ended and job.report_sha256 is None
    if is_due != job.report_when_ended:
        job.report_when_ended = is_due
        audit_others(session, job, person, "job.report")
        bells.jobs.add(job.id)
    session.flush()
    return show_job(session, job_id, person)


def ask(
    session: Session,
    bells: Bells,
    job_id: str,
    person: Person,
    action: Literal["profile", "snapshot"],
) -> JobView:
    """Ask a running job for a profile or a snapshot. Raises NotFound, Conflict."""
    job = find_job_locked(session, job_id, person)
    request(session, bells, job, action, person)
    session.flush()
    return show_job(session, job_id, person)
