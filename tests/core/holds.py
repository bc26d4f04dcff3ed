"""What must hold of the hours of nodes at any time, asked of the database itself."""

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.orm import Session

from core.database.database import UtcDateTime
from core.leases.leases import span_of
from core.policy.verdict import Span
from core.tables.leases import Occupancy

TOO_MANY_HELD = (
    "SELECT count(*) FROM occupancy one JOIN nodes n ON n.id = one.node_id "
    "WHERE one.live AND one.kind <> 'down' AND n.slots < ("
    "SELECT sum(coalesce(beside.num_slots, n.slots)) FROM occupancy beside "
    "WHERE beside.node_id = n.id AND beside.live AND beside.kind <> 'down' "
    "AND beside.hold_start <= one.hold_start AND beside.hold_end > one.hold_start)"
)
OVERBOOKED = text(TOO_MANY_HELD)
"""Number of moments at which more slots of a node are held than it has: a whole node is all."""
OVERBOOKED_SINCE = text(f"{TOO_MANY_HELD} AND one.hold_end > :since").bindparams(
    bindparam("since", type_=UtcDateTime())
)
"""The same, of the holds that end after `since`: of all it takes the square of a long history."""
SLOTS_WRONG = text(
    "SELECT (SELECT count(*) FROM leases l LEFT JOIN nodes n ON n.id = l.node_id "
    "WHERE l.state IN ('active', 'ending') AND coalesce(l.num_slots, n.slots) <> ("
    "SELECT count(*) FROM node_slots s WHERE s.lease_id = l.id AND s.node_id = n.id))"
    " + (SELECT count(DISTINCT l.id) FROM node_slots s JOIN leases l ON l.id = s.lease_id "
    "WHERE l.state NOT IN ('active', 'ending'))"
)
"""Number of leases with other slots than they should have: theirs while they run, else none."""
GUARDS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'occupancy'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgrelid = 'occupancy'::regclass "
    "AND NOT tgisinternal",
}


def guards(connection: Connection) -> set[str]:
    """Return the names of the triggers on `occupancy`."""
    return set(connection.execute(text(GUARDS[connection.dialect.name])).scalars())


def live_holds(session: Session, node_id: str) -> list[Span]:
    """Return all that holds a node, ever."""
    rows = session.scalars(select(Occupancy).where(Occupancy.node_id == node_id, Occupancy.live))
    return [span_of(row) for row in rows]
