"""Leases of seconds instead of hours: booked rows of a running platform, off the grid. All that
follows is the platform's own: appointments, deadlines on the node, the hand-over.

Nothing starts in the last minute of a lease, so a lease is booked longer and cut once it is used.
"""

from datetime import datetime, timedelta

from sqlalchemy import select, update

from core.base.clock import utc_now
from core.database.database import Database
from core.leases import appointments, leases
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.tables.people import User
from tests.running import ADMIN, Running

GRACE_S = 15


def book_soon(platform: Running, *, starts_in_s: float) -> tuple[str, datetime]:
    """Book the platform's node for its administrator; return the lease's id and its start."""
    database = Database(platform.data.database_url)
    now = utc_now()
    start = now + timedelta(seconds=starts_in_s)
    with database.write() as session:
        lease = leases.take(
            session,
            user_id=session.scalars(select(User.id).where(User.name == ADMIN)).one(),
            node=session.scalars(select(Node)).one(),
            kind=LeaseKind.BOOKED,
            start=start,
            end=start + timedelta(minutes=10),
            grace_s=GRACE_S,
            now=now,
            actor="test",
            message="Booked.",
        )
        lease_id = lease.id
    database.close()
    return lease_id, start


def cut(platform: Running, lease_id: str, *, usable_s: float) -> datetime:
    """Cut a lease, so that its usable end is in so many seconds; return that end."""
    database = Database(platform.data.database_url)
    now = utc_now()
    end = now + timedelta(seconds=usable_s + GRACE_S)
    with database.write() as session:
        lease = session.get_one(Lease, lease_id)
        before, lease.hold_end = lease.hold_end, end
        session.execute(
            update(Occupancy)
            .where(Occupancy.lease_id == lease_id, Occupancy.live)
            .values(hold_end=end)
        )
        appointments.follow(session, lease, end_before=before, now=now)
    database.close()
    return end - timedelta(seconds=GRACE_S)
