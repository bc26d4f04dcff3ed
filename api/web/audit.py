"""Audit log: one appended row for every act of staff and for every change of access."""

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.admin import AuditEntry


def record(
    session: Session, actor: str, action: str, subject: str, *, now: datetime, **details: object
) -> None:
    """Append a row. `action` is a name such as `node.drain`; `details` must be JSON."""
    session.add(
        AuditEntry(at=now, actor=actor, action=action, subject=subject, details=dict(details))
    )


def record_once(
    session: Session,
    /,
    actor: str,
    action: str,
    subject: str,
    *,
    within: timedelta,
    now: datetime,
    **details: object,
) -> None:
    """Append a row unless this act is in the log since `now` - `within`: for repeated acts."""
    if not is_recorded(session, actor, action, subject, since=now - within):
        record(session, actor, action, subject, now=now, **details)


def is_recorded(
    session: Session, actor: str, action: str, subject: str, *, since: datetime
) -> bool:
    """Return True if this act of `actor` on `subject` is in the log after `since`."""
    row = (
        select(AuditEntry.id)
        .where(
            AuditEntry.at > since,
            AuditEntry.actor == actor,
            AuditEntry.action == action,
            AuditEntry.subject == subject,
        )
        .limit(1)
    )
    return session.scalar(row) is not None
