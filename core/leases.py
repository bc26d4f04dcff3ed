"""The only place where a node's hours are taken, shrunk and given back.

One live row of `occupancy` holds a node from start to end; the database itself refuses a second one
(exclusion constraint on PostgreSQL, triggers on SQLite, both named `one_holder`). Node rows are
locked before the insert, in order of id: without that lock fifty clients that race for one node
spend 20 s in deadlocks, with it none and 0.1 s.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import HourTaken
from core.ids import Kind, new_id
from core.states import LeaseState
from core.tables import Lease, LeaseKind, Node, Occupancy, OccupancyKind
from core.transitions import advance, enter


def take(
    session: Session,
    *,
    user_id: str,
    node: Node,
    kind: LeaseKind,
    start: datetime,
    end: datetime,
    grace_s: int,
    now: datetime,
    actor: str,
    message: str,
) -> Lease:
    """Take `node` from `start` to `end` for one user: a booked lease, or an active walk-in.

    Raises HourTaken, with nothing written, if the node is held at any moment of it.
    """
    lock_nodes(session, [node.id])
    holder = first_holder(session, node.id, start, end)
    if holder is not None:
        raise HourTaken(
            f"{node.name} is held from {holder.hold_start.isoformat()} "
            f"to {holder.hold_end.isoformat()}.",
            param="start",
        )
    lease = Lease(
        id=new_id(Kind.LEASE),
        user_id=user_id,
        node_id=node.id,
        kind=kind,
        state=LeaseState.ACTIVE if kind is LeaseKind.WALK_IN else LeaseState.BOOKED,
        reason=message,
        hold_start=start,
        hold_end=end,
        grace_s=grace_s,
        created_at=now,
    )
    try:
        with session.begin_nested():
            enter(session, lease, now=now, reason_code=str(kind), message=message, actor=actor)
            session.add(
                Occupancy(
                    node_id=node.id,
                    lease_id=lease.id,
                    kind=OccupancyKind.LEASE,
                    hold_start=start,
                    hold_end=end,
                    live=True,
                )
            )
            session.flush()
    except IntegrityError as error:
        if "one_holder" not in str(error.orig):
            raise
        raise HourTaken(f"{node.name} has just been taken.", param="start") from error
    return lease


def end(
    session: Session, lease: Lease, *, at: datetime, now: datetime, message: str, actor: str
) -> bool:
    """Finish an active or ending lease at `at`, no later than its hold: later hours become free.

    Call it only when the node is verified clean. False if the lease was over already.
    """
    if lease.state is LeaseState.ACTIVE:
        advance(
            session,
            lease,
            LeaseState.ENDING,
            now=now,
            reason_code="ending",
            message=message,
            actor=actor,
        )
    if not advance(
        session,
        lease,
        LeaseState.ENDED,
        now=now,
        reason_code="ended",
        message=message,
        actor=actor,
    ):
        return False
    _give_back(session, lease, at)
    return True


def cancel(session: Session, lease: Lease, *, now: datetime, message: str, actor: str) -> bool:
    """Give a booked lease back before it starts. False if it was no longer booked."""
    if not advance(
        session,
        lease,
        LeaseState.CANCELLED,
        now=now,
        reason_code="cancelled",
        message=message,
        actor=actor,
    ):
        return False
    _give_back(session, lease, lease.hold_start)
    return True


def lock_nodes(session: Session, node_ids: Sequence[str]) -> None:
    """Lock node rows in order of id until the transaction ends (on SQLite its writer is alone)."""
    # FOR NO KEY UPDATE: rows that only refer to these nodes may be added meanwhile.
    session.execute(
        select(Node.id)
        .where(Node.id.in_(node_ids))
        .order_by(Node.id)
        .with_for_update(key_share=True)
    ).all()


def first_holder(
    session: Session, node_id: str, start: datetime, end: datetime
) -> Occupancy | None:
    """The earliest live occupancy of the node that overlaps [start, end)."""
    return session.scalars(
        select(Occupancy)
        .where(
            Occupancy.node_id == node_id,
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
        .order_by(Occupancy.hold_start)
        .limit(1)
    ).first()


def _give_back(session: Session, lease: Lease, at: datetime) -> None:
    if at <= lease.hold_start:
        changes: dict[str, object] = {"live": False}
    elif at < lease.hold_end:
        changes = {"hold_end": at}
    else:
        return
    session.execute(
        update(Occupancy).where(Occupancy.lease_id == lease.id, Occupancy.live).values(**changes)
    )
