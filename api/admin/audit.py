"""Who did what: one appended row for every act of staff and for every change of access."""

from datetime import datetime

from sqlalchemy.orm import Session

from core.tables.admin import AuditEntry


def record(
    session: Session, actor: str, action: str, subject: str, *, now: datetime, **details: object
) -> None:
    """Append a row. `action` is such as `node.drain`; `details` must be JSON."""
    session.add(
        AuditEntry(at=now, actor=actor, action=action, subject=subject, details=dict(details))
    )
