"""`python -m scheduler.health`: exit code 0 while a scheduler leads, for probes of a container.

A follower is as healthy as its leader: it takes over as soon as the leader's time to live is over.
"""

import sys

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.clock import utc_now
from core.database.database import Database
from core.process import read_only
from core.process.settings import SchedulerSettings
from core.tables.processes import Leadership


def flaw(session: Session) -> str | None:
    """Return the reason why no scheduler leads; None if one does or the platform is read-only."""
    now = utc_now()
    if read_only.state(session, now=now) is not None:
        return None
    leader = session.scalars(select(Leadership)).first()
    if leader is None:
        return "No scheduler has led so far."
    if leader.expires_at <= now:
        return f"No scheduler leads; the last one was {leader.holder.split(':')[0]}."
    return None


def main() -> None:
    """Exit with 0 if a scheduler leads; else print the reason on standard error, exit with 1."""
    database = Database(SchedulerSettings().database_url, pool_size=1)
    with database.read() as session:
        found = flaw(session)
    database.close()
    sys.exit(found)


if __name__ == "__main__":
    main()
