"""Chores that one process at a time does, of several that could: a claim is a row with an end.

Not a lock: whoever claimed a chore and died is followed by another one when the claim has ended. A
chore must bear that it is done twice; the claim only spares the work. What must not happen once
somebody else has taken a chore over asks `holds` in its own transaction.
"""

from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from core.tables.processes import Claim


def claim(session: Session, chore: str, *, holder: str, now: datetime, lasts: timedelta) -> bool:
    """Whether `chore` is now `holder`'s, until `now + lasts`; False while somebody else's lasts."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(Claim).values(chore=chore, holder="", until=now).on_conflict_do_nothing()
    )
    taken = session.execute(
        update(Claim)
        .where(Claim.chore == chore, Claim.until <= now)
        .values(holder=holder, until=now + lasts)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(taken, CursorResult)
    return taken.rowcount == 1


def take_over(
    session: Session, chore: str, *, holder: str, now: datetime, lasts: timedelta
) -> None:
    """Make `chore` `holder`'s until `now + lasts`, whoever had it. Called again, it is renewed.

    Waits for a transaction of the former holder that has asked `holds`.
    """
    session.merge(Claim(chore=chore, holder=holder, until=now + lasts))
    session.flush()


def holds(session: Session, chore: str, *, holder: str) -> bool:
    """Whether `chore` is `holder`'s. Nobody takes it over before this transaction has ended."""
    found = session.scalar(select(Claim.holder).where(Claim.chore == chore).with_for_update())
    return found == holder
