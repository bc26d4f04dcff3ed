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

OVERBOOKED = text(
    "SELECT count(*) FROM occupancy one JOIN nodes n ON n.id = one.node_id "
    "WHERE one.live AND one.kind <> 'down' AND n.slots < ("
    "SELECT sum(coalesce(beside.num_slots, n.slots)) FROM occupancy beside "
    "WHERE beside.node_id = n.id AND beside.live AND beside.kind <> 'down' "
    "AND beside.hold_start <= one.hold_start AND beside.hold_end > one.hold_start)"
)
ALLOWED = (Counter(long=1), Counter(single=1, second=1))  # blocks by day of one student


def num_overlaps(database: Database) -> int:
    """Return the number of holds that begin while more slots of their node are held than it has."""
    with database.read() as session:
        return int(session.scalar(OVERBOOKED) or 0)


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
