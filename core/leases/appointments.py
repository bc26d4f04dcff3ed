"""Appointments: the due events in the life of a lease, as rows with due time, claim and state.

Rows are written with the lease. A scheduler claims an appointment for half a minute before it
carries it out, and marks it kept in the transaction that does the work: a scheduler that dies in
between leaves a claim that expires, and the next one does the work, once. A lease whose node or
hours change gets a new generation of rows; those of older generations are void, even one that was
just claimed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CursorResult, and_, bindparam, insert, or_, select, update
from sqlalchemy.orm import Session

from core.policy.grid import Timetable, usable_end
from core.states import LeaseState
from core.tables.kinds import AppointmentKind, AppointmentState, LeaseKind
from core.tables.leases import Appointment, Lease

CLAIM = timedelta(seconds=30)
AT_START = (AppointmentKind.BEGIN, AppointmentKind.WARN, AppointmentKind.RECLAIM)
OPEN = (AppointmentState.DUE, AppointmentState.CLAIMED)
UNCLAIMED = and_(
    Appointment.due_at <= bindparam("now"),
    or_(
        Appointment.state == AppointmentState.DUE,
        and_(
            Appointment.state == AppointmentState.CLAIMED,
            Appointment.claim_expires_at <= bindparam("now"),
        ),
    ),
)
ALL_DUE = (  # built once: every cycle sends it
    select(
        Appointment.id,
        Appointment.lease_id,
        Appointment.generation,
        Appointment.kind,
        Appointment.due_at,
    )
    .where(UNCLAIMED)
    .order_by(Appointment.due_at, Appointment.id)
)


@dataclass(frozen=True)
class Due:
    """An appointment whose time has come."""

    id: int
    lease_id: str
    generation: int
    kind: AppointmentKind
    due_at: datetime


@dataclass(frozen=True)
class NoShow:
    """Seconds after the start of a lease in which nothing has run."""

    warn_s: int
    reclaim_s: int


def make(
    session: Session, lease: Lease, timetable: Timetable, no_show: NoShow | None = None
) -> None:
    """Write the appointments of a new lease."""
    _insert(session, lease, list(_of(lease, timetable, no_show)))


def make_end(session: Session, lease: Lease) -> None:
    """Write only the end of the hold, for a lease that is already ending."""
    _insert(session, lease, [(AppointmentKind.END, lease.hold_end)])


def follow(session: Session, lease: Lease, *, end_before: datetime, now: datetime) -> None:
    """Begin a new generation after the lease has changed: appointments tied to its end move with
    it.

    Kept appointments stay kept, except for the notice before the end: it is sent again.
    """
    old = session.execute(
        select(Appointment.kind, Appointment.due_at, Appointment.state).where(
            Appointment.lease_id == lease.id,
            Appointment.generation == lease.generation,
            Appointment.state != AppointmentState.VOID,
        )
    ).all()
    void(session, lease.id)
    lease.generation += 1
    shift = lease.hold_end - end_before
    rows = []
    for kind, due_at, state in old:
        if kind in AT_START:
            if state is not AppointmentState.KEPT:
                rows.append((kind, due_at))
        elif kind is not AppointmentKind.NOTIFY or due_at + shift > now:
            rows.append((kind, due_at + shift))
    session.flush()
    _insert(session, lease, rows)


def void(session: Session, lease_id: str, *kinds: AppointmentKind) -> None:
    """Void the open appointments of a lease; given `kinds`, only those of these kinds."""
    query = update(Appointment).where(Appointment.lease_id == lease_id, Appointment.state.in_(OPEN))
    if kinds:
        query = query.where(Appointment.kind.in_(kinds))
    session.execute(
        query.values(state=AppointmentState.VOID).execution_options(synchronize_session=False)
    )


def due(session: Session, now: datetime) -> list[Due]:
    """Return all due appointments that nobody has claimed (or whose claim expired), by due time."""
    rows = session.execute(ALL_DUE, {"now": now})
    return [Due(*row) for row in rows]


def claim(session: Session, ids: Sequence[int], *, holder: str, now: datetime) -> set[int]:
    """Claim those of `ids` that are free, for half a minute; return the ids now held by `holder`.

    Rows that another transaction has locked are skipped, not waited for.
    """
    if not ids:
        return set()
    free = session.scalars(
        select(Appointment.id)
        .where(Appointment.id.in_(ids), UNCLAIMED)
        .order_by(Appointment.id)
        .with_for_update(skip_locked=True),
        {"now": now},
    ).all()
    session.execute(
        update(Appointment)
        .where(Appointment.id.in_(free))
        .values(state=AppointmentState.CLAIMED, claimed_by=holder, claim_expires_at=now + CLAIM)
        .execution_options(synchronize_session=False)
    )
    return set(free)


def keep(session: Session, appointment: Due, *, holder: str, now: datetime) -> bool:
    """Mark it kept, in the transaction that does the work; False if it is void or another's."""
    changed = session.execute(
        update(Appointment)
        .where(
            Appointment.id == appointment.id,
            Appointment.state == AppointmentState.CLAIMED,
            Appointment.claimed_by == holder,
        )
        .values(state=AppointmentState.KEPT, kept_at=now, claim_expires_at=None)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(changed, CursorResult)
    return changed.rowcount == 1


def put_back(session: Session, appointment: Due) -> None:
    """Release an appointment that can't be kept yet: any scheduler may claim it again at once."""
    session.execute(
        update(Appointment)
        .where(
            Appointment.id == appointment.id,
            Appointment.state.in_((AppointmentState.CLAIMED, AppointmentState.KEPT)),
        )
        .values(state=AppointmentState.DUE, claimed_by=None, claim_expires_at=None, kept_at=None)
        .execution_options(synchronize_session=False)
    )


def _of(
    lease: Lease, timetable: Timetable, no_show: NoShow | None
) -> Iterator[tuple[AppointmentKind, datetime]]:
    start, end = lease.hold_start, lease.hold_end
    if lease.state is LeaseState.BOOKED:
        yield AppointmentKind.BEGIN, start
    if lease.kind is LeaseKind.BOOKED:  # a walk-in ends with its job: no warning needed
        if no_show is not None:
            yield AppointmentKind.WARN, start + timedelta(seconds=no_show.warn_s)
            yield AppointmentKind.RECLAIM, start + timedelta(seconds=no_show.reclaim_s)
        for before_s in timetable.notify_s:
            if end - timedelta(seconds=before_s) > start:
                yield AppointmentKind.NOTIFY, end - timedelta(seconds=before_s)
    yield AppointmentKind.STOP, usable_end(end, lease.grace_s)
    yield AppointmentKind.END, end


def _insert(
    session: Session, lease: Lease, rows: Sequence[tuple[AppointmentKind, datetime]]
) -> None:
    values = [
        {
            "lease_id": lease.id,
            "generation": lease.generation,
            "kind": kind,
            "due_at": due_at,
            "state": AppointmentState.DUE,
        }
        for kind, due_at in rows
    ]
    if values:
        session.connection().execute(insert(Appointment), values)
