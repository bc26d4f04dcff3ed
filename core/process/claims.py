"""Chores that one process at a time does, of several that could: a claim is a row with an end.

Not a lock: if the process that claimed a chore dies, another one follows when the claim has ended.
A chore must tolerate being done twice; the claim only spares the work. A step that must not happen
after another process has taken the chore over calls `holds` in its own transaction.
"""

from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from core.database.database import insert_into
from core.tables.processes import Claim


def claim(session: Session, chore: str, *, holder: str, now: datetime, lasts: timedelta) -> bool:
    """Claim `chore` for `holder` until `now + lasts`; False while another claim lasts."""
    session.execute(
        insert_into(session, Claim)
        .values(chore=chore, holder="", until=now)
        .on_conflict_do_nothing()
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

    Waits for a transaction of the former holder that has called `holds`.
    """
    session.merge(Claim(chore=chore, holder=holder, until=now + lasts))
    session.flush()


def holds(session: Session, chore: str, *, holder: str) -> bool:
    """Return True if `chore` is `holder`'s, which nobody changes before this transaction ends."""
    found = session.scalar(select(Claim.holder).where(Claim.chore == chore).with_for_update())
    return found == holder
