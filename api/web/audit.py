"""Audit log: one appended row for every act of staff and for every change of access."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, select, tuple_
from sqlalchemy.orm import Session

from core.tables.admin import AuditEntry

# Built once: to build a query takes longer than to ask it.
RECORDED = (
    select(AuditEntry.actor, AuditEntry.action, AuditEntry.subject)
    .where(
        AuditEntry.at > bindparam("since"),
        tuple_(AuditEntry.actor, AuditEntry.action, AuditEntry.subject).in_(
            bindparam("acts", expanding=True)
        ),
    )
    .distinct()
)


@dataclass(frozen=True)
class Act:
    """An act of somebody on something."""

    actor: str
    action: str
    subject: str
    details: Mapping[str, object] = field(default_factory=dict)
    """More about it; must be JSON."""


def record(
    session: Session, actor: str, action: str, subject: str, *, now: datetime, **details: object
) -> None:
    """Append a row. `action` is a name such as `node.drain`; `details` must be JSON."""
    session.add(
        AuditEntry(at=now, actor=actor, action=action, subject=subject, details=dict(details))
    )


def record_once(session: Session, acts: Collection[Act], *, since: datetime, now: datetime) -> None:
    """Append a row for each act that is not in the log after `since`: for repeated acts."""
    for act in not_recorded(session, acts, since=since):
        record(session, act.actor, act.action, act.subject, now=now, **act.details)


def not_recorded(session: Session, acts: Collection[Act], *, since: datetime) -> Sequence[Act]:
    """Return those acts, each once, that are not in the log after `since`."""
    wanted = {(act.actor, act.action, act.subject): act for act in acts}
    if not wanted:
        return []
    for found in session.execute(RECORDED, {"since": since, "acts": list(wanted)}):
        wanted.pop((found.actor, found.action, found.subject), None)
    return list(wanted.values())
