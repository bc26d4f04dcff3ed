"""Notices to people: one row for each, written in the transaction that made it true.

A row is all that the scheduler and the API do; sending it is another process's work, so that a mail
server that hangs holds up nobody, and a transaction that rolls back tells nobody anything.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from core.tables.kinds import NoticeState
from core.tables.notices import Notice


class NoticeKind(StrEnum):
    """Event that a notice tells, as a past participle; a template may be chosen by it."""

    LEASE_ENDING = "lease_ending"
    LEASE_MOVED = "lease_moved"
    LEASE_REFUNDED = "lease_refunded"
    LEASE_IDLE = "lease_idle"
    LEASE_RECLAIMED = "lease_reclaimed"
    LEASE_CANCELLED = "lease_cancelled"
    LEASE_RESTORED = "lease_restored"
    LEASES_CLEANED = "leases_cleaned"
    """Leases removed by a clean-up: one notice for each person, whatever it took of theirs."""
    LEASE_FLAGGED = "lease_flagged"
    LEASE_CLOCK_MOVED = "lease_clock_moved"
    BLOCK_OFFERED = "block_offered"
    OFFER_EXPIRED = "offer_expired"
    AGENDA_LATE = "agenda_late"
    AGENDA_CUT = "agenda_cut"
    """Job cut by its wall time, or the rest of the agenda cut by the end of its lease."""
    TEST = "test"
    STORAGE_NEARLY_FULL = "storage_nearly_full"
    JOB_SUCCEEDED = "job_succeeded"
    JOB_FAILED = "job_failed"
    JOB_HELD = "job_held"
    """Job that is paused because it was stopped too often before a first checkpoint."""
    REPORT_WRITTEN = "report_written"
    """Report that was written because its job has ended."""
    REPORT_REFUSED = "report_refused"


JOB_NEWS = frozenset({NoticeKind.JOB_SUCCEEDED, NoticeKind.JOB_FAILED, NoticeKind.JOB_HELD})
"""Kinds that a person gets only after choosing a channel for them."""


def notify(
    session: Session,
    user_id: str,
    kind: NoticeKind,
    subject: str,
    facts: dict[str, object],
    *,
    now: datetime,
) -> Notice:
    """Write a notice to a person. `facts` is JSON with `message`, a sentence that says it all.

    `rows`, if there are any, are lists of values, one line each; moments are RFC 3339 everywhere.
    """
    assert facts.get("message"), "a notice says something"
    notice = Notice(
        user_id=user_id,
        kind=kind,
        subject=subject,
        facts=facts,
        state=NoticeState.WAITING,
        created_at=now,
    )
    session.add(notice)
    return notice
