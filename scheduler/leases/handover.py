"""Life cycle of leases: slots are handed to the next lease only after they were left clean.

`due` decides, purely, from a snapshot; `carry_out` writes one move in one transaction that checks
again. A move that has become wrong meanwhile changes nothing and is decided anew in the next cycle.
A move at a certain time follows from an appointment of the lease, which is claimed before the move
and kept with it; a move that waits for a clean node follows from the node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode, stored_code
from core.base.words import clock, in_words
from core.jobs.stopping import stop_guests, stop_jobs
from core.leases import adjacent as touching
from core.leases import appointments, leases, node_slots, settlement
from core.leases.appointments import Due
from core.leases.situation import rules_for
from core.notices.notices import NoticeKind, notify
from core.policy.sections import NoShow
from core.policy.words import lease_text
from core.states import LIVE_ATTEMPT, JobState, LeaseState, NodeState
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.kinds import AppointmentKind, LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.transitions import advance, say
from scheduler.leases import succession
from scheduler.queue.guests import is_lent
from scheduler.queue.sentences import unavailable
from scheduler.snapshot import LeaseSnapshot, NodeSnapshot, Snapshot
from strategies.plan.words import counted

ACTOR = "scheduler"
RUNS = (JobState.STARTING, JobState.RUNNING)  # running, and not asked to stop yet
DIRTY_AFTER = timedelta(seconds=15)  # five heartbeats after the hold: a late one is not dirt


@dataclass(frozen=True)
class Begin:
    """booked -> active."""

    lease: LeaseSnapshot
    appointment: Due


@dataclass(frozen=True)
class GoOn:
    """active -> ended, and its owner's next back-to-back lease booked -> active: no job is stopped
    between them."""

    lease: LeaseSnapshot
    following: LeaseSnapshot
    appointment: Due
    """The appointment for the beginning of the following lease."""


@dataclass(frozen=True)
class NotYet:
    """Delay of a lease: its hold has begun, but the node can't be handed over; say why."""

    lease: LeaseSnapshot
    why: str


@dataclass(frozen=True)
class NeverBegan:
    """booked -> cancelled: the whole hold is over and the node was never ready."""

    lease: LeaseSnapshot


@dataclass(frozen=True)
class Stop:
    """active -> ending, and every job in it is asked to save and stop."""

    lease: LeaseSnapshot
    message: str
    appointment: Due | None = None


@dataclass(frozen=True)
class Notify:
    """Notice to the owner that the lease ends soon."""

    lease: LeaseSnapshot
    appointment: Due


@dataclass(frozen=True)
class Warn:
    """Notice to the owner of an unused lease with the time at which it will be taken back."""

    lease: LeaseSnapshot
    reclaim_at: datetime
    appointment: Due


@dataclass(frozen=True)
class Reclaim:
    """active -> ending: a no-show, so the hours are released to others. Or active -> ended, and the
    guest in the lease gets the hours at once."""

    lease: LeaseSnapshot
    appointment: Due
    wanted_from: datetime | None = None
    """Start of the first block of its hours that the waitlist could offer; None: nobody waits."""


@dataclass(frozen=True)
class Dismiss:
    """Dropping of an appointment that is no longer needed, such as a warning: a job has run."""

    lease: LeaseSnapshot
    appointment: Due


@dataclass(frozen=True)
class Recall:
    """Stop of the guests in a lease whose owner has come: they save and go back to the queue."""

    lease: LeaseSnapshot


@dataclass(frozen=True)
class End:
    """active or ending -> ended: its slots are verified clean; the rest of the hold is freed."""

    lease: LeaseSnapshot


@dataclass(frozen=True)
class GiveUp:
    """ending -> ended, and its slots -> dirty, with the node if it had all: the hold is over, and
    processes may be left there."""

    lease: LeaseSnapshot


@dataclass(frozen=True)
class Recover:
    """dirty -> ready: nothing runs on the node, and it says that it is clean."""

    node: NodeSnapshot


@dataclass(frozen=True)
class FinishDrain:
    """draining -> maintenance: nothing runs on the node and no lease is active or ending on it."""

    node: NodeSnapshot


Planned = Begin | GoOn | Notify | Warn | Reclaim | Dismiss
Move = Planned | Stop | Recall | NotYet | NeverBegan | End | GiveUp | Recover | FinishDrain


def due(world: Snapshot, *, verdicts: bool) -> Iterator[Move]:
    """Yield the moves that are due, ends before beginnings.

    Without `verdicts` no node is called dirty, and no lease is warned about or taken back.
    """
    order = sorted(world.leases.values(), key=lambda lease: (lease.hold_start, lease.id))
    gone_on = set()
    for lease in order:
        if lease.state is LeaseState.ACTIVE:
            for move in _active(lease, world, verdicts=verdicts):
                if isinstance(move, GoOn):
                    gone_on.add(move.following.id)
                yield move
        elif lease.state is LeaseState.ENDING:
            yield from _ending(lease, world, verdicts=verdicts)
    for node in world.nodes.values():
        yield from _node(node, world)
    for lease in order:
        if lease.state is LeaseState.BOOKED and lease.id not in gone_on:
            begin = world.due_of(lease.id, AppointmentKind.BEGIN)
            if begin is not None:
                yield from _booked(lease, begin, world)


def name_of(move: Move) -> str:
    """Return a move's name for the log, such as `End lease_01m7z...`."""
    subject = move.node.name if isinstance(move, Recover | FinishDrain) else move.lease.id
    return f"{type(move).__name__} {subject}"


def appointment_of(move: Move) -> Due | None:
    """Return the appointment that must be claimed before the move and is kept with it, or None."""
    return move.appointment if isinstance(move, Planned | Stop) else None


def carry_out(session: Session, move: Move, now: datetime, holder: str) -> list[str]:
    """Write one move, if it is still right; return the ids of the jobs that it concerned."""
    appointment = appointment_of(move)
    if isinstance(move, Begin) and not _may_begin(session, move.lease):
        appointments.put_back(session, move.appointment)
        return []
    if isinstance(move, Planned | Stop) and appointment is not None:
        _lock(session, move)
        if not appointments.keep(session, appointment, holder=holder, now=now):
            return []  # the lease has changed, or another process has done it
    match move:
        case Begin(seen):
            _begin(session, seen, now)
        case GoOn(seen, following, begin):
            _go_on(session, seen, following, begin, now)
        case Notify(seen):
            _notify(session, seen, now)
        case Warn(seen, reclaim_at):
            _warn(session, seen, reclaim_at, now)
        case Reclaim(seen, _, wanted_from):
            return _reclaim(session, seen, wanted_from, now)
        case NotYet(seen, why):
            say(session, _lease(session, seen), why)
        case NeverBegan(seen):
            node = session.get_one(Node, seen.node_id)
            message = f"{node.name} was not ready at any time during it; it counts as never booked."
            leases.cancel(session, _lease(session, seen), now=now, message=message, actor=ACTOR)
        case Stop(seen, message):
            return _stop(session, seen, message, now)
        case Recall(seen):
            return _recall(session, seen, now)
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
        case Recover(node):
            _move_node(session, node, NodeState.READY, now, "It is clean again.")
        case FinishDrain(node):
            _move_node(
                session, node, NodeState.MAINTENANCE, now, "Drained: nothing is running on it."
            )
    return []


def _lock(session: Session, move: Planned | Stop) -> None:
    """Lock users, nodes and leases of a move, in this order; appointments are locked afterwards.

    The API locks in the same order when an owner changes a lease.
    """
    if isinstance(move, Reclaim):
        succession.lock(session, _lease(session, move.lease))
    if isinstance(move, GoOn):
        leases.lock_nodes(session, [move.lease.node_id])
        leases.lock_lease(session, _lease(session, move.following))
    leases.lock_lease(session, _lease(session, move.lease))


def _active(lease: LeaseSnapshot, world: Snapshot, *, verdicts: bool) -> Iterator[Move]:
    following = world.leases[lease.following] if lease.following else None
    begin = world.due_of(following.id, AppointmentKind.BEGIN) if following else None
    if following is not None and begin is not None and _can_go_on(lease, world):
        yield GoOn(lease, following, begin)
        return
    stop = world.due_of(lease.id, AppointmentKind.STOP)
    if stop is not None and (following is None or begin is not None):
        yield Stop(lease, f"The lease ends at {clock(lease.hold_end, world.now)}.", stop)
        return
    is_owner_here = world.has_run_in(lease.id) and not is_lent(lease, world)
    if is_owner_here and any(guest.job_state in RUNS for guest in world.guests_in(lease.id)):
        yield Recall(lease)
    for due in world.due.get(lease.id, ()):
        if due.kind is AppointmentKind.NOTIFY and following is None:
            yield Notify(lease, due)
        elif due.kind in (AppointmentKind.WARN, AppointmentKind.RECLAIM) and verdicts:
            yield from _unused(lease, due, world)
    if (
        lease.kind is LeaseKind.WALK_IN
        and not world.attempts_in(lease.id)
        and world.verified_clean(lease)
    ):
        yield End(lease)


def _can_go_on(lease: LeaseSnapshot, world: Snapshot) -> bool:
    """Return True if the owner's next lease can take the node over as it is.

    That is the case if jobs run in the lease, which then go on, or if jobs that ran there have left
    nothing to be cleared away.
    """
    if not world.heard_since_exit(lease):
        return False
    return bool(world.attempts_in(lease.id)) or world.tidy(lease)


def _ending(lease: LeaseSnapshot, world: Snapshot, *, verdicts: bool) -> Iterator[Move]:
    if any(attempt.job_state in RUNS for attempt in world.attempts_in(lease.id)):
        yield Stop(lease, "The lease has ended.")
    elif world.verified_clean(lease):
        yield End(lease)
    elif verdicts and world.now >= lease.hold_end + DIRTY_AFTER:
        yield GiveUp(lease)


def _unused(lease: LeaseSnapshot, due: Due, world: Snapshot) -> Iterator[Move]:
    """Yield the move for a warning or reclaim that is due; Dismiss if a job of the owner has run.

    Time in which the node could not be used does not count as unused.
    """
    if world.has_run_in(lease.id):
        yield Dismiss(lease, due)
        return
    idle_s = world.idle_s(lease)
    if not world.nodes[lease.node_id].heard or idle_s < _after_start_s(lease, due):
        return  # later: its owner could not have come
    if due.kind is AppointmentKind.RECLAIM:
        yield Reclaim(lease, due)
        return
    left_s = world.reclaim_after_s.get(lease.id, idle_s) - idle_s
    yield Warn(lease, world.now + timedelta(seconds=max(0.0, left_s)), due)


def _after_start_s(lease: LeaseSnapshot, due: Due) -> float:
    return (due.due_at - lease.hold_start).total_seconds()


def _booked(lease: LeaseSnapshot, begin: Due, world: Snapshot) -> Iterator[Move]:
    node = world.nodes[lease.node_id]
    if lease.hold_end <= world.now:
        yield NeverBegan(lease)
        return
    why = _why_not_yet(lease, node, world)
    if why is None:
        yield Begin(lease, begin)
    elif lease.reason != f"Begins as soon as possible. {why}":
        yield NotYet(lease, f"Begins as soon as possible. {why}")


def _why_not_yet(lease: LeaseSnapshot, node: NodeSnapshot, world: Snapshot) -> str | None:
    """Return the reason why a lease can't have its slots now; None if it can."""
    held = world.held_slots(node)
    fit = frozenset(range(node.slots)) - node.unfit
    if lease.num_slots is None:
        in_use = bool(held or world.attempts_on(node.id))
        is_ready = node.clean and bool(fit)
    else:
        in_use = len(fit - held) < lease.num_slots <= len(fit)
        is_ready = len(fit - held - node.dirty) >= lease.num_slots
    if node.usable and in_use:
        return f"Other jobs are still leaving {node.name}."
    if node.usable and is_ready:
        return None
    return f"{node.name} {unavailable(node, world.now)}."


def _node(node: NodeSnapshot, world: Snapshot) -> Iterator[Move]:
    if world.attempts_on(node.id) or not node.heard or not node.clean:
        return
    if node.state is NodeState.DIRTY:
        yield Recover(node)
    elif node.state is NodeState.DRAINING:
        held = any(
            lease.node_id == node.id and lease.state in (LeaseState.ACTIVE, LeaseState.ENDING)
            for lease in world.leases.values()
        )
        if not held:
            yield FinishDrain(node)


def _may_begin(session: Session, seen: LeaseSnapshot) -> bool:
    leases.lock_nodes(session, [seen.node_id])
    node = session.get_one(Node, seen.node_id)
    lease = _lease(session, seen)
    if lease.state is not LeaseState.BOOKED:
        return True  # it has begun or was cancelled: its appointment tells
    return node.state is NodeState.READY and node_slots.can_assign(session, lease)


def _begin(session: Session, seen: LeaseSnapshot, now: datetime) -> None:
    node, lease = session.get_one(Node, seen.node_id), _lease(session, seen)
    begun = advance(
        session,
        lease,
        LeaseState.ACTIVE,
        now=now,
        reason_code=ReasonCode.BEGAN,
        message=_yours(session, lease, node, until=clock(seen.usable_end, now)),
        actor=ACTOR,
        began_at=now,
    )
    if begun:
        has_slots = node_slots.assign(session, lease)
        assert has_slots, "they were free, and the node is locked"


def _yours(session: Session, lease: Lease, node: Node, *, until: str) -> str:
    if lease.num_slots is not None:
        share = f"{counted(lease.num_slots, 'slot')} of {node.name}"
        return f"{share} {'is' if lease.num_slots == 1 else 'are'} yours until {until}."
    unfit = unfit_sentence(node_slots.out_of_service(session, node))
    return f"{node.name} is yours until {until}.{unfit}"


def unfit_sentence(slots: Sequence[int]) -> str:
    """Return a sentence on a node's GPUs that are not fit for jobs; empty if all are."""
    if not slots:
        return ""
    one = len(slots) == 1
    named = in_words([str(slot) for slot in slots])
    return (
        f" {'GPU' if one else 'GPUs'} {named} {'is' if one else 'are'} not fit for jobs now; the "
        "node's page says why. Jobs that fit on the others run."
    )


def _go_on(
    session: Session, seen: LeaseSnapshot, following: LeaseSnapshot, begin: Due, now: datetime
) -> None:
    lease, after = _lease(session, seen), _lease(session, following)
    if not touching.go_on(session, lease, after, now=now, actor=ACTOR):
        appointments.put_back(session, begin)


def _notify(session: Session, seen: LeaseSnapshot, now: datetime) -> None:
    node = session.get_one(Node, seen.node_id)
    what = lease_text(seen.num_slots)
    stops, ends = clock(seen.usable_end, now), clock(seen.hold_end, now)
    facts: dict[str, object] = {
        "message": f"Your {what} on {node.name} ends at {ends}. The jobs in it save a "
        f"checkpoint and stop at {stops}, and continue later.",
        "node": node.name,
        "usable_end": seen.usable_end.isoformat(),
        "hold_end": seen.hold_end.isoformat(),
    }
    notify(session, seen.user_id, NoticeKind.LEASE_ENDING, seen.id, facts, now=now)


def _warn(session: Session, seen: LeaseSnapshot, reclaim_at: datetime, now: datetime) -> None:
    node = session.get_one(Node, seen.node_id)
    facts: dict[str, object] = {
        "message": f"None of your jobs is running in your {lease_text(seen.num_slots)} on "
        f"{node.name}. It is taken back at {clock(reclaim_at, now)} unless a job starts in it.",
        "node": node.name,
        "reclaim_at": reclaim_at.isoformat(),
    }
    notify(session, seen.user_id, NoticeKind.LEASE_IDLE, seen.id, facts, now=now)


def _reclaim(
    session: Session, seen: LeaseSnapshot, wanted_from: datetime | None, now: datetime
) -> list[str]:
    """Take a lease back, notify its owner and let its guest go on if possible.

    Returns the ids of the jobs that go on; other jobs in it are asked to stop in a later move.
    """
    lease = _lease(session, seen)
    if _has_come(session, lease):
        return []
    until = lease.hold_end
    node = session.get_one(Node, lease.node_id)
    rules = rules_for(session, lease.user_id, node)
    settled = settlement.of_no_show(lease.hold_end, node_name=node.name)
    if not lease.counts:
        what = f"Taken back: nothing had run in the lease on {node.name}."
        settled = settlement.of_refunded(stored_code(lease.settled_as), what=what)
    freed = settlement.freed_from(now, grace_s=lease.grace_s, anchor=rules.grid.anchor)
    if not leases.release(session, lease, end=freed, settlement=settled, now=now, actor=ACTOR):
        return []
    since = now - timedelta(days=rules.no_show.within_days)
    session.flush()
    strikes = len(leases.no_shows(session, lease.user_id, since=since))
    limit = f" of {rules.no_show.strikes}" if rules.no_show.strikes else ""
    told = f" That is no-show {strikes}{limit} in {rules.no_show.within_days} days."
    told += _penalty(rules.no_show, strikes)
    facts: dict[str, object] = {
        "message": f"{settled.message}{told if settled.counts else ''}",
        "node": node.name,
        "strikes": strikes,
    }
    notify(session, lease.user_id, NoticeKind.LEASE_RECLAIMED, lease.id, facts, now=now)
    return succession.go_on(
        session, lease, until=until, wanted_from=wanted_from, now=now, actor=ACTOR
    )


def _has_come(session: Session, lease: Lease) -> bool:
    """Return True if a job waits for the lease that may have been submitted since the snapshot."""
    waits = select(Job.id).where(Job.lease_id == lease.id, Job.state == JobState.QUEUED)
    return session.scalar(waits.limit(1)) is not None


def _penalty(rule: NoShow, strikes: int) -> str:
    if rule.strikes is None or rule.penalty_days is None or strikes < rule.strikes:
        return ""
    days, ahead = rule.penalty_days, rule.penalty_horizon_days
    may = f"book {ahead} days ahead" if ahead else "use walk-ins"
    return f" For {days} days you may only {may}; staff can grant an exception."


def _stop(session: Session, seen: LeaseSnapshot, message: str, now: datetime) -> list[str]:
    lease = _lease(session, seen)
    if lease.state is LeaseState.ACTIVE:
        advance(
            session,
            lease,
            LeaseState.ENDING,
            now=now,
            reason_code=ReasonCode.ENDING,
            message=f"{message} Its jobs save a checkpoint and stop.",
            actor=ACTOR,
        )
    following = leases.pass_jobs_on(session, lease)
    goes_on = "then it continues in the next lease" if following else "then it returns to the queue"
    stopped = stop_jobs(
        session,
        lease,
        now=now,
        message=f"{message} Saving a checkpoint; {goes_on}.",
        actor=ACTOR,
    )
    return sorted(stopped.job_ids)


def _recall(session: Session, seen: LeaseSnapshot, now: datetime) -> list[str]:
    lease = _lease(session, seen)
    leases.lock_lease(session, lease)  # its guest may be going on in a walk-in of its own
    node = session.get_one(Node, lease.node_id)
    message = f"Saving and stopping: the owner of these hours on {node.name} has come."
    return sorted(stop_guests(session, lease, now=now, message=message, actor=ACTOR).job_ids)


def _give_up(session: Session, seen: LeaseSnapshot, now: datetime) -> None:
    leases.lock_nodes(session, [seen.node_id])
    node = session.get_one(Node, seen.node_id)
    heard = (
        "has not reported that it is clean"
        if node.clean is False
        else "has not been heard from since"
    )
    message = f"The lease ended at {clock(seen.hold_end, now)} and {node.name} {heard}."
    leases.end(
        session,
        _lease(session, seen),
        at=seen.hold_end,
        now=now,
        message=message,
        actor=ACTOR,
        is_clean=False,
    )
    is_whole = seen.num_slots is None
    if is_whole and node.state in (NodeState.READY, NodeState.DRAINING):
        advance(
            session,
            node,
            NodeState.DIRTY,
            now=now,
            reason_code=ReasonCode.NOT_CLEAN,
            message=f"{message} It takes work again once it reports that it is clean.",
            actor=ACTOR,
        )


def _move_node(
    session: Session, seen: NodeSnapshot, to: NodeState, now: datetime, message: str
) -> None:
    node = session.get_one(Node, seen.id)
    if node.state is seen.state and node.clean:
        advance(
            session, node, to, now=now, reason_code=ReasonCode(to), message=message, actor=ACTOR
        )


def _lease(session: Session, seen: LeaseSnapshot) -> Lease:
    return session.get_one(Lease, seen.id)


def _has_live_attempt(session: Session, lease_id: str) -> bool:
    found = session.scalars(
        select(Attempt.id)
        .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
        .where(
            AttemptPart.lease_id == lease_id,
            AttemptPart.ended_at.is_(None),
            Attempt.state.in_(LIVE_ATTEMPT),
        )
    ).first()
    return found is not None
