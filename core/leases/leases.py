"""The only place where a node's hours are taken, stretched, shrunk, moved and given back.

One live row of `occupancy` holds a node, or a number of its slots, from start to end; the database
itself refuses a row with which more slots would be held than the node has (triggers named
`one_holder`). Node rows are locked before the insert, in order of id: without that lock fifty
clients that race for one node spend 20 s in deadlocks, with it none and 0.1 s. Everybody locks in
one order: user, labs, nodes, leases.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.base.errors import HourTaken
from core.base.ids import IdKind, new_id
from core.base.reasons import Code, ReasonCode, stored_code
from core.leases import appointments, charges, node_slots
from core.leases.appointments import NoShow
from core.leases.settlement import Settlement
from core.policy.bands import whole_hours
from core.policy.grid import HOUR, Timetable
from core.policy.slots import free_slots
from core.policy.verdict import Span
from core.states import TERMINAL_JOB, LeaseState
from core.tables.agendas import Agenda
from core.tables.base import Document
from core.tables.jobs import Event, Job
from core.tables.kinds import LeaseKind, OccupancyKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.transitions import advance, enter, note

CHANGEABLE = (LeaseState.BOOKED, LeaseState.ACTIVE)


@dataclass(frozen=True)
class Terms:
    """Conditions that a lease was granted under. Its row keeps them if the policy changes later."""

    timetable: Timetable = field(default_factory=Timetable)
    no_show: NoShow | None = None
    lab_id: str | None = None
    policy_id: str | None = None
    policy_version: int | None = None
    verdict: Document | None = None
    is_charged: bool = True
    """True if the lease counts against quotas; a walk-in need not."""


PLAIN = Terms()


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
    terms: Terms = PLAIN,
    together: str | None = None,
    num_slots: int | None = None,
    prefer_slots: Collection[int] = (),
) -> Lease:
    """Take `node` from `start`, or from now on if that has passed, to `end` for one user: a booked
    lease, or an active walk-in. `num_slots` is a number of its slots; None takes the whole node.

    A walk-in has its slots at once, `prefer_slots` if they are free. Raises HourTaken, with nothing
    to be committed, if too few slots are free at any moment of it, or clean now for a walk-in.
    """
    lock_nodes(session, [node.id])
    # The beginning of the current hour may have belonged to another lease.
    held_from = now if start < now < end else start
    require_free(session, node, held_from, end, num_slots=num_slots)
    lease = Lease(
        id=new_id(IdKind.LEASE),
        user_id=user_id,
        node_id=node.id,
        kind=kind,
        state=LeaseState.ACTIVE if kind is LeaseKind.WALK_IN else LeaseState.BOOKED,
        reason=message,
        hold_start=start,
        hold_end=end,
        num_slots=num_slots,
        grace_s=grace_s,
        checkpoint_s=terms.timetable.checkpoint_s,
        kill_after_s=terms.timetable.kill_after_stop_s,
        generation=0,
        together=together,
        lab_id=terms.lab_id,
        policy_id=terms.policy_id,
        policy_version=terms.policy_version,
        verdict=terms.verdict,
        counts=terms.is_charged,
        began_at=now if kind is LeaseKind.WALK_IN else None,
        created_at=now,
    )
    with _holding(session, node.name):
        enter(session, lease, now=now, reason_code=ReasonCode(kind), message=message, actor=actor)
        session.add(_row(lease, start=held_from))
        session.flush()
        appointments.make(session, lease, terms.timetable, terms.no_show)
    if kind is LeaseKind.WALK_IN and not node_slots.assign(session, lease, prefer=prefer_slots):
        raise HourTaken(f"The slots of {node.name} are not all free and clean.", param="start")
    _charge_anew(session, lease, now=now)
    return lease


def take_together(
    session: Session, nodes: Sequence[Node], terms: Sequence[Terms], **fields: object
) -> list[Lease]:
    """Take the same hours on all of `nodes`, or raise HourTaken and take none.

    `fields` are those of `take`.
    """
    lock_nodes(session, [node.id for node in nodes])
    taken: list[Lease] = []
    with session.begin_nested():
        for node, granted in sorted(zip(nodes, terms, strict=True), key=lambda one: one[0].id):
            first = taken[0].id if taken else None
            taken.append(
                take(session, node=node, terms=granted, together=first, **fields)  # type: ignore[arg-type]
            )
        if len(taken) > 1:
            taken[0].together = taken[0].id
            session.flush()
    return taken


def extend(
    session: Session, lease: Lease, *, end: datetime, now: datetime, message: str, actor: str
) -> None:
    """Stretch a booked or active lease to `end`. Call it with its node and row locked.

    Raises HourTaken, with nothing changed, if somebody holds one of the hours.
    """
    assert lease.state in CHANGEABLE, lease.state
    assert end > lease.hold_end, "extended to the past"
    node = session.get_one(Node, lease.node_id)
    require_free(session, node, lease.hold_end, end, num_slots=lease.num_slots)
    before = lease.hold_end
    with _holding(session, node.name):
        _hold_until(session, lease, end)
    lease.hold_end = end
    _charge_anew(session, lease, now=now)
    appointments.follow(session, lease, end_before=before, now=now)
    note(session, lease.id, "extended", now=now, message=message, actor=actor)


def release(
    session: Session,
    lease: Lease,
    *,
    end: datetime,
    settlement: Settlement,
    now: datetime,
    actor: str,
) -> bool:
    """Release an active lease early: it holds its node until `end` at the latest.

    Its jobs have to be asked to stop, and the scheduler ends it once the node is verified clean.
    False if it was no longer active.
    """
    had = lease.hold_end
    end = min(end, had)
    if not advance(
        session,
        lease,
        LeaseState.ENDING,
        now=now,
        reason_code=settlement.settled_as,
        message=settlement.message,
        actor=actor,
        hold_end=end,
        **_settled(lease, settlement, now=now),
    ):
        return False
    _hold_until(session, lease, end)
    _charge_anew(session, lease, had=had, now=now)
    appointments.void(session, lease.id)
    lease.generation += 1
    session.flush()
    appointments.make_end(session, lease)
    return True


def move(
    session: Session, lease: Lease, node: Node, *, now: datetime, message: str, actor: str
) -> None:
    """Move a lease to another node, for the rest of its hours.

    A node that an active lease leaves stays held, as down: its processes may still run there.
    Call it with both nodes and the lease locked. Raises HourTaken, with nothing changed for a
    booked lease, and nothing to be committed for an active one.
    """
    assert lease.state in CHANGEABLE, lease.state
    start = max(lease.hold_start, now)
    require_free(session, node, start, lease.hold_end, num_slots=lease.num_slots)
    old = session.scalars(
        select(Occupancy).where(Occupancy.lease_id == lease.id, Occupancy.live)
    ).one()
    with _holding(session, node.name):
        if lease.state is LeaseState.ACTIVE:
            old.kind = OccupancyKind.DOWN
        else:
            old.live = False
        session.flush()
        session.add(_row(lease, node_id=node.id, start=start))
        session.flush()
    if lease.state is LeaseState.ACTIVE:
        node_slots.release(session, lease, dirty=True)
    lease.booked_node_id = lease.booked_node_id or lease.node_id
    lease.node_id = node.id
    lease.reason = message
    session.flush()
    if lease.state is LeaseState.ACTIVE and not node_slots.assign(session, lease):
        raise HourTaken(f"The slots of {node.name} are not all free and clean.", param="start")
    appointments.follow(session, lease, end_before=lease.hold_end, now=now)
    note(session, lease.id, "moved", now=now, message=message, actor=actor)


def end(
    session: Session,
    lease: Lease,
    *,
    at: datetime,
    now: datetime,
    message: str,
    actor: str,
    is_clean: bool = True,
) -> bool:
    """Finish an active or ending lease at `at`, no later than its hold: later hours become free.

    Its slots are free at once if they were verified clean, else once their node calls them clean.
    False if the lease was over already.
    """
    if lease.state is LeaseState.ACTIVE:
        advance(
            session,
            lease,
            LeaseState.ENDING,
            now=now,
            reason_code=ReasonCode.ENDING,
            message=message,
            actor=actor,
        )
    if not advance(
        session,
        lease,
        LeaseState.ENDED,
        now=now,
        reason_code=ReasonCode.ENDED,
        message=message,
        actor=actor,
        ended_at=now,
        settled_as=lease.settled_as or ReasonCode.USED,
        **_left_over(lease, at, now=now),
    ):
        return False
    node_slots.release(session, lease, dirty=not is_clean)
    _give_back(session, lease, at)
    _charge_anew(session, lease, now=now)
    appointments.void(session, lease.id)
    return True


def cancel(
    session: Session,
    lease: Lease,
    *,
    now: datetime,
    message: str,
    actor: str,
    settlement: Settlement | None = None,
) -> bool:
    """Give a booked lease back before it starts. False if it was no longer booked.

    Without a `settlement` it is refunded.
    """
    settled = settlement or Settlement(
        counts=False, settled_as=ReasonCode.CANCELLED, message=message
    )
    if settled.counts:
        settled = replace(settled, forfeited_end=lease.hold_end)
    if not advance(
        session,
        lease,
        LeaseState.CANCELLED,
        now=now,
        reason_code=settled.settled_as,
        message=message,
        actor=actor,
        cancelled_at=now,
        generation=lease.generation + 1,
        **_settled(lease, settled, now=now),
    ):
        return False
    _give_back(session, lease, lease.hold_start)
    _charge_anew(session, lease, now=now)
    appointments.void(session, lease.id)
    return True


def cancelled_by(session: Session, lease: Lease) -> str:
    """Return the actor that cancelled a lease: the id of its owner or of staff, or a process."""
    query = select(Event.actor).where(
        Event.subject == lease.id, Event.to_state == LeaseState.CANCELLED
    )
    return session.scalars(query).one()


def refund(session: Session, lease: Lease, *, why: Code, message: str, now: datetime) -> None:
    """Stop counting a lease against quotas, whatever its state and whatever others do."""
    if not lease.counts and lease.forfeited_end is None:
        return
    lease.counts, lease.settled_as, lease.refund_if_rebooked = False, why, False
    had, lease.forfeited_end = lease.forfeited_end, None
    _charge_anew(session, lease, had=had, now=now)
    note(session, lease.id, "refunded", now=now, message=message, actor="", reason_code=why)


def pass_jobs_on(session: Session, lease: Lease) -> str | None:
    """Assign the jobs that name an ending lease to its owner's next one, and return its id.

    None if no lease of the owner begins within an hour of the end: the jobs then join the queue.
    """
    following = session.scalars(
        select(Lease)
        .where(
            Lease.user_id == lease.user_id,
            Lease.state == LeaseState.BOOKED,
            Lease.hold_start >= lease.hold_end,
            Lease.hold_start <= lease.hold_end + HOUR,
        )
        .order_by(Lease.hold_start, Lease.id)
        .limit(1)
    ).first()
    if following is None:
        return None
    named = update(Job).where(Job.lease_id == lease.id, Job.state.not_in(TERMINAL_JOB))
    session.execute(
        named.values(lease_id=following.id).execution_options(synchronize_session=False)
    )
    return following.id


def follow(session: Session, old_id: str, new_id: str) -> None:
    """Assign jobs and agendas that name a lease to the one that has taken its place."""
    session.execute(update(Job).where(Job.lease_id == old_id).values(lease_id=new_id))
    session.execute(update(Agenda).where(Agenda.lease_id == old_id).values(lease_id=new_id))


def log_outage(session: Session, node_id: str, *, since: datetime, until: datetime) -> None:
    """Add to each active lease on a node the seconds that it could not be used in that lease."""
    query = select(Lease).where(Lease.node_id == node_id, Lease.state == LeaseState.ACTIVE)
    for lease in session.scalars(query):
        begun = max(since, lease.began_at or lease.hold_start)
        lease.unusable_s += max(0, round((until - begun).total_seconds()))


def no_shows(session: Session, user_id: str, *, since: datetime) -> tuple[datetime, ...]:
    """Return the starts of a person's no-show leases that start at `since` or later, ascending."""
    query = select(Lease.hold_start).where(
        Lease.user_id == user_id, Lease.settled_as == ReasonCode.NO_SHOW, Lease.hold_start >= since
    )
    return tuple(session.scalars(query.order_by(Lease.hold_start)))


def lock_nodes(session: Session, node_ids: Collection[str]) -> None:
    """Lock node rows in order of id until the transaction ends (on SQLite its writer is alone)."""
    # FOR NO KEY UPDATE: rows that only refer to these nodes may be added meanwhile.
    session.execute(
        select(Node.id)
        .where(Node.id.in_(node_ids))
        .order_by(Node.id)
        .with_for_update(key_share=True)
    ).all()


def lock_lease(session: Session, lease: Lease) -> None:
    """Lock the lease until the transaction ends, and read it again: it may have moved on."""
    session.refresh(lease, with_for_update={"key_share": True})


def first_holder(
    session: Session, node_id: str, start: datetime, end: datetime
) -> Occupancy | None:
    """Return the earliest live occupancy of the node that overlaps [start, end), or None."""
    return session.scalars(_holders(node_id, start, end).limit(1)).first()


def require_free(
    session: Session, node: Node, start: datetime, end: datetime, *, num_slots: int | None = None
) -> None:
    """Raise HourTaken if fewer than `num_slots` slots of `node` are free at any moment of
    [start, end); for None, if anybody holds any of it."""
    if num_slots is not None:
        holders = session.scalars(_holders(node.id, start, end))
        fit = node_slots.num_in_service(session, node)
        free = free_slots(map(span_of, holders), of=fit, start=start, end=end)
        if free < num_slots:
            raise HourTaken(
                f"{free} of the {node.slots} slots of {node.name} {'is' if free == 1 else 'are'} "
                f"free from {start.isoformat()} to {end.isoformat()}.",
                param="start",
            )
        return
    holder = first_holder(session, node.id, start, end)
    if holder is not None:
        raise HourTaken(
            f"{node.name} is held from {holder.hold_start.isoformat()} "
            f"to {holder.hold_end.isoformat()}.",
            param="start",
        )


def span_of(row: Occupancy) -> Span:
    """Return the hours and slots that a row of `occupancy` holds."""
    return Span(row.hold_start, row.hold_end, row.lease_id, row.num_slots)


def _holders(node_id: str, start: datetime, end: datetime) -> Select[Occupancy]:
    """Select the live occupancies of a node that overlap [start, end), sorted by start."""
    return (
        select(Occupancy)
        .where(
            Occupancy.node_id == node_id,
            Occupancy.live,
            Occupancy.hold_start < end,
            Occupancy.hold_end > start,
        )
        .order_by(Occupancy.hold_start)
    )


def hold(
    session: Session,
    node: Node,
    kind: OccupancyKind,
    start: datetime,
    end: datetime,
    *,
    offer_id: str | None = None,
    maintenance_id: str | None = None,
    num_slots: int | None = None,
) -> None:
    """Hold a locked node, or a number of its slots, for an offer or maintenance.

    Raises HourTaken, with nothing written.
    """
    require_free(session, node, start, end, num_slots=num_slots)
    with _holding(session, node.name):
        session.add(
            Occupancy(
                node_id=node.id,
                kind=kind,
                offer_id=offer_id,
                maintenance_id=maintenance_id,
                hold_start=start,
                hold_end=end,
                num_slots=num_slots,
                live=True,
            )
        )
        session.flush()


@contextmanager
def _holding(session: Session, node_name: str) -> Iterator[None]:
    """Raise HourTaken if the database refuses the write inside: its constraint is the last word."""
    try:
        with session.begin_nested():
            yield
    except IntegrityError as error:
        if "one_holder" not in str(error.orig):
            raise
        raise HourTaken(f"{node_name} has just been taken.", param="start") from error


def _charge_anew(
    session: Session, lease: Lease, *, had: datetime | None = None, now: datetime
) -> None:
    """Compute anew the charges for forfeited hours of `lease`, of itself and of others before it.

    Call it after every change of the hours that a lease holds or forfeits, or of whether it counts.
    `had` is the end of the hours that it held or had forfeited before the change, if that differs
    from its present state.
    """
    session.flush()
    forfeiters = _forfeiters(session, lease, had or lease.forfeited_end or lease.hold_end)
    if not forfeiters:
        return
    found = charges.of(
        _claims(
            session,
            _billed_node(lease),
            min(one.hold_start for one in forfeiters),
            max(one.forfeited_end or one.hold_end for one in forfeiters),
        ),
        slots=session.get_one(Node, _billed_node(lease)).slots,
    )
    for one in forfeiters:
        _charge(session, one, found[one.id], now=now)
    session.flush()


def _forfeiters(session: Session, lease: Lease, until: datetime) -> list[Lease]:
    """Lock and read the leases that forfeited hours of `lease` up to `until` before it did.

    `lease` itself comes first if it has forfeited hours. The last to forfeit is locked first: a
    transaction that locks one of them never waits for an earlier one that waits for this one.
    """
    others = (
        select(Lease)
        .where(
            _is_billed_for(_billed_node(lease)),
            Lease.id != lease.id,
            Lease.forfeited_end > lease.hold_start,
            Lease.hold_start < until,
        )
        .order_by(Lease.forfeited_at.desc(), Lease.id.desc())
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    if lease.forfeited_at is not None:
        others = others.where(Lease.forfeited_at <= lease.forfeited_at)
    own = [] if lease.forfeited_end is None else [lease]
    return own + list(session.scalars(others))


def _claims(
    session: Session, node_id: str, start: datetime, end: datetime
) -> list[charges.HoursClaim]:
    """Return the claims of leases that are billed for hours of a node from `start` to `end`."""
    rows = session.execute(
        select(Lease.id, Lease.hold_start, func.coalesce(Lease.forfeited_end, Lease.hold_end))
        .add_columns(Occupancy.hold_end, Lease.forfeited_end, Lease.forfeited_at, Lease.num_slots)
        .outerjoin(
            Occupancy,
            and_(
                Occupancy.lease_id == Lease.id,
                Occupancy.kind == OccupancyKind.LEASE,
                Occupancy.live,
            ),
        )
        .where(
            _is_billed_for(node_id),
            or_(Lease.counts, Lease.forfeited_end.is_not(None)),
            Lease.hold_start < end,
            func.coalesce(Lease.forfeited_end, Lease.hold_end) > start,
        )
    )
    return [
        charges.HoursClaim(
            lease_id,
            hold_start,
            held_until=held_until or hold_start,
            forfeited_until=until if forfeited_end else None,
            forfeited_at=forfeited_at,
            num_slots=num_slots,
        )
        for lease_id, hold_start, until, held_until, forfeited_end, forfeited_at, num_slots in rows
    ]


def _charge(session: Session, lease: Lease, charge: charges.Charge, *, now: datetime) -> None:
    """Record the present charge of a lease that has forfeited hours."""
    before = (lease.counts, lease.charged_end, lease.charged_s)
    lease.charged_end, lease.charged_s = charge.end, int(charge.length.total_seconds())
    if lease.refund_if_rebooked:
        lease.counts = bool(charge.length)
        given_back = ReasonCode.RELEASED if lease.cancelled_at is None else ReasonCode.LATE_CANCEL
        lease.settled_as = ReasonCode.REBOOKED if charge.is_passed_on else given_back
    after = (lease.counts, lease.charged_end, lease.charged_s)
    if before == after or None in before:
        return  # the cost of giving it back is in the message of that event
    if not lease.counts:
        kind, message = "refunded", "Refunded: others have booked its hours."
    else:
        hours = whole_hours(charge.length)
        kind, message = "charged", f"{hours} h of it count now: others have booked the rest."
        if charge.is_whole:
            message = f"{hours} h of it count again: nobody else has booked any of it."
    note(
        session,
        lease.id,
        kind,
        now=now,
        message=message,
        actor="",
        reason_code=stored_code(lease.settled_as),
    )


def _billed_node(lease: Lease) -> str:
    """Return the id of the node that quotas bill: the booked one, even if a fault has moved it."""
    return lease.booked_node_id or lease.node_id


def _is_billed_for(node_id: str) -> ColumnElement[bool]:
    return or_(
        and_(Lease.booked_node_id.is_(None), Lease.node_id == node_id),
        Lease.booked_node_id == node_id,
    )


def _row(lease: Lease, *, node_id: str | None = None, start: datetime | None = None) -> Occupancy:
    return Occupancy(
        node_id=node_id or lease.node_id,
        lease_id=lease.id,
        kind=OccupancyKind.LEASE,
        hold_start=start or lease.hold_start,
        hold_end=lease.hold_end,
        num_slots=lease.num_slots,
        live=True,
    )


def _hold_until(session: Session, lease: Lease, end: datetime) -> None:
    session.execute(
        update(Occupancy)
        .where(
            Occupancy.lease_id == lease.id,
            Occupancy.kind == OccupancyKind.LEASE,
            Occupancy.live,
        )
        .values(hold_end=end)
    )


def _give_back(session: Session, lease: Lease, at: datetime) -> None:
    query = update(Occupancy).where(
        Occupancy.lease_id == lease.id, Occupancy.kind == OccupancyKind.LEASE, Occupancy.live
    )
    # A lease that was moved during its hours holds its node only since the move.
    session.execute(query.where(Occupancy.hold_start >= at).values(live=False))
    session.execute(
        query.where(Occupancy.hold_start < at, Occupancy.hold_end > at).values(hold_end=at)
    )


def _settled(lease: Lease, settlement: Settlement, *, now: datetime) -> dict[str, object]:
    if settlement.counts and not lease.counts:
        return {}  # refunded after a fault: its owner is charged nothing, whatever they do with it
    return {
        "counts": settlement.counts,
        "settled_as": settlement.settled_as,
        "forfeited_end": settlement.forfeited_end,
        "forfeited_at": now if settlement.forfeited_end else None,
        "refund_if_rebooked": settlement.refund_if_rebooked,
    }


def _left_over(lease: Lease, at: datetime, *, now: datetime) -> dict[str, object]:
    """Return the columns that settle the rest of a lease that ends `at` some moment of its hold.

    Nobody pays for the rest of a walk-in; its owner pays for that of a booked lease, unless others
    have it.
    """
    if lease.kind is LeaseKind.WALK_IN:
        return {"charged_end": min(at, lease.hold_end)}
    if not lease.counts or at >= lease.hold_end:
        return {}
    return {
        "forfeited_end": lease.forfeited_end or lease.hold_end,
        "forfeited_at": lease.forfeited_at or now,
    }
