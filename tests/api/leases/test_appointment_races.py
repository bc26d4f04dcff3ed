"""Races about what happens in the life of a lease: 32 threads, both databases, checked by SQL.

A number at the end of a name is that of the case in the list of edge cases.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from api.leases import booking
from api.web.bells import Bells
from core.base import clock
from core.base.clock import FollowingClock, utc_now
from core.base.errors import Conflict
from core.leases import appointments, leases
from core.leases.appointments import Due
from core.policy.grid import HOUR
from core.process.timekeeping import database_time
from core.states import LeaseState
from core.tables.jobs import Event
from core.tables.kinds import AppointmentKind, AppointmentState
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.notices import Notice
from scheduler.leases import handover
from scheduler.queue.fitting import Fitting
from scheduler.reading import take_snapshot
from scheduler.snapshot import LeaseSnapshot
from tests.api.yard import ROUNDS, THREADS, Yard, winners

pytestmark = pytest.mark.race


def seen(yard: Yard, lease_id: str, now: datetime) -> LeaseSnapshot:
    """The lease as the scheduler reads it."""
    with yard.database.read() as session:
        world = take_snapshot(session, now, fitting=Fitting(), unreachable_after_s=1e9)
    return world.leases[lease_id]


def claimed(yard: Yard, lease_id: str, kind: AppointmentKind, *, holder: str) -> Due:
    """An appointment of the lease that is due and that `holder` has claimed."""
    with yard.database.write() as session:
        row = session.scalars(
            select(Appointment).where(
                Appointment.lease_id == lease_id,
                Appointment.kind == kind,
                Appointment.state == AppointmentState.DUE,
            )
        ).first()
        assert row is not None
        assert appointments.claim(session, [row.id], holder=holder, now=row.due_at) == {row.id}
        return Due(row.id, row.lease_id, row.generation, row.kind, row.due_at)


def activate(yard: Yard, lease_id: str) -> None:
    due = claimed(yard, lease_id, AppointmentKind.BEGIN, holder="s")
    move = handover.Begin(seen(yard, lease_id, due.due_at), due)
    with yard.database.write() as session:
        handover.carry_out(session, move, due.due_at, "s")
    assert yard.lease(lease_id).state is LeaseState.ACTIVE


def carry_out_and_die(yard: Yard, move: handover.Move, now: datetime) -> None:
    with yard.database.write() as session:
        handover.carry_out(session, move, now, "killed")
        raise KeyboardInterrupt


def events(yard: Yard, lease_id: str) -> list[str]:
    with yard.database.read() as session:
        return list(
            session.scalars(select(Event.kind).where(Event.subject == lease_id).order_by(Event.id))
        )


def states(yard: Yard, lease_id: str, kind: AppointmentKind) -> list[AppointmentState]:
    with yard.database.read() as session:
        return list(
            session.scalars(
                select(Appointment.state)
                .where(Appointment.lease_id == lease_id, Appointment.kind == kind)
                .order_by(Appointment.id)
            )
        )


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_32_schedulers_one_claims_an_appointment_62(yard: Yard, rounds: int) -> None:
    for _ in range(rounds):
        lease_id = yard.book(yard.people[0], "n-00")
        at = yard.start
        with yard.database.read() as session:
            ids = [due.id for due in appointments.due(session, at) if due.lease_id == lease_id]
        assert len(ids) == 1
        names = iter(range(THREADS))

        def claim(
            ids: list[int] = ids, names: Iterator[int] = names, at: datetime = at
        ) -> str | None:
            with yard.database.write() as session:
                holder = f"s-{next(names)}"
                return "won" if appointments.claim(session, ids, holder=holder, now=at) else None

        assert winners(yard.race(claim)) == ["won"]
        with yard.database.write() as session:
            appointments.void(session, lease_id)
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_lease_is_cancelled_or_begins_and_never_both_41(yard: Yard, rounds: int) -> None:
    ann = yard.people[0]
    for _ in range(rounds):
        lease_id = yard.book(ann, "n-00")
        due = claimed(yard, lease_id, AppointmentKind.BEGIN, holder="s")
        move = handover.Begin(seen(yard, lease_id, yard.start), due)

        def cancel(lease_id: str = lease_id) -> str:
            with yard.database.write() as session:
                lease = booking.owned(session, lease_id, ann, lock=True)
                if not leases.cancel(session, lease, now=utc_now(), message="No.", actor="t"):
                    raise Conflict("no longer")
            return "cancelled"

        def begin(move: handover.Begin = move, at: datetime = yard.start) -> None:
            with yard.database.write() as session:
                handover.carry_out(session, move, at, "s")

        won = winners(yard.race(cancel, begin))
        lease = yard.lease(lease_id)
        if won:
            assert (len(won), lease.state) == (1, LeaseState.CANCELLED)
            assert states(yard, lease_id, AppointmentKind.BEGIN) == [AppointmentState.VOID]
            assert events(yard, lease_id) == ["booked", "cancelled"]
        else:
            assert lease.state is LeaseState.ACTIVE
            assert states(yard, lease_id, AppointmentKind.BEGIN) == [AppointmentState.KEPT]
            assert events(yard, lease_id) == ["booked", "active"]
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_lease_is_given_back_or_comes_to_its_end_and_never_both(yard: Yard, rounds: int) -> None:
    ann = yard.people[0]
    for _ in range(rounds):
        lease_id = yard.book(ann, "n-00", hours=3)
        activate(yard, lease_id)
        stop_at = yard.start + 3 * HOUR - timedelta(minutes=5)
        due = claimed(yard, lease_id, AppointmentKind.STOP, holder="s")
        stop = handover.Stop(seen(yard, lease_id, stop_at), "Over.", due)
        early = yard.start + HOUR

        def release(lease_id: str = lease_id, now: datetime = early) -> None:
            with yard.database.write() as session:
                lease = booking.owned(session, lease_id, ann, lock=True)
                booking.give_back(session, lease, ann, Bells(), now=now)

        def end(stop: handover.Stop = stop, now: datetime = stop_at) -> None:
            with yard.database.write() as session:
                handover.carry_out(session, stop, now, "s")

        yard.race(release, end)
        lease = yard.lease(lease_id)
        assert events(yard, lease_id) == ["booked", "active", "ending"]
        given_back = lease.settled_as == "released"
        assert lease.hold_end == yard.start + (2 if given_back else 3) * HOUR
        kept = AppointmentState.VOID if given_back else AppointmentState.KEPT
        assert states(yard, lease_id, AppointmentKind.STOP) == [kept]
        with yard.database.read() as session:
            (hold,) = session.scalars(select(Occupancy).where(Occupancy.lease_id == lease_id))
            open_ends = session.scalars(
                select(Appointment.due_at).where(
                    Appointment.lease_id == lease_id,
                    Appointment.kind == AppointmentKind.END,
                    Appointment.state == AppointmentState.DUE,
                )
            ).all()
        assert hold.hold_end == lease.hold_end
        assert open_ends == [lease.hold_end]
        with yard.database.write() as session:
            row = session.get_one(Lease, lease_id)
            leases.end(session, row, at=early, now=early, message="Clean.", actor="t")
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("moment", ["after the claim", "after the side effect"])
def test_what_a_killed_scheduler_had_claimed_is_done_once_by_another_61(
    yard: Yard, moment: str, rounds: int
) -> None:
    ann = yard.people[0]
    for _ in range(rounds):
        lease_id = yard.book(ann, "n-00")
        activate(yard, lease_id)
        due = claimed(yard, lease_id, AppointmentKind.NOTIFY, holder="killed")
        move = handover.Notify(seen(yard, lease_id, due.due_at), due)
        if moment == "after the side effect":
            with pytest.raises(KeyboardInterrupt):
                carry_out_and_die(yard, move, due.due_at)
        later = due.due_at + appointments.CLAIM
        names = iter(range(THREADS))

        def take_over(
            move: handover.Notify = move, later: datetime = later, names: Iterator[int] = names
        ) -> str | None:
            holder = f"s-{next(names)}"
            with yard.database.write() as session:
                ours = appointments.claim(session, [move.appointment.id], holder=holder, now=later)
            if not ours:
                return None
            with yard.database.write() as session:
                handover.carry_out(session, move, later, holder)
            return holder

        def wake_up_late(move: handover.Notify = move, later: datetime = later) -> None:
            with yard.database.write() as session:  # it was only asleep
                handover.carry_out(session, move, later, "killed")

        yard.race(*[take_over] * 7, wake_up_late)
        with yard.database.read() as session:
            told = select(func.count()).select_from(Notice).where(Notice.subject == lease_id)
            assert session.scalar(told) == 1
            kept = session.get_one(Appointment, due.id)
        assert kept.state is AppointmentState.KEPT
        yard.next_round()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_hosts_whose_clocks_are_two_minutes_off_act_at_the_databases_time_63(
    yard: Yard, rounds: int
) -> None:
    """One appointment has been due for a minute, another will be in one: each host's own clock
    would call both due, or neither."""
    for _ in range(rounds):
        past, future = (yard.book(yard.people[0], node) for node in ("n-00", "n-01"))
        now = database_time(yard.database)
        with yard.database.write() as session:
            for lease_id, due_at in ((past, now - timedelta(minutes=1)), (future, now + HOUR / 60)):
                session.execute(
                    update(Appointment)
                    .where(
                        Appointment.lease_id == lease_id,
                        Appointment.kind == AppointmentKind.BEGIN,
                    )
                    .values(due_at=due_at)
                )
        with yard.database.read() as session:
            fast, slow = now + timedelta(minutes=2), now - timedelta(minutes=2)
            assert [due.lease_id for due in appointments.due(session, fast)] == [past, future]
            assert appointments.due(session, slow) == []
        numbers = iter(range(THREADS))

        def host(numbers: Iterator[int] = numbers) -> list[str]:
            number = next(numbers)
            off_s = 120.0 if number % 2 else -120.0
            own = FollowingClock(boot=lambda: clock.boot_s() + off_s)
            own.follow(database_time(yard.database))
            with yard.database.write() as session:
                found = {due.id: due.lease_id for due in appointments.due(session, own.now())}
                ours = appointments.claim(
                    session, sorted(found), holder=f"h-{number}", now=own.now()
                )
            return [found[one] for one in ours]

        got = [lease_id for one in yard.race(host) if isinstance(one, list) for lease_id in one]
        assert got == [past]
        yard.give_all_back()
        yard.next_round()
