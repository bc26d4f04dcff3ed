"""Checks of the database afterwards: hours sold twice, quotas broken."""

from collections import Counter, defaultdict

from sqlalchemy import select, text

from core.database.database import Database
from core.policy.document import Policy
from core.policy.verdict import NodeRef
from core.states import LIVE_LEASE
from core.tables.kinds import Role
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import User

OVERLAPS = text(
    "SELECT count(*) FROM occupancy a JOIN occupancy b ON a.node_id = b.node_id AND a.id < b.id "
    "WHERE a.live AND b.live AND a.hold_start < b.hold_end AND b.hold_start < a.hold_end"
)
ALLOWED = (Counter(long=1), Counter(single=1, second=1))  # blocks by day of one student


def num_overlaps(database: Database) -> int:
    """Return the number of pairs of live holds of one node that overlap."""
    with database.read() as session:
        return int(session.scalar(OVERLAPS) or 0)


def num_over_quota(database: Database, policy: Policy) -> int:
    """Return the number of students who hold more by day than the quota `main` allows."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    query = (
        select(Lease.user_id, Lease.hold_start, Lease.hold_end)
        .add_columns(Node.id, Node.name, Node.class_name)
        .join(Node, Node.id == Lease.node_id)
        .join(User, User.id == Lease.user_id)
        .where(Lease.state.in_(LIVE_LEASE), User.role == Role.USER)
    )
    with database.read() as session:
        for user, start, end, *node in session.execute(query):
            if policy.clock.place(start, end).band == "overnight":
                continue
            ref = NodeRef(*node)
            held[user][next(pool for pool in policy.pools if policy.covers(pool, ref))] += 1
    return sum(not any(found <= allowed for allowed in ALLOWED) for found in held.values())


def num_leases(database: Database) -> int:
    """Return the number of leases that hold now or later."""
    with database.read() as session:
        return len(session.scalars(select(Lease.id).where(Lease.state.in_(LIVE_LEASE))).all())
