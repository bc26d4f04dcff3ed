"""Topics that a transaction has written about, so that the doorbell after it can name them.

Derived from the rows themselves: a writer of one of these tables through a session, by the unit of
work or by an UPDATE, cannot forget it. For nodes and jobs only their states matter here, which
`core.transitions` writes; their heartbeats and steps ring nobody.
"""

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session

from core.tables.base import Base
from core.tables.leases import Lease, Maintenance, Occupancy, Offer, Wait
from core.tables.people import Grant, Lab, Membership, User
from core.tables.policies import AppliedPolicy, PoolWindow
from core.wire.doorbell import Topic

TOPICS: dict[type[Base], Topic] = {
    **dict.fromkeys((Lease, Maintenance, Occupancy, Offer, Wait), Topic.CALENDAR),
    **dict.fromkeys((AppliedPolicy, PoolWindow, Grant, Lab, Membership, User), Topic.RULES),
}
WRITTEN = "topics"  # in `Session.info`


def mark(session: Session, topic: Topic) -> None:
    """Note that this transaction writes about `topic`."""
    session.info.setdefault(WRITTEN, set()).add(topic)


def topics_of(session: Session) -> frozenset[Topic]:
    """Return the topics that the session has written about, whether or not it was committed."""
    return frozenset(session.info.get(WRITTEN, ()))


@event.listens_for(Session, "after_flush")
def _look_at_rows(session: Session, _: object) -> None:
    for row in (*session.new, *session.dirty, *session.deleted):
        topic = TOPICS.get(type(row))
        if topic is not None:
            mark(session, topic)


@event.listens_for(Session, "do_orm_execute")
def _look_at_statement(state: ORMExecuteState) -> None:
    if state.is_select or state.bind_mapper is None:
        return
    topic = TOPICS.get(state.bind_mapper.class_)
    if topic is not None:
        mark(state.session, topic)
