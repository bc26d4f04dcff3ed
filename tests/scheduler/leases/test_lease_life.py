"""What happens in the life of a lease: told in time, taken back if unused, rescued from faults.

A number at the end of a name is that of the case in the list of edge cases.
"""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from api.nodes.orders import orders_for
from core.base.errors import Conflict
from core.database.database import Database
from core.jobs.attempts import newest_checkpoint
from core.leases import appointments, leases, settlement, waitlist
from core.leases.appointments import NoShow
from core.leases.situation import Judge
from core.notices.notices import NoticeKind
from core.policy.grid import hour_ceiling
from core.policy.sections import Cancel, EarlyRelease
from core.policy.verdict import RequestKind
from core.states import JobState, LeaseState, NodeState, Outcome
from core.tables.kinds import AppointmentState, OccupancyKind, OfferState, WaitState
from core.tables.leases import Appointment, Lease, Occupancy, Offer, Wait
from core.tables.nodes import Node
from core.tables.notices import Notice
from core.tables.policies import AppliedPolicy
from core.workspaces.quota import Quota
from scheduler.cycle import hand_over, read_world
from tests.scheduler.world import World, at

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
STRICT = NoShow(warn_s=20 * 60, reclaim_s=30 * 60)


@pytest.fixture
def world(migrated_database: Database) -> World:
    return World(migrated_database, at(10))


def notices(world: World, kind: NoticeKind | None = None) -> list[str]:
    with world.database.read() as session:
        rows = session.scalars(select(Notice).order_by(Notice.id)).all()
    return [str(row.facts["message"]) for row in rows if kind in (None, row.kind)]


def appointment_states(world: World, lease_id: str) -> dict[tuple[str, datetime], str]:
    with world.database.read() as session:
        rows = session.scalars(select(Appointment).where(Appointment.lease_id == lease_id)).all()
    return {(str(row.kind), row.due_at): str(row.state) for row in rows}


def go_on(world: World, until: datetime) -> None:
    """A cycle every minute."""
    while world.now < until:
        world.go(min(until, world.now + MINUTE))


def begun(world: World, hours: int = 2, no_show: NoShow | None = None) -> tuple[str, str]:
    """A node, and a lease of ada's on it that has begun at 11:00."""
    node_id = world.node()
    lease_id = world.book(node_id, at(11), hours, no_show=no_show)
    world.go(at(11))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    return node_id, lease_id


def test_calendars_are_told_of_a_lease_that_begins_and_of_nothing_else(world: World) -> None:
    world.book(world.node(), at(11), 2)
    world.go(at(10, 30))
    world.bells.topics.clear()
    world.go(at(10, 31))
    assert world.bells.topics == []
    world.go(at(11))
    assert world.bells.topics == ["calendar"]


# ---------------------------------------------------------------------------- told, in time, once


def test_an_owner_is_told_30_and_15_minutes_before_the_end_and_once_each(world: World) -> None:
    begun(world)
    for minute in (29, 30, 31, 45, 46):
        world.go(at(12, minute))
        world.go(at(12, minute, 30))
    told = notices(world, NoticeKind.LEASE_ENDING)
    assert len(told) == 2
    assert "ends at 13:00 UTC" in told[0]
    assert "stop at 12:55 UTC" in told[0]


def test_an_extended_lease_is_told_again_before_its_new_end_45(world: World) -> None:
    _, lease_id = begun(world)
    world.go(at(12, 31))
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        leases.lock_nodes(session, [lease.node_id])
        leases.extend(session, lease, end=at(14), now=world.now, message="Longer.", actor="t")
    before = appointment_states(world, lease_id)
    assert before["stop", at(12, 55)] == before["end", at(13)] == AppointmentState.VOID
    assert before["stop", at(13, 55)] == before["end", at(14)] == AppointmentState.DUE
    world.go(at(12, 56))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    world.go(at(13, 31))
    assert len(notices(world, NoticeKind.LEASE_ENDING)) == 2
    world.go(at(13, 55))
    assert world.get_lease(lease_id).state in (LeaseState.ENDING, LeaseState.ENDED)


def test_a_scheduler_that_dies_after_its_claim_is_followed_by_one_that_acts_once_61(
    world: World,
) -> None:
    begun(world)
    with world.database.write() as session:
        due = appointments.due(session, at(12, 30))
        ids = [one.id for one in due]
        assert appointments.claim(session, ids, holder="dead", now=at(12, 30)) == set(ids)
    world.go(at(12, 30, 10))
    assert notices(world, NoticeKind.LEASE_ENDING) == []  # the other one may be at it
    world.go(at(12, 30, 31))
    assert len(notices(world, NoticeKind.LEASE_ENDING)) == 1
    with world.database.write() as session:  # it was only asleep, and wakes up late
        assert not appointments.keep(session, due[0], holder="dead", now=world.now)
    world.go(at(12, 31))
    assert len(notices(world, NoticeKind.LEASE_ENDING)) == 1


def test_of_two_schedulers_one_claims_each_event_62(world: World) -> None:
    begun(world)
    with world.database.write() as session:
        ids = [one.id for one in appointments.due(session, at(12, 30))]
        assert len(appointments.claim(session, ids, holder="a", now=at(12, 30))) == len(ids) > 0
        assert appointments.claim(session, ids, holder="b", now=at(12, 30)) == set()


def test_a_cancelled_lease_does_not_begin_though_its_start_was_claimed_41(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 1)
    with world.database.write() as session:
        (begin,) = appointments.due(session, at(11))
        appointments.claim(session, [begin.id], holder="s", now=at(11))
        lease = session.get_one(Lease, lease_id)
        assert leases.cancel(session, lease, now=at(11), message="Never mind.", actor="t")
        assert not appointments.keep(session, begin, holder="s", now=at(11))
    world.go(at(11, 1))
    assert world.get_lease(lease_id).state is LeaseState.CANCELLED
    states = set(appointment_states(world, lease_id).values())
    assert states == {AppointmentState.VOID}


def test_after_an_outage_overdue_ends_come_before_overdue_starts_60(world: World) -> None:
    node_id, first = begun(world, 1)
    second = world.book(node_id, at(12), 1, user="bob")
    job_id = world.job(lease=first, wall="3h")
    world.go(at(11, 1))
    world.runs(job_id)
    world.now = at(12, 20)  # nobody has decided anything since 11:01
    world.report()
    world.cycle()
    assert world.get_lease(second).state is LeaseState.BOOKED  # the node is not clean
    world.exits(job_id, Outcome.LEASE_ENDED)
    world.cycle()
    ended, began = world.get_lease(first), world.get_lease(second)
    assert (ended.state, began.state) == (LeaseState.ENDED, LeaseState.ACTIVE)
    assert ended.ended_at is not None
    assert began.began_at is not None
    assert ended.ended_at <= began.began_at
    assert (began.hold_end, began.counts) == (at(13), False)  # not longer, but refunded


def test_a_job_in_a_lease_that_ends_goes_on_in_its_owners_next_one_52(world: World) -> None:
    _, first = begun(world, 1)
    node_id = world.node("north-02")
    world.book(node_id, at(14), 1, user="bob")
    second = world.book(node_id, at(12), 2)
    job_id = world.job(lease=first, wall="3h")
    assert world.go(at(11, 1)) == [job_id]
    world.runs(job_id)
    world.go(at(11, 55))
    assert "continues in the next lease" in world.get_job(job_id).reason
    world.exits(job_id, Outcome.LEASE_ENDED)
    assert world.go(at(11, 58)) == []
    assert world.go(at(12)) == [job_id]
    assert world.lease_of(job_id).id == second
    world.go(at(13, 55))
    assert "returns to the queue" in world.get_job(job_id).reason  # the next is somebody else's


def test_a_job_that_waits_in_a_lease_that_ends_takes_no_free_node_before_the_next(
    world: World,
) -> None:
    node_id, first = begun(world, 1)
    world.book(node_id, at(12), 1, user="bob")
    second = world.book(world.node("north-02"), at(12), 2)
    world.node("north-03")
    ahead = world.job(lease=first, wall="3h")
    world.go(at(11, 1))
    world.runs(ahead)
    behind = world.job(lease=first)
    assert world.go(at(11, 2)) == []
    assert world.go(at(11, 55)) == []  # in the cycle in which its lease ends
    assert world.get_job(behind).lease_id == second


def test_a_save_that_takes_longer_than_the_grace_is_waited_for_and_never_used_in_part_51(
    world: World,
) -> None:
    node_id, lease_id = begun(world, 1)
    job_id = world.job(lease=lease_id, wall="3h")
    world.go(at(11, 1))
    world.runs(job_id)
    world.go(at(11, 48))
    with world.database.read() as session:
        (order,) = orders_for(session, node_id, [], quota=Quota(1, 1), now=world.now).attempts
    assert order.deadlines.checkpoint_in_s == 120  # ten minutes before the hour
    assert order.deadlines.stop_in_s == 420
    world.go(at(11, 55))
    world.now = at(11, 56)
    world.exits(job_id, Outcome.LEASE_ENDED, kept=False)
    for minute in (57, 59):
        assert world.go(at(11, minute)) == []
        assert "north-01" in world.get_job(job_id).reason  # which still brings what it has saved
        with world.database.read() as session:
            assert newest_checkpoint(session, job_id) is None
    world.saves(job_id)  # all of its files are in the store
    world.keeps(job_id)
    assert world.go(at(12)) == [job_id]
    with world.database.read() as session:
        whole = newest_checkpoint(session, job_id)
    assert whole is not None
    assert world.attempt(job_id).resume_checkpoint_id == whole.id


# --------------------------------------------------------------------------------------- no-show


def test_a_lease_nobody_uses_is_warned_of_and_taken_back_with_a_strike_57(world: World) -> None:
    node_id, lease_id = begun(world, 3, STRICT)
    world.go(at(11, 19))
    assert notices(world) == []
    world.go(at(11, 20))
    (warning,) = notices(world, NoticeKind.LEASE_IDLE)
    assert "taken back at 11:30 UTC" in warning
    world.go(at(11, 29))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    world.go(at(11, 30))
    lease = world.get_lease(lease_id)
    assert (lease.state, lease.settled_as, lease.counts) == (LeaseState.ENDED, "no_show", True)
    assert (lease.hold_end, lease.charged_end) == (at(12), at(14))
    assert "no-show 1" in notices(world, NoticeKind.LEASE_RECLAIMED)[0]
    world.book(node_id, at(12), 2, user="bob")


def test_what_is_left_of_a_lease_nobody_came_to_is_for_others_in_the_same_cycle_57(
    world: World,
) -> None:
    node_id, lease_id = begun(world, 3, STRICT)
    job_id = world.job(user="bob", wall="20min")
    wait_id = wish(world, "bob", first_start=at(12), last_start=at(12))
    assert world.go(at(11, 29)) == []
    world.scheduler.waitlist_looked_at = at(11, 29, 59)  # it looks every 5 s only
    assert world.go(at(11, 30)) == [job_id]
    assert state_of(world, wait_id)[0] is WaitState.OFFERED  # 12:00 to 14:00
    walked_in = world.lease_of(job_id)
    assert (walked_in.node_id, walked_in.hold_end) == (node_id, at(12))
    lease = world.get_lease(lease_id)
    assert (lease.settled_as, lease.charged_end) == ("no_show", at(11, 30))  # no hour twice


def test_who_does_not_come_too_often_hears_what_that_means(world: World) -> None:
    world.node("north-02")
    world.apply(
        "policy: {id: strict, version: 1}\nno_show: {reclaim_after_min: 30, strikes: 2, "
        "within_days: 10, penalty_days: 7}\n"
    )
    for day in range(2):
        lease_id = world.book(world.node(f"box-{day}"), world.now + HOUR, 1, no_show=STRICT)
        for minutes in (60, 90):
            world.go(world.get_lease(lease_id).hold_start + timedelta(minutes=minutes - 60))
        world.now += timedelta(hours=20)
    first, second = notices(world, NoticeKind.LEASE_RECLAIMED)
    assert "no-show 1 of 2 in 10 days." in first
    assert "you may only" not in first
    assert "For 7 days you may only use walk-ins; staff can grant an exception." in second
    with world.database.read() as session:
        judge = Judge(session, "user_ada", now=world.now)
        node = session.scalars(select(Node).where(Node.name == "north-02")).one()
        hour = hour_ceiling(world.now)
        refused = judge.verdict(node, hour, hour + HOUR)
        assert [reason.code for reason in refused.reasons] == ["no_shows"]
        assert refused.reasons[0].numbers["used"] == 2
        kind = RequestKind.WALK_IN
        assert judge.verdict(node, world.now, hour + HOUR, kind=kind).ok


def test_a_lease_with_a_job_is_not_taken_back(world: World) -> None:
    _, lease_id = begun(world, 3, STRICT)
    world.go(at(11, 21))
    job_id = world.job(lease=lease_id)
    assert world.go(at(11, 22)) == [job_id]
    world.exits(job_id)
    world.go(at(11, 31))
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    assert notices(world, NoticeKind.LEASE_RECLAIMED) == []


def test_an_owner_who_comes_while_the_scheduler_decides_keeps_the_lease(world: World) -> None:
    _, lease_id = begun(world, no_show=STRICT)
    world.go(at(11, 29))
    world.now = at(11, 30)
    world.report()
    decided_from = read_world(world.scheduler, world.now)
    mine = world.job(lease=lease_id)  # submitted after the scheduler has looked
    hand_over(world.scheduler, decided_from)
    lease = world.get_lease(lease_id)
    assert (lease.state, lease.settled_as) == (LeaseState.ACTIVE, "")
    assert world.go(at(11, 30, 1)) == [mine]
    assert notices(world, NoticeKind.LEASE_RECLAIMED) == []


def test_a_node_that_was_away_is_no_no_show_58(world: World) -> None:
    _, lease_id = begun(world, 3, STRICT)
    for minute in range(1, 14):
        world.go(at(11, minute), report=False)  # silent until 11:14
    for minute in range(14, 43):
        world.go(at(11, minute))
    lease = world.get_lease(lease_id)
    assert lease.state is LeaseState.ACTIVE
    assert 13 * 60 <= lease.unusable_s <= 14 * 60
    world.go(at(11, 44))
    assert world.get_lease(lease_id).settled_as == "no_show"  # half an hour of use was possible


# ---------------------------------------------------------------------------------------- faults


def test_a_lease_whose_node_is_dirty_moves_to_a_free_one_of_its_class_50(world: World) -> None:
    dirty = world.node("north-01", state=NodeState.DIRTY, clean=False)
    spare = world.node("north-02")
    world.node("south-01", "cpu8")
    lease_id = world.book(dirty, at(11), 2)
    job_id = world.job(lease=lease_id)
    for minute in (0, 1):
        world.now = at(11, minute)
        world.report(spare)
        world.report(dirty, clean=False)
        world.cycle()
        assert world.get_lease(lease_id).node_id == dirty
    world.now = at(11, 2)
    world.report(spare)
    world.report(dirty, clean=False)
    world.cycle()
    lease = world.get_lease(lease_id)
    assert (lease.node_id, lease.booked_node_id) == (spare, dirty)
    assert "north-02" in notices(world, NoticeKind.LEASE_MOVED)[0]
    world.report(spare)
    world.cycle()
    assert world.attempt(job_id).node_id == spare
    with world.database.read() as session:
        held = session.scalars(select(Occupancy).where(Occupancy.live)).all()
    assert [(row.node_id, row.hold_end) for row in held] == [(spare, at(13))]


def test_a_lease_that_can_not_begin_is_refunded_whole_and_served_first_53(world: World) -> None:
    dirty = world.node("north-01", state=NodeState.DIRTY, clean=False)
    lease_id = world.book(dirty, at(11), 2)
    for minute in (1, 14):
        world.now = at(11, minute)
        world.report(clean=False)
        world.cycle()
        assert world.get_lease(lease_id).counts
    world.now = at(11, 15)
    world.report(clean=False)
    world.cycle()
    lease = world.get_lease(lease_id)
    assert (lease.counts, lease.settled_as, lease.state) == (False, "node_fault", "booked")
    with world.database.read() as session:
        wait = session.scalars(select(Wait)).one()
    assert (wait.user_id, wait.hours, wait.priority) == ("user_ada", 2, True)
    assert len(notices(world, NoticeKind.LEASE_REFUNDED)) == 1
    for minute in (16, 17):
        world.go(at(11, minute))  # the node is back: what is left of it can be used
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    assert len(notices(world, NoticeKind.LEASE_REFUNDED)) == 1


def test_an_active_lease_moves_when_its_node_stays_silent_and_the_node_stays_held_53(
    world: World,
) -> None:
    spare = world.node("north-02")
    other = world.node("east-01", "cpu8")
    node_id, lease_id = begun(world, 3)
    job_id = world.job(lease=lease_id, wall="2h")
    world.go(at(11, 1))
    world.runs(job_id)
    for minute in range(2, 20):
        world.now = at(11, minute)
        world.report(spare)
        world.report(other)
        world.cycle()
    lease = world.get_lease(lease_id)
    assert (lease.node_id, lease.state) == (spare, LeaseState.ACTIVE)
    with world.database.read() as session:
        held = {
            row.node_id: (row.kind, row.hold_start, row.hold_end)
            for row in session.scalars(select(Occupancy).where(Occupancy.live))
        }
    assert held[node_id] == (OccupancyKind.DOWN, at(11), at(14))
    assert held[spare][0] is OccupancyKind.LEASE
    assert at(11, 16) <= held[spare][1] <= at(11, 18)
    second = world.job(lease=lease_id)
    world.now = at(11, 20)
    world.report(spare)
    world.report(other)
    assert second in world.cycle()
    assert world.attempt(second).node_id == spare
    world.now = at(11, 25)
    world.report()  # it is back: its job has gone on and ends, and then the node is free
    world.exits(job_id)
    world.cycle()
    with world.database.read() as session:
        kinds = set(session.scalars(select(Occupancy.kind).where(Occupancy.live)))
    assert kinds == {OccupancyKind.LEASE}


def test_ten_minutes_of_silence_are_noted_and_not_refunded_54(world: World) -> None:
    _, lease_id = begun(world, 3)
    world.node("east-01", "cpu8")
    for minute in range(1, 11):
        world.go(at(11, minute), report=False)
    world.go(at(11, 11))
    lease = world.get_lease(lease_id)
    assert lease.counts
    assert 600 <= lease.unusable_s <= 660


def test_a_node_that_holds_memory_at_the_hour_keeps_the_next_lease_waiting_50(
    world: World,
) -> None:
    node_id, first = begun(world, 1)
    second = world.book(node_id, at(12), 1, user="bob")
    world.now = at(11, 55)
    world.report(clean=False)
    world.cycle()
    for second_s in (0, 14, 16):
        world.now = at(12, 0, second_s)
        world.report(clean=False)
        world.cycle()
        assert world.get_lease(second).state is LeaseState.BOOKED
    assert world.get_node(node_id).state is NodeState.DIRTY
    assert world.get_lease(first).state is LeaseState.ENDED
    assert world.get_lease(second).reason.startswith("Begins as soon as possible. north-01")
    world.go(at(12, 1))
    world.go(at(12, 1, 5))
    assert world.get_lease(second).state is LeaseState.ACTIVE


# -------------------------------------------------------------------------------------- walk-ins


def test_a_job_walks_in_only_where_the_policy_lets_it_18b(world: World) -> None:
    world.node()
    world.apply("policy: {id: strict, version: 1}\nwalk_in: {allowed: false}\n")
    job_id = world.job()
    for second in (0, 1, 40):
        assert world.go(at(10, 30, second)) == []
        job = world.get_job(job_id)
        assert (job.reason_code, job.state) == ("walk_in_refused", JobState.QUEUED)
        assert "does not allow walk-ins" in job.reason
    with world.database.write() as session:
        session.delete(session.get_one(AppliedPolicy, ("strict", 1)))
    assert world.go(at(10, 31, 11)) == [job_id]
    lease = world.lease_of(job_id)
    assert lease.policy_id is None


def test_a_walk_in_on_the_rest_of_a_block_is_charged_and_its_owner_no_longer(world: World) -> None:
    node_id, lease_id = begun(world, 3)
    block = Cancel(early_release=EarlyRelease(charge="block", refund_if_rebooked=True))
    world.now = at(11, 20)
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        settled = settlement.of_release(lease.hold_end, freed_from=at(12), rules=block, by="ada")
        leases.release(
            session, lease, end=at(12), settlement=settled, now=world.now, actor="user_ada"
        )
    assert world.get_lease(lease_id).charged_end == at(14)
    world.go(at(11, 20))
    job_id = world.job(user="bob", wall="20min")
    assert world.go(at(11, 25)) == [job_id]
    lease = world.get_lease(lease_id)
    assert (lease.charged_end, lease.charged_s) == (
        at(11, 25),
        25 * 60 + 2 * 3600,
    )  # without 35 min
    world.exits(job_id)
    world.go(at(11, 40))
    assert world.lease_of(job_id).charged_end == at(11, 40)
    assert world.get_lease(lease_id).charged_s == 45 * 60 + 2 * 3600  # 15 min were enough for it
    booked = world.book(node_id, at(12), 2, user="bob")
    assert world.get_lease(booked).counts
    lease = world.get_lease(lease_id)
    assert (lease.counts, lease.settled_as, lease.charged_s) == (True, "released", 45 * 60)


def test_a_walk_in_that_is_not_charged_leaves_the_charge_where_it_is(world: World) -> None:
    _, lease_id = begun(world, 3, STRICT)
    world.apply("policy: {id: open, version: 1}\nwalk_in: {charged: false}\n")
    job_id = world.job(user="bob")
    assert world.go(at(11, 30)) == [job_id]
    assert world.get_lease(lease_id).charged_end == at(14)


def test_who_cancelled_late_is_refunded_when_a_walk_in_and_a_booking_have_all_of_it(
    world: World,
) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 3)
    late = Cancel(refund_if_before_start_min=120, late_cancel="charge_unless_rebooked")
    world.now = at(10, 30)
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        settled = settlement.of_cancel(lease.hold_start, now=world.now, rules=late, by="ada")
        leases.cancel(
            session, lease, now=world.now, message=settled.message, actor="a", settlement=settled
        )
    booked = world.book(node_id, at(12), 2, user="bob")
    lease = world.get_lease(lease_id)
    assert (lease.counts, lease.charged_end) == (True, at(12))  # bob pays from then on
    world.job(user="bob", wall="20min")
    assert len(world.go(at(10, 59))) == 1  # to 12:00
    lease = world.get_lease(lease_id)
    assert (lease.counts, lease.settled_as) == (False, "rebooked")
    assert world.get_lease(booked).counts


def test_a_walk_in_keeps_the_verdict_it_was_granted_18b(world: World) -> None:
    world.node()
    world.apply("policy: {id: open, version: 1}\n")
    job_id = world.job()
    assert world.go(at(10, 57)) == [job_id]
    lease = world.lease_of(job_id)
    assert (lease.hold_end, lease.policy_id, lease.policy_version) == (at(12), "open", 1)
    assert lease.verdict is not None
    assert lease.verdict["ok"]


# -------------------------------------------------------------------------------------- waitlist


def wish(
    world: World,
    user: str,
    *,
    hours: int = 2,
    first_start: datetime = at(11),
    last_start: datetime = at(11),
    priority: bool = False,
) -> str:
    with world.database.write() as session:
        return waitlist.join(
            session,
            f"user_{user}",
            node_class="cpu2",
            node_id=None,
            first_start=first_start,
            last_start=last_start,
            hours=hours,
            now=world.now,
            priority=priority,
        ).id


def state_of(world: World, wait_id: str) -> tuple[WaitState, list[OfferState]]:
    with world.database.read() as session:
        made = session.scalars(select(Offer).where(Offer.wait_id == wait_id).order_by(Offer.id))
        return session.get_one(Wait, wait_id).state, [one.state for one in made]


def test_a_freed_block_is_offered_to_the_next_in_line_and_once_each_59(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 2, user="bob")
    first = wish(world, "ada")
    world.now += timedelta(seconds=1)  # ids of one millisecond are in any order
    second = wish(world, "bob")
    world.go(at(10, 1))
    assert state_of(world, first) == (WaitState.WAITING, [])
    with world.database.write() as session:
        leases.cancel(
            session, session.get_one(Lease, lease_id), now=world.now, message="No.", actor="t"
        )
    world.go(at(10, 2))
    assert state_of(world, first) == (WaitState.OFFERED, [OfferState.OPEN])
    assert state_of(world, second) == (WaitState.WAITING, [])
    (told,) = notices(world, NoticeKind.BLOCK_OFFERED)
    assert "for 10 minutes after you are first notified, until 10:12 UTC or later" in told
    with pytest.raises(Conflict, match="is held"):
        world.book(node_id, at(11), 1, user="bob")
    go_on(world, at(10, 11))
    assert state_of(world, first) == (WaitState.OFFERED, [OfferState.OPEN])
    world.go(at(10, 12))
    assert state_of(world, first) == (WaitState.WAITING, [OfferState.EXPIRED])
    world.go(at(10, 13))
    assert state_of(world, second) == (WaitState.OFFERED, [OfferState.OPEN])
    with world.database.write() as session:
        made = waitlist.open_offer(session, second)
        assert made is not None
        lease, _ = waitlist.accept(session, made, actor="user_bob", now=world.now)
        assert lease is not None
    assert state_of(world, second) == (WaitState.SERVED, [OfferState.ACCEPTED])
    world.go(at(10, 40))
    assert state_of(world, first) == (WaitState.WAITING, [OfferState.EXPIRED])  # offered once
    world.go(at(11, 1))
    assert state_of(world, first)[0] is WaitState.OVER


def test_hours_that_are_offered_are_told_to_who_waits_in_the_same_cycle(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 2, user="bob")
    wish(world, "ada")
    world.go(at(10, 55))
    with world.database.write() as session:
        leases.cancel(
            session, session.get_one(Lease, lease_id), now=world.now, message="No.", actor="t"
        )
    job_id = world.job(user="bob", wall="2h")  # would run into the block that is offered now
    assert world.go(at(10, 56)) == []
    job = world.get_job(job_id)
    assert job.reason_code != "submitted"
    assert job.predicted_start is not None
    assert job.predicted_start >= at(13)


def test_an_offer_that_has_expired_is_not_accepted(world: World) -> None:
    world.node()
    wait_id = wish(world, "ada")
    world.go(at(10, 1))
    go_on(world, at(10, 11))
    with world.database.read() as session:
        assert waitlist.open_offer(session, wait_id) is None
    assert state_of(world, wait_id) == (WaitState.WAITING, [OfferState.EXPIRED])


def an_offer(world: World) -> Offer:
    """Made at 10:01 to ada, of the only node."""
    world.node()
    wish(world, "ada", last_start=at(18))
    world.go(at(10, 1))
    with world.database.read() as session:
        return session.scalars(select(Offer)).one()


def tell(world: World, made: Offer) -> None:
    with world.database.write() as session:
        waitlist.tell(session, [made.id], now=world.now)


def lives(world: World, made: Offer) -> bool:
    with world.database.read() as session:
        return session.get_one(Offer, made.id).state is OfferState.OPEN


def test_an_offer_lives_from_when_its_owner_first_hears_of_it(world: World) -> None:
    made = an_offer(world)
    go_on(world, at(10, 9))
    tell(world, made)  # the page could not be shown before
    go_on(world, at(10, 18))
    tell(world, made)  # once
    assert lives(world, made)
    world.go(at(10, 19))
    assert not lives(world, made)


def test_an_offer_that_is_told_as_it_would_end_lives_on(world: World) -> None:
    made = an_offer(world)
    go_on(world, at(10, 10))
    world.now = at(10, 11)
    with world.database.read() as session:
        assert waitlist.overdue_offers(session, world.now) == [made.id]
    tell(world, made)
    with world.database.write() as session:
        made = session.get_one(Offer, made.id)
        assert not waitlist.let_pass(session, made, OfferState.EXPIRED, now=world.now)
    assert lives(world, made)


@pytest.mark.parametrize("trouble", ["asleep", "another", "deaf"])
def test_minutes_in_which_the_platform_was_not_there_are_not_an_offers(
    world: World, trouble: str
) -> None:
    made = an_offer(world)
    tell(world, made)
    go_on(world, at(10, 8))
    match trouble:
        case "asleep":  # or read-only: the same leader, later
            pass
        case "another":  # it remembers nothing
            world.scheduler.waitlist_looked_at = None
            world.scheduler.leadership.leader_since = at(10, 40)
        case "deaf":  # no node reaches the API, nor does anybody else
            while world.now < at(10, 39):
                world.go(world.now + MINUTE, report=False)
    world.go(at(10, 40))
    go_on(world, at(10, 48))
    assert lives(world, made)
    go_on(world, at(10, 50))
    assert not lives(world, made)


def test_who_lost_a_lease_to_a_fault_is_served_first(world: World) -> None:
    world.node()
    early, late = wish(world, "ada"), wish(world, "bob", priority=True)
    world.go(at(10, 1))
    assert state_of(world, late)[0] is WaitState.OFFERED
    assert state_of(world, early)[0] is WaitState.WAITING


def test_who_leaves_the_waitlist_gives_the_held_block_back(world: World) -> None:
    node_id = world.node()
    wait_id = wish(world, "ada")
    world.go(at(10, 1))
    with world.database.write() as session:
        waitlist.leave(session, session.get_one(Wait, wait_id), now=world.now)
    assert state_of(world, wait_id) == (WaitState.LEFT, [OfferState.DECLINED])
    world.book(node_id, at(11), 2, user="bob")
