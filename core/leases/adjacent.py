"""Adjacent leases: one person's leases of as many slots that touch on one node. Nothing is stopped
between them.

Jobs of the first lease continue in the next, so they are stopped only at the end of the last.
"""

from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.leases import leases, node_slots
from core.states import LIVE_ATTEMPT, TERMINAL_JOB, LeaseState, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.transitions import advance

# Built once: to build a query takes longer than to ask it, and every heartbeat asks this one.
BESIDE_OR_LATER = (
    select(Lease)
    .join(Node, Node.id == Lease.node_id)
    .where(
        Lease.user_id == bindparam("user_id"),
        Lease.node_id == bindparam("node_id"),
        Lease.kind == LeaseKind.BOOKED,
        Lease.state.in_((LeaseState.BOOKED, LeaseState.ACTIVE)),
        Lease.hold_end >= bindparam("hold_end"),
        Node.state == NodeState.READY,
    )
)


class LeaseLike(Protocol):
    """Fields of a lease that this module reads."""

    @property
    def id(self) -> str: ...
    @property
    def user_id(self) -> str: ...
    @property
    def node_id(self) -> str: ...
    @property
    def kind(self) -> LeaseKind: ...
    @property
    def state(self) -> LeaseState: ...
    @property
    def hold_start(self) -> datetime: ...
    @property
    def hold_end(self) -> datetime: ...
    @property
    def num_slots(self) -> int | None: ...


SomeLease = TypeVar("SomeLease", bound=LeaseLike)


def followers(held: Iterable[SomeLease]) -> dict[str, SomeLease]:
    """Map lease id -> the same owner's next back-to-back booked lease on that node. Pure.

    A walk-in has none: it ends with its job. Of two leases that an owner has beside each other
    there, the older goes on in the older of those that follow.
    """
    live = sorted(
        (
            one
            for one in held
            if one.kind is LeaseKind.BOOKED and one.state in (LeaseState.BOOKED, LeaseState.ACTIVE)
        ),
        key=lambda one: one.id,
        reverse=True,
    )
    begins: dict[Hashable, list[SomeLease]] = {}
    for one in live:
        if one.state is LeaseState.BOOKED:
            key = (one.node_id, one.user_id, one.num_slots, one.hold_start)
            begins.setdefault(key, []).append(one)
    found = {}
    for one in reversed(live):
        following = begins.get((one.node_id, one.user_id, one.num_slots, one.hold_end))
        if following:
            found[one.id] = following.pop()
    return found


def last_of(lease: SomeLease, follower: Mapping[str, SomeLease]) -> SomeLease:
    """Return the lease itself, or the last of those that follow it without a break. Pure."""
    while lease.id in follower:
        lease = follower[lease.id]
    return lease


def stopped_with(session: Session, lease: Lease) -> Lease:
    """Return the lease at whose end the jobs of `lease` are stopped: itself, or the last adjacent.

    On a node that is not ready the next lease could not begin, so the result there is `lease`.
    """
    if lease.kind is LeaseKind.WALK_IN:
        return lease
    whose = {"user_id": lease.user_id, "node_id": lease.node_id, "hold_end": lease.hold_end}
    others = [one for one in session.scalars(BESIDE_OR_LATER, whose) if one.id != lease.id]
    return last_of(lease, followers([lease, *others]))


def held_until(session: Session, lease: Lease) -> Lease:
    """Return the last adjacent lease like `stopped_with`, also for a lease that may be over.

    Jobs of a lease that is over may have continued in the next one.
    """
    if lease.state in leases.CHANGEABLE:
        return stopped_with(session, lease)
    following = session.scalars(
        select(Lease).where(
            Lease.user_id == lease.user_id,
            Lease.node_id == lease.node_id,
            Lease.kind == LeaseKind.BOOKED,
            Lease.num_slots.is_not_distinct_from(lease.num_slots),
            Lease.state.in_((LeaseState.ACTIVE, LeaseState.ENDING, LeaseState.ENDED)),
            Lease.hold_start == lease.hold_end,
        )
    ).first()
    return lease if following is None else held_until(session, following)


def go_on(session: Session, lease: Lease, following: Lease, *, now: datetime, actor: str) -> bool:
    """End an active lease and begin the adjacent one, which takes over all that runs there.

    Call it with the node and both leases locked. Return False, with nothing changed, if one of them
    has moved on.
    """
    if lease.state is not LeaseState.ACTIVE or following.state is not LeaseState.BOOKED:
        return False
    node = session.get_one(Node, lease.node_id)
    session.execute(
        update(Job)
        .where(Job.lease_id == lease.id, Job.state.not_in(TERMINAL_JOB))
        .values(lease_id=following.id)
        .execution_options(synchronize_session=False)
    )
    pass_attempts_on(session, lease, following)
    node_slots.pass_on(session, lease, following)
    message = (
        f"Ended at {lease.hold_end:%H:%M} UTC; it continues without a break in the next lease, "
        f"until {following.hold_end:%H:%M} UTC."
    )
    ended = leases.end(session, lease, at=lease.hold_end, now=now, message=message, actor=actor)
    begun = advance(
        session,
        following,
        LeaseState.ACTIVE,
        now=now,
        reason_code=ReasonCode.BEGAN,
        message=f"{node.name} stays yours: this lease follows your previous one without a break.",
        actor=actor,
        began_at=now,
    )
    assert (ended, begun) == (True, True), "both are locked"
    return True


def pass_attempts_on(session: Session, lease: Lease, to: Lease) -> None:
    """Assign the live attempts of a lease on its node to the lease `to`.

    Nothing is stopped, and the node hears the new deadlines at its next poll.
    """
    live = session.scalars(
        select(Attempt.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.lease_id == lease.id,
            AttemptPart.node_id == lease.node_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
    ).all()
    session.execute(
        update(AttemptPart)
        .where(AttemptPart.attempt_id.in_(live), AttemptPart.lease_id == lease.id)
        .values(lease_id=to.id)
        .execution_options(synchronize_session="fetch")
    )
    session.execute(
        update(Attempt)
        .where(Attempt.id.in_(live), Attempt.lease_id == lease.id)
        .values(lease_id=to.id)
        .execution_options(synchronize_session="fetch")
    )
