"""Stop of an active lease from outside: its jobs save and stop, the scheduler frees its hours."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.jobs import attempts
from core.jobs.attempts import ask_to_stop, live_attempt
from core.states import LIVE_ATTEMPT, LeaseState, Outcome
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.transitions import advance


@dataclass(frozen=True)
class StopBells:
    """Nodes and jobs to be notified once the transaction is committed."""

    node_names: frozenset[str]
    job_ids: frozenset[str]


def stop(session: Session, lease: Lease, *, now: datetime, message: str, actor: str) -> StopBells:
    """Ask every job in an active lease to save and stop, and let the lease end."""
    stopped = stop_jobs(
        session,
        lease,
        now=now,
        message=f"Saving and stopping: its lease was ended. {message}",
        actor=actor,
    )
    advance(
        session,
        lease,
        LeaseState.ENDING,
        now=now,
        reason_code=ReasonCode.STOPPED,
        message=message,
        actor=actor,
    )
    return stopped


def stop_jobs(
    session: Session, lease: Lease, *, now: datetime, message: str, actor: str
) -> StopBells:
    """Ask every job in a lease to save and stop; `message` is what their owners read."""
    return _ask(
        session, lease, _in(lease), Outcome.LEASE_ENDED, now=now, message=message, actor=actor
    )


def stop_guests(
    session: Session, lease: Lease, *, now: datetime, message: str, actor: str
) -> StopBells:
    """Ask the jobs in a lease that are not its owner's to save and stop."""
    guests = _in(lease).where(Job.user_id != lease.user_id)
    return _ask(session, lease, guests, Outcome.PREEMPTED, now=now, message=message, actor=actor)


def _in(lease: Lease) -> Select[Job]:
    return (
        select(Job)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.lease_id == lease.id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
        .order_by(Job.id)
    )


def _ask(
    session: Session,
    lease: Lease,
    whom: Select[Job],
    reason: Outcome,
    *,
    now: datetime,
    message: str,
    actor: str,
) -> StopBells:
    jobs = session.scalars(whom).all()
    node_names = {session.get_one(Node, lease.node_id).name}
    for job in jobs:  # one over several nodes stops on all of them
        attempt = live_attempt(session, job)
        node_names.update(attempts.node_names(session, attempt) if attempt else ())
    asked = [
        job.id
        for job in jobs
        if ask_to_stop(
            session,
            job,
            reason,
            now=now,
            message=message,
            actor=actor,
        )
    ]
    return StopBells(frozenset(node_names), frozenset(asked))
