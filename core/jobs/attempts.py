"""Life of a job together with its attempt: assign, run, ask to stop, end, conclude.

The scheduler assigns and declares lost; the API hears from nodes and from owners. Both come here,
so that job and attempt never disagree. Each function does one thing in the caller's transaction and
reports whether it still could.

An attempt has a part on each of its nodes, mostly one. It is over when all have ended; the first
that ends badly has the others stopped.

Every caller locks the job before its attempt: two that meet wait for each other and never deadlock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.base.reasons import ReasonCode
from core.base.words import clock, in_words
from core.jobs.gang_exit import PartEnd, judge_together
from core.leases import node_slots
from core.spec.spec import ProgramJobSpec, WorkbenchJobSpec, format_duration, stored_spec
from core.states import (
    INFRASTRUCTURE,
    INTERRUPTED,
    JOB_EDGES,
    LIVE_ATTEMPT,
    MAX_INFRASTRUCTURE_FAILURES,
    TERMINAL_JOB,
    AttemptState,
    Desired,
    JobState,
    Outcome,
    job_after,
)
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.transitions import advance, enter, note
from core.wire.messages import ExitRecord, Rendezvous
from core.workspaces import writers

QUEUED_AGAIN = "Queued again. "
END_OF_WORKBENCH = (Outcome.LEASE_ENDED, Outcome.TIME_LIMIT)  # nobody would sit there
BACK_OFF_S = (5, 30, 120)  # before the next attempt, after the first, second, third such failure

# Built once: to build a query takes longer than to ask it.
LIVE_OF = select(Attempt).where(
    Attempt.job_id == bindparam("job_id"),
    Attempt.epoch == bindparam("epoch"),
    Attempt.state.in_(LIVE_ATTEMPT),
)
PARTS_OF = (
    select(AttemptPart)
    .where(AttemptPart.attempt_id == bindparam("attempt_id"))
    .order_by(AttemptPart.position)
)
NEWEST_CHECKPOINT = (
    select(Checkpoint)
    .where(Checkpoint.job_id == bindparam("job_id"), Checkpoint.deleted_at.is_(None))
    .order_by(Checkpoint.step.desc(), Checkpoint.epoch.desc())
    .limit(1)
)


@dataclass(frozen=True)
class NodeAssignment:
    """A node for an attempt, its lease there, and the slots for its ranks."""

    node: Node
    lease: Lease
    slots: tuple[int, ...] = ()


def live_attempt(session: Session, job: Job) -> Attempt | None:
    """Return the attempt of this job that has not exited, if any."""
    return session.scalars(LIVE_OF, {"job_id": job.id, "epoch": job.epoch}).first()


def parts_of(session: Session, attempt: Attempt) -> Sequence[AttemptPart]:
    """Return the attempt's part on each of its nodes, the first node first."""
    return session.scalars(PARTS_OF, {"attempt_id": attempt.id}).all()


def node_names(session: Session, attempt: Attempt) -> Sequence[str]:
    """Return the names of its nodes, the first one first."""
    return session.scalars(
        select(Node.name)
        .join(AttemptPart, AttemptPart.node_id == Node.id)
        .where(AttemptPart.attempt_id == attempt.id)
        .order_by(AttemptPart.position)
    ).all()


def newest_checkpoint(session: Session, job_id: str) -> Checkpoint | None:
    """Return the checkpoint to resume from: the furthest step, of the newest attempt that reached
    it."""
    return session.scalars(NEWEST_CHECKPOINT, {"job_id": job_id}).first()


def assign(
    session: Session,
    job: Job,
    places: Sequence[NodeAssignment],
    *,
    now: datetime,
    actor: str,
    rendezvous: Rendezvous | None = None,
) -> Attempt | None:
    """Give a queued job its next attempt, in `places`; None if the job is no longer queued, or if a
    lease does not have one of the slots, in service.

    On the first of several nodes the ranks meet, at `rendezvous`.
    """
    if any(not node_slots.lease_slots(session, one.lease).issuperset(one.slots) for one in places):
        return None
    checkpoint = newest_checkpoint(session, job.id)
    where = f"from its checkpoint of step {checkpoint.step:,}" if checkpoint else "from the start"
    first = places[0]
    message = f"Starting on {in_words([place.node.name for place in places])}, {where}."
    moved = advance(
        session,
        job,
        JobState.STARTING,
        now=now,
        reason_code=ReasonCode.STARTING,
        message=message,
        actor=actor,
        epoch=job.epoch + 1,
        predicted_start=None,
    )
    if not moved:
        return None
    attempt = Attempt(
        id=new_id(IdKind.ATTEMPT),
        job_id=job.id,
        epoch=job.epoch,
        node_id=first.node.id,
        lease_id=first.lease.id,
        state=AttemptState.ASSIGNED,
        reason=message,
        rendezvous=rendezvous.model_dump() if rendezvous else None,
        resume_checkpoint_id=checkpoint.id if checkpoint else None,
        assigned_at=now,
    )
    enter(session, attempt, now=now, reason_code=ReasonCode.ASSIGNED, message=message, actor=actor)
    session.add_all(
        AttemptPart(
            attempt_id=attempt.id,
            position=position,
            node_id=place.node.id,
            lease_id=place.lease.id,
            slots=list(place.slots),
            boot_id=place.node.boot_id,
        )
        for position, place in enumerate(places)
    )
    session.flush()
    if asks_for_workspace(job):
        shared = all(place.node.inventory.get("shared_workspaces") for place in places)
        names = [place.node.name for place in places]
        writers.take(session, job, attempt, names, shared=shared, now=now, actor=actor)
    return attempt


def asks_for_workspace(job: Job) -> bool:
    """Return True if the job brings its owner's workspace."""
    spec = stored_spec(job.spec)
    return isinstance(spec, ProgramJobSpec) and spec.workspace


def _is_workbench(job: Job) -> bool:
    return isinstance(stored_spec(job.spec), WorkbenchJobSpec)


def run(
    session: Session,
    job: Job,
    attempt: Attempt,
    *,
    now: datetime,
    actor: str,
    message: str | None = None,
) -> None:
    """Mark the attempt and its job as running, once the attempt has made its first step, or its
    workbench can be entered, or its sandbox is held."""
    lock(session, job)
    message = message or ("The workbench is open." if _is_workbench(job) else "Training.")
    if attempt.state is AttemptState.ASSIGNED:
        start(session, attempt, now=now, actor=actor)
    advance(
        session,
        attempt,
        AttemptState.RUNNING,
        now=now,
        reason_code=ReasonCode.RUNNING,
        message=message,
        actor=actor,
        first_step_at=now,
    )
    advance(
        session,
        job,
        JobState.RUNNING,
        now=now,
        reason_code=ReasonCode.RUNNING,
        message=message,
        actor=actor,
        started_at=job.started_at or now,
    )


def hold_sandbox(
    session: Session,
    job: Job,
    attempt: Attempt,
    *,
    outcome: Outcome,
    why: str,
    until: datetime,
    now: datetime,
    actor: str,
) -> None:
    """Record that an attempt has failed, with `outcome`, and that its sandbox is held.

    It stays live until the hold is over, so its slots stay its own. `why` is a sentence for the
    owner.
    """
    failed = "The program has failed, and its sandbox can be entered."
    run(session, job, attempt, now=now, actor=actor, message=failed)
    if attempt.held_until is not None or attempt.state is not AttemptState.RUNNING:
        return
    attempt.held_until, attempt.held_outcome = until, outcome
    message = f"{why} Its sandbox is held until {clock(until, now)} at the latest."
    attempt.reason = job.reason = message
    job.reason_code = ReasonCode.FAILED_HELD
    note(
        session,
        job.id,
        "held",
        now=now,
        message=message,
        actor=actor,
        epoch=attempt.epoch,
        reason_code=outcome,
    )
    session.flush()


def lock(session: Session, job: Job) -> None:
    """Lock the job until the transaction ends, and read it again: it may have moved on."""
    session.refresh(job, with_for_update={"key_share": True})


def start(session: Session, attempt: Attempt, *, now: datetime, actor: str) -> None:
    """Mark the attempt as starting, once every node has taken it up."""
    advance(
        session,
        attempt,
        AttemptState.STARTING,
        now=now,
        reason_code=ReasonCode.STARTING,
        message="Its ranks are being started.",
        actor=actor,
        started_at=now,
    )


def limited_to(job: Job, attempt: Attempt, *, now: datetime) -> datetime:
    """Return the end of a live attempt's wall time, or of the hold of its sandbox."""
    if attempt.held_until is not None:
        return attempt.held_until
    return (attempt.started_at or now) + timedelta(seconds=job.wall_time_s - job.used_s)


def ask_to_stop(
    session: Session, job: Job, reason: Outcome, *, now: datetime, message: str, actor: str
) -> bool:
    """Ask a starting or running job's attempt to save and stop; False if there is none to ask."""
    lock(session, job)
    attempt = live_attempt(session, job)
    if attempt is None or not advance(
        session,
        job,
        JobState.STOPPING,
        now=now,
        reason_code=reason,
        message=message,
        actor=actor,
    ):
        return False
    advance(
        session,
        attempt,
        AttemptState.STOPPING,
        now=now,
        reason_code=reason,
        message=message,
        actor=actor,
        stop_reason=reason,
    )
    return True


def end_part(
    session: Session,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    end: PartEnd,
    *,
    now: datetime,
    actor: str,
) -> bool:
    """Record that the attempt is over on one node. Return False if that was known.

    Once it is over on all of them it is judged and concluded. Until then the others train on if
    this one has succeeded, else they are asked to stop.
    """
    lock(session, job)
    session.refresh(attempt)
    if attempt.state not in LIVE_ATTEMPT or part.ended_at is not None:
        return False
    part.ended_at, part.lost = now, end.lost
    if end.record is not None:
        part.exit = end.record.model_dump(mode="json")
    session.flush()
    parts = parts_of(session, attempt)
    if any(each.ended_at is None for each in parts):
        if not end.succeeded:
            _stop_the_others(session, job, attempt, end, now=now, actor=actor)
        return True
    judged = judge_together([_end_of(each) for each in parts], asked=attempt.stop_reason)
    return conclude(
        session,
        job,
        attempt,
        judged.outcome,
        message=judged.message,
        now=now,
        actor=actor,
        record=judged.record,
    )


def _stop_the_others(
    session: Session, job: Job, attempt: Attempt, end: PartEnd, *, now: datetime, actor: str
) -> None:
    """Stop the attempt on its other nodes. It gets no `stop_reason`: nobody asked for this stop."""
    outcome = end.record.outcome if end.record else Outcome.NODE_LOST
    why = end.record.reason if end.record else end.lost
    for row in (attempt, job):
        advance(
            session,
            row,
            AttemptState.STOPPING if isinstance(row, Attempt) else JobState.STOPPING,
            now=now,
            reason_code=outcome,
            message=f"{why} Stopping on its other nodes.",
            actor=actor,
        )


def _end_of(part: AttemptPart) -> PartEnd:
    return PartEnd(ExitRecord.model_validate(part.exit) if part.exit else None, part.lost)


def conclude(
    session: Session,
    job: Job,
    attempt: Attempt,
    outcome: Outcome,
    *,
    message: str,
    now: datetime,
    actor: str,
    record: ExitRecord | None = None,
) -> bool:
    """End the whole attempt and decide the next state of its job. False if it was over already.

    `message` says what happened, in a sentence for the owner. Without a `record` nobody saw the
    end: the node or the shim was lost.
    """
    lock(session, job)
    if record is None and attempt.held_outcome is not None:  # it had failed before it was lost
        outcome, message = attempt.held_outcome, f"{attempt.reason} {message}"
    if outcome is Outcome.PREEMPTED and attempt.state is AttemptState.STOPPING and attempt.reason:
        message = f"{attempt.reason} {message}"  # the reason names the job that needed its nodes
    exited = advance(
        session,
        attempt,
        AttemptState.EXITED,
        now=now,
        reason_code=outcome,
        message=message,
        actor=actor,
        outcome=outcome,
        ended_at=now,
        **({"exit": record.model_dump(mode="json")} if record else {}),  # None would be JSON null
    )
    if not exited:
        return False
    writers.note_loss(session, attempt, now=now, actor=actor)
    session.execute(
        update(AttemptPart)
        .where(AttemptPart.attempt_id == attempt.id, AttemptPart.ended_at.is_(None))
        .values(ended_at=now)
        .execution_options(synchronize_session="fetch")
    )
    if attempt.epoch != job.epoch or job.state in TERMINAL_JOB:
        return True
    if job.state is JobState.STARTING and outcome is Outcome.SUCCEEDED:
        run(session, job, attempt, now=now, actor=actor)  # it finished before a step was seen
    used_s = job.used_s + round(record.duration_s if record else _proven_s(attempt))
    changes: dict[str, object] = {"used_s": used_s}
    if outcome in INFRASTRUCTURE:
        wait_s = BACK_OFF_S[min(job.infrastructure_failures, len(BACK_OFF_S) - 1)]
        changes["infrastructure_failures"] = job.infrastructure_failures + 1
        changes["not_before"] = now + timedelta(seconds=wait_s)
    if outcome in INTERRUPTED:
        changes["interruptions"] = job.interruptions + 1
    after = job_after(outcome, job.desired, job.infrastructure_failures)
    reason_code = outcome
    if outcome is Outcome.PAUSED and job.desired is Desired.RUN:
        message = "Queued again: it was resumed while it was stopping."
    elif after is JobState.QUEUED:
        message = f"{QUEUED_AGAIN}{message}"
    elif outcome in INFRASTRUCTURE and after is JobState.FAILED:
        message = f"{message} That was failure {MAX_INFRASTRUCTURE_FAILURES + 1} of this kind."
    if after is JobState.QUEUED and used_s >= job.wall_time_s:
        after, reason_code = JobState.FAILED, Outcome.TIME_LIMIT
        message = (
            f"{message.removeprefix(QUEUED_AGAIN)} Its wall time of "
            f"{format_duration(job.wall_time_s)} is used up, so it is not retried. Clone it "
            "with a longer wall time to continue."
        )
    if after is JobState.QUEUED and outcome is not Outcome.PAUSED and _has_one_attempt(job):
        after = JobState.FAILED
        message = (
            f"{message.removeprefix(QUEUED_AGAIN)} A job with allow_oom has one attempt. Clone it "
            "to try again."
        )
    if outcome in END_OF_WORKBENCH and after is not JobState.PAUSED and _is_workbench(job):
        after, reason_code = JobState.CANCELLED, outcome
        message = (
            f"{message.removeprefix(QUEUED_AGAIN)} A workbench is over then, and does not start "
            "again by itself. Its owner's workspace is kept."
        )
    if after in TERMINAL_JOB:
        changes["finished_at"] = now
    if record is not None and record.result is not None and after is JobState.SUCCEEDED:
        changes["result"] = record.result.model_dump(mode="json")
    _move_on(
        session,
        job,
        after,
        now=now,
        reason_code=reason_code,
        message=message,
        actor=actor,
        **changes,
    )
    return True


def _has_one_attempt(job: Job) -> bool:
    """Return True if the job is never retried: it may run out of memory, to show that it does."""
    spec = stored_spec(job.spec)
    return spec is not None and spec.resources.allow_oom


def _move_on(
    session: Session,
    job: Job,
    to: JobState,
    *,
    now: datetime,
    reason_code: Outcome,
    message: str,
    actor: str,
    **changes: object,
) -> None:
    """Move the job to `to`, through `stopping` where no edge leads there directly."""
    if to not in JOB_EDGES[job.state]:
        advance(
            session,
            job,
            JobState.STOPPING,
            now=now,
            reason_code=reason_code,
            message=message,
            actor=actor,
        )
    advance(
        session,
        job,
        to,
        now=now,
        reason_code=reason_code,
        message=message,
        actor=actor,
        **changes,
    )


def _proven_s(attempt: Attempt) -> float:
    """Seconds that it ran for certain, where nobody saw its end: until its last known step."""
    if attempt.started_at is None or attempt.last_step_at is None:
        return 0.0
    return max(0.0, (attempt.last_step_at - attempt.started_at).total_seconds())
