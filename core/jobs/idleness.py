"""Idleness of workbenches: what their porters report, and what is seen of their GPUs from
outside."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.words import clock
from core.jobs.attempts import lock
from core.spec.workbench import MOST_HELD_GIB, WhenIdle
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt, AttemptPart, Job
from core.transitions import note
from core.wire.frames import IdleReport
from core.wire.messages import Telemetry

Value = TypeVar("Value")

USED_PCT = 5.0  # of a GPU's time: what a display or a monitor takes is less


def take_report(
    session: Session, job_id: str, epoch: int, report: IdleReport, *, now: datetime
) -> bool:
    """Record that a workbench is idle, or in use again; return True if that is new. One whose GPUs
    were used meanwhile is not idle."""
    job = session.get(Job, job_id)
    if job is None or job.epoch != epoch:
        return False
    lock(session, job)
    attempt = session.scalar(
        select(Attempt).where(
            Attempt.job_id == job_id,
            Attempt.epoch == epoch,
            Attempt.state.in_(LIVE_ATTEMPT),
        )
    )
    if attempt is None or report.is_idle == (attempt.idle_since is not None):
        return False
    if report.is_idle:
        used_at, after = attempt.gpus_used_at, timedelta(seconds=report.after_s)
        if used_at is not None and now - used_at < after:
            return False
        since = now - after
        attempt.idle_since, attempt.gpu_held_gib = now, None
        said = f"Idle: no key and nothing at work since {clock(since, now)}."
        note(session, job.id, "left", now=now, message=said, actor="workbench", epoch=epoch)
    else:
        _use_again(session, job, attempt, now=now)
    return True


def look_at_gpus(
    session: Session,
    job: Job,
    attempt: Attempt,
    part: AttemptPart,
    telemetry: Telemetry,
    *,
    now: datetime,
) -> bool:
    """Record use and memory of a workbench's GPUs, unless a guest has them now; return True if its
    slots may be lent, or are no longer, by this. A GPU whose use is not known counts as used."""
    was_idle, held_before = attempt.idle_since is not None, attempt.gpu_held_gib
    if was_idle and _has_guest(session, job, part):
        return False
    if any(pct is None or pct >= USED_PCT for pct in _of_slots(telemetry.gpu_pct, part)):
        attempt.gpus_used_at = now
        if was_idle:
            _use_again(session, job, attempt, now=now)
            return True
    if was_idle:
        held_gib = [gib or 0.0 for gib in _of_slots(telemetry.gpu_memory_used_gib, part)]
        attempt.gpu_held_gib = round(max(held_gib, default=0.0), 1)
    return attempt.gpu_held_gib != held_before


def idle_note(session: Session, attempt: Attempt | None, choice: WhenIdle, *, now: datetime) -> str:
    """Return sentences for its owner on a workbench that is idle; empty if it is in use."""
    if attempt is None or attempt.idle_since is None:
        return ""
    since, held_gib = f"Idle since {clock(attempt.idle_since, now)}.", attempt.gpu_held_gib or 0.0
    if choice is WhenIdle.KEEP:
        return f"{since} Its slots stay unused (when_idle: keep)."
    if held_gib > MOST_HELD_GIB:
        return (
            f"{since} It holds {held_gib:.1f} GiB of GPU memory, so its slots are not lent. Shut "
            "its kernels down, or start it with when_idle: release."
        )
    job = session.get_one(Job, attempt.job_id)
    parts = session.scalars(select(AttemptPart).where(AttemptPart.attempt_id == attempt.id))
    if any(_has_guest(session, job, part) for part in parts):
        return f"{since} Another job has its slots; a guest leaves at your next key or cell."
    return f"{since} Its slots are lent until your next key or cell."


def _of_slots(values: Sequence[Value], part: AttemptPart) -> list[Value]:
    return [values[slot] for slot in part.slots if slot < len(values)]


def _has_guest(session: Session, job: Job, part: AttemptPart) -> bool:
    others = session.scalars(
        select(AttemptPart.slots)
        .join(Attempt, Attempt.id == AttemptPart.attempt_id)
        .where(
            AttemptPart.node_id == part.node_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
            Attempt.job_id != job.id,
        )
    )
    return any(not set(part.slots).isdisjoint(slots) for slots in others)


def _use_again(session: Session, job: Job, attempt: Attempt, *, now: datetime) -> None:
    attempt.idle_since = attempt.gpu_held_gib = None
    said = "In use again."
    note(session, job.id, "returned", now=now, message=said, actor="workbench", epoch=job.epoch)
