"""The life of leases: who gets a node next, and only after the one before has left it clean.

`due` decides, purely, from a snapshot; `carry_out` writes one move in one transaction that looks
again. A move that has become wrong meanwhile changes nothing and is decided anew in the next cycle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import leases
from core.attempts import ask_to_stop
from core.states import LIVE_ATTEMPT, JobState, LeaseState, NodeState, Outcome
from core.tables import Attempt, Job, Lease, LeaseKind, Node
from core.transitions import advance, say
from scheduler.sentences import clock, unavailable
from scheduler.snapshot import LeaseSeen, NodeSeen, Snapshot

ACTOR = "scheduler"
DIRTY_AFTER = timedelta(seconds=15)  # five heartbeats after the hold: a late one is not dirt


@dataclass(frozen=True)
class Begin:
    """booked -> active."""

    lease: LeaseSeen


@dataclass(frozen=True)
class NotYet:
    """The hold has begun, but the node can't be handed over: say why."""

    lease: LeaseSeen
    why: str


@dataclass(frozen=True)
class NeverBegan:
    """booked -> cancelled: its whole hold is over and the node was never ready."""

    lease: LeaseSeen


@dataclass(frozen=True)
class Stop:
    """active -> ending, and every job in it is asked to save and stop."""

    lease: LeaseSeen
    message: str


@dataclass(frozen=True)
class End:
    """active or ending -> ended: the node is verified clean, what is left of the hold is free."""

    lease: LeaseSeen


@dataclass(frozen=True)
class GiveUp:
    """ending -> ended, and the node is dirty: the hold is over, and something may be left on it."""

    lease: LeaseSeen


@dataclass(frozen=True)
class Cleaned:
    """dirty -> ready: nothing runs on the node, and it says that it is clean."""

    node: NodeSeen


@dataclass(frozen=True)
class Drained:
    """draining -> maintenance: nothing runs on the node and nobody holds it."""

    node: NodeSeen


Move = Begin | NotYet | NeverBegan | Stop | End | GiveUp | Cleaned | Drained


def due(world: Snapshot, *, verdicts: bool) -> Iterator[Move]:
    """The moves that are due, ends first. No node is called dirty without `verdicts`."""
    order = sorted(world.leases.values(), key=lambda lease: (lease.hold_start, lease.id))
    for lease in order:
        if lease.state is LeaseState.ACTIVE:
            yield from _active(lease, world)
        elif lease.state is LeaseState.ENDING:
            yield from _ending(lease, world, verdicts=verdicts)
    for node in world.nodes.values():
        yield from _node(node, world)
    for lease in order:
        if lease.state is LeaseState.BOOKED and lease.hold_start <= world.now:
            yield from _booked(lease, world)


def name_of(move: Move) -> str:
    """Such as `End lease_01m7z...`, for the log."""
    subject = move.node.name if isinstance(move, Cleaned | Drained) else move.lease.id
    return f"{type(move).__name__} {subject}"


def carry_out(session: Session, move: Move, now: datetime) -> list[str]:
    """Write one move, if it is still right; the ids of the jobs that it concerned."""
    match move:
        case Begin(seen):
            return _begin(session, seen, now)
        case NotYet(seen, why):
            say(session, _lease(session, seen), why)
        case NeverBegan(seen):
            node = session.get_one(Node, seen.node_id)
            message = f"{node.name} was not ready at any moment of it; it counts as never booked."
            leases.cancel(session, _lease(session, seen), now=now, message=message, actor=ACTOR)
        case Stop(seen, message):
            return _stop(session, seen, message, now)
        case End(seen):
            if not _has_live_attempt(session, seen.id):
                leases.end(
                    session,
                    _lease(session, seen),
                    at=now,
                    now=now,
                    message=f"Ended at {clock(now, now)}; the node was left clean.",
                    actor=ACTOR,
                )
        case GiveUp(seen):
            _give_up(session, seen, now)
        case Cleaned(node):
            _move_node(session, node, NodeState.READY, now, "Clean again.")
        case Drained(node):
            _move_node(session, node, NodeState.MAINTENANCE, now, "Drained: nothing runs on it.")
    return []


def _active(lease: LeaseSeen, world: Snapshot) -> Iterator[Move]:
    if lease.usable_end <= world.now:
        yield Stop(lease, f"The lease ends at {clock(lease.hold_end, world.now)}.")
    elif (
        lease.kind is LeaseKind.WALK_IN
        and not world.attempts_in(lease.id)
        and world.verified_clean(lease)
    ):
        yield End(lease)


def _ending(lease: LeaseSeen, world: Snapshot, *, verdicts: bool) -> Iterator[Move]:
    asked = (JobState.STARTING, JobState.RUNNING)
    if any(attempt.job_state in asked for attempt in world.attempts_in(lease.id)):
        yield Stop(lease, "The lease is over.")
    elif world.verified_clean(lease):
        yield End(lease)
    elif verdicts and world.now >= lease.hold_end + DIRTY_AFTER:
        yield GiveUp(lease)


def _booked(lease: LeaseSeen, world: Snapshot) -> Iterator[Move]:
    node = world.nodes[lease.node_id]
    if lease.hold_end <= world.now:
        yield NeverBegan(lease)
        return
    before = next(
        (
            other
            for other in world.leases.values()
            if other.node_id == lease.node_id
            and other.state in (LeaseState.ACTIVE, LeaseState.ENDING)
        ),
        None,
    )
    why = None
    if not node.usable:
        why = f"{node.name} {unavailable(node, world.now)}."
    elif before is not None or world.attempts_on(node.id):
        name = before.id if before else world.attempts_on(node.id)[0].job_id
        why = f"{node.name} is still being cleared after {name}."
    elif not node.clean:
        why = f"{node.name} {unavailable(node, world.now)}."
    if why is None:
        yield Begin(lease)
    elif lease.reason != f"Begins as soon as it can. {why}":
        yield NotYet(lease, f"Begins as soon as it can. {why}")


def _node(node: NodeSeen, world: Snapshot) -> Iterator[Move]:
    if world.attempts_on(node.id) or not node.heard or not node.clean:
        return
    if node.state is NodeState.DIRTY:
        yield Cleaned(node)
    elif node.state is NodeState.DRAINING:
        held = any(
            lease.node_id == node.id and lease.state in (LeaseState.ACTIVE, LeaseState.ENDING)
            for lease in world.leases.values()
        )
        if not held:
            yield Drained(node)


def _begin(session: Session, seen: LeaseSeen, now: datetime) -> list[str]:
    leases.lock_nodes(session, [seen.node_id])
    node = session.get_one(Node, seen.node_id)
    if node.state is NodeState.READY and node.clean:
        advance(
            session,
            _lease(session, seen),
            LeaseState.ACTIVE,
            now=now,
            reason_code="began",
            message=f"{node.name} is yours until {clock(seen.usable_end, now)}.",
            actor=ACTOR,
        )
    return []


def _stop(session: Session, seen: LeaseSeen, message: str, now: datetime) -> list[str]:
    lease = _lease(session, seen)
    if lease.state is LeaseState.ACTIVE:
        advance(
            session,
            lease,
            LeaseState.ENDING,
            now=now,
            reason_code="ending",
            message=f"{message} Its jobs save a checkpoint and stop.",
            actor=ACTOR,
        )
    jobs = session.scalars(
        select(Job)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.lease_id == seen.id, Attempt.state.in_(LIVE_ATTEMPT))
        .order_by(Job.id)
    ).all()
    return [
        job.id
        for job in jobs
        if ask_to_stop(
            session,
            job,
            Outcome.LEASE_ENDED,
            now=now,
            message=f"{message} Saving a checkpoint, then back to the queue.",
            actor=ACTOR,
        )
    ]


def _give_up(session: Session, seen: LeaseSeen, now: datetime) -> None:
    node = session.get_one(Node, seen.node_id)
    heard = "has not said that it is clean" if node.clean is False else "has not been heard since"
    message = f"The lease {seen.id} ended at {clock(seen.hold_end, now)} and {node.name} {heard}."
    leases.end(
        session, _lease(session, seen), at=seen.hold_end, now=now, message=message, actor=ACTOR
    )
    if node.state in (NodeState.READY, NodeState.DRAINING):
        advance(
            session,
            node,
            NodeState.DIRTY,
            now=now,
            reason_code="not_clean",
            message=f"{message} It takes work again when it reports that nothing is left.",
            actor=ACTOR,
        )


def _move_node(
    session: Session, seen: NodeSeen, to: NodeState, now: datetime, message: str
) -> None:
    node = session.get_one(Node, seen.id)
    if node.state is seen.state and node.clean:
        advance(session, node, to, now=now, reason_code=str(to), message=message, actor=ACTOR)


def _lease(session: Session, seen: LeaseSeen) -> Lease:
    return session.get_one(Lease, seen.id)


def _has_live_attempt(session: Session, lease_id: str) -> bool:
    found = session.scalars(
        select(Attempt.id).where(Attempt.lease_id == lease_id, Attempt.state.in_(LIVE_ATTEMPT))
    ).first()
    return found is not None
