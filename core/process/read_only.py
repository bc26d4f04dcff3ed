"""Read-only: while a platform is backed up or moved, nothing of it changes.

A claim like a chore's, so that it ends by itself if the process that asked for it was killed. Every
write of the API checks it in its own transaction; the scheduler decides and sends nothing
meanwhile, and nothing is deleted by retention or swept. Nodes are told to come again: they train
on, and send their spooled data afterwards.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.base.errors import Unavailable
from core.tables.processes import Claim

CHORE = "read_only"
RETRY_S = 30

# Built once: every write begins with it.
CLAIM = select(Claim.holder, Claim.until).where(Claim.chore == CHORE)


class ReadOnly(Unavailable):
    """The platform is read-only for now; trying again later will work."""

    code = "read_only"
    title = "Read only"

    def __init__(self, reason: str, until: datetime, now: datetime) -> None:
        super().__init__(
            f"Nothing can be changed until {until:%H:%M} UTC at the latest: {reason} Running "
            "jobs continue. Try again later."
        )
        self.retry_after_s = max(1, min(RETRY_S, round((until - now).total_seconds())))


def begin(session: Session, reason: str, *, now: datetime, lasts: timedelta) -> datetime:
    """Make the platform read-only from now on, for `lasts` at most; return the end."""
    until = now + lasts
    session.merge(Claim(chore=CHORE, holder=reason, until=until))
    return until


def end(session: Session) -> None:
    """Allow changes again."""
    session.execute(delete(Claim).where(Claim.chore == CHORE))


def state(session: Session, *, now: datetime) -> tuple[str, datetime] | None:
    """Return the reason and the latest end; None where changes are allowed."""
    row = session.execute(CLAIM).one_or_none()
    return (row.holder, row.until) if row is not None and row.until > now else None


def refuse(session: Session, *, now: datetime) -> None:
    """Raise ReadOnly while nothing may be changed."""
    found = state(session, now=now)
    if found is not None:
        raise ReadOnly(*found, now)
