"""News about a person's jobs: a job has ended, or is held. They are for those who asked for them.

A notice is written in the transaction in which the job's state changes, and only for a person who
has chosen a channel for its kind: many jobs end in a day, and nobody is mailed unasked.
"""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.reasons import Code, ReasonCode
from core.notices.notices import JOB_NEWS, NoticeKind, notify
from core.states import JobState
from core.tables.jobs import Job
from core.tables.kinds import Channel
from core.tables.notices import ChannelChoice

KINDS = {JobState.SUCCEEDED: NoticeKind.JOB_SUCCEEDED, JobState.FAILED: NoticeKind.JOB_FAILED}
assert {*KINDS.values(), NoticeKind.JOB_HELD} == JOB_NEWS


def kind_of(state: JobState, reason_code: Code) -> NoticeKind | None:
    """Return the kind of news that a job's new state is; None if it is none."""
    if state is JobState.PAUSED and reason_code == ReasonCode.HELD:
        return NoticeKind.JOB_HELD
    return KINDS.get(state)


def tell_owner(
    session: Session, job: Job, state: JobState, *, reason_code: Code, message: str, now: datetime
) -> None:
    """Notify the owner of a job of its new state, if that is news and the owner asked for it."""
    kind = kind_of(state, reason_code)
    if kind is None:
        return
    chosen = session.scalar(
        select(ChannelChoice.channel).where(
            ChannelChoice.user_id == job.user_id, ChannelChoice.kind == kind
        )
    )
    if chosen in (None, Channel.OFF):
        return
    facts: dict[str, object] = {"message": f"{job.name}: {message}", "job": job.id}
    notify(session, job.user_id, kind, job.id, facts, now=now)
