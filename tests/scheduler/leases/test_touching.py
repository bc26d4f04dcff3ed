"""Two leases of one person that touch on one node: nothing is stopped between them.

A number at the end of a name is that of the case in the list of edge cases.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from api.nodes.orders import orders_for
from core.database.database import Database
from core.leases import leases
from core.leases.adjacent import followers, last_of
from core.notices.notices import NoticeKind
from core.states import JobState, LeaseState, NodeState, Outcome
from core.tables.jobs import AttemptPart
from core.tables.kinds import AppointmentState, LeaseKind
from core.tables.leases import Appointment, Lease, Occupancy
from core.tables.nodes import Node
from core.tables.notices import Notice
from core.wire.messages import Deadlines
from core.workspaces.quota import Quota
from tests.scheduler.world import World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10))


def running(world: World) -> tuple[str, str, str, str]:
    """A node, ada's leases 11 to 12 and 12 to 14 on it, and her job that runs in the first."""
    node_id = world.node()
    first, second = world.book(node_id, at(11), 1), world.book(node_id, at(12), 2)
    job_id = world.job(lease=first, wall="9h")
    assert world.go(at(11)) == [job_id]
    world.runs(job_id)
    return node_id, first, second, job_id


def deadlines(world: World, node_id: str) -> Deadlines:
    with world.database.read() as session:
        orders = orders_for(session, node_id, [], quota=Quota(1, 1), now=world.now)
    (order,) = orders.attempts
    return order.deadlines


def endings_told(world: World) -> list[str]:
    with world.database.read() as session:
        told = session.scalars(select(Notice).where(Notice.kind == NoticeKind.LEASE_ENDING))
        return [str(notice.subject) for notice in told]


def cancel(world: World, lease_id: str) -> None:
    with world.database.write() as session:
        lease = session.get_one(Lease, lease_id)
        assert leases.cancel(session, lease, now=world.now, message="No.", actor="user_ada")


def test_what_runs_goes_on_into_the_lease_that_touches_52(world: World) -> None:
    node_id, first, second, job_id = running(world)
    told = deadlines(world, node_id)
    assert told.stop_in_s == timedelta(hours=2, minutes=55).total_seconds()
    assert told.checkpoint_in_s == timedelta(hours=2, minutes=50).total_seconds()
    for moment in (at(11, 31), at(11, 46), at(11, 55), at(11, 59, 59)):
        world.go(moment)
        assert world.get_job(job_id).state is JobState.RUNNING
        assert world.get_lease(first).state is LeaseState.ACTIVE
        assert world.get_lease(second).state is LeaseState.BOOKED
    world.go(at(12))
    ended, begun = world.get_lease(first), world.get_lease(second)
    assert (ended.state, ended.counts, ended.settled_as) == (LeaseState.ENDED, True, "used")
    assert (begun.state, begun.began_at) == (LeaseState.ACTIVE, at(12))
    job, attempt = world.get_job(job_id), world.attempt(job_id)
    assert (job.state, job.epoch, job.lease_id) == (JobState.RUNNING, 1, second)
    assert (attempt.lease_id, [part.lease_id for part in world.parts(job_id)]) == (second, [second])
    assert deadlines(world, node_id).stop_in_s == timedelta(hours=1, minutes=55).total_seconds()
    assert endings_told(world) == []
    with world.database.read() as session:
        open_rows = session.scalars(
            select(Appointment).where(
                Appointment.lease_id == first, Appointment.state == AppointmentState.DUE
            )
        ).all()
        holds = session.scalars(select(Occupancy).order_by(Occupancy.hold_start)).all()
    assert open_rows == []
    assert [(row.hold_start, row.hold_end) for row in holds] == [(at(11), at(12)), (at(12), at(14))]
    world.go(at(13, 31))
    assert endings_told(world) == [second]
    world.go(at(13, 55))
    assert world.get_job(job_id).state is JobState.STOPPING


def test_one_that_is_given_back_in_the_last_minutes_stops_what_runs_52(world: World) -> None:
    node_id, first, second, job_id = running(world)
    world.go(at(11, 56))
    cancel(world, second)
    late = deadlines(world, node_id)
    assert (late.stop_in_s, late.kill_in_s) == (-60.0, 30.0)  # at once, with time to save
    world.go(at(11, 56, 5))
    assert world.get_job(job_id).state is JobState.STOPPING
    assert endings_told(world) == []  # there is no time left to be told
    world.exits(job_id, Outcome.LEASE_ENDED)
    world.go(at(11, 57))
    assert world.get_lease(first).state is LeaseState.ENDED


def test_one_that_is_given_back_before_is_told_of_52(world: World) -> None:
    _, first, second, job_id = running(world)
    world.go(at(11, 31))
    cancel(world, second)
    world.go(at(11, 32))
    assert endings_told(world) == [first]
    world.go(at(11, 55))
    assert world.get_job(job_id).state is JobState.STOPPING


def test_three_in_a_row_are_one_stretch_52(world: World) -> None:
    node_id, _, second, job_id = running(world)
    third = world.book(node_id, at(14), 1)
    assert deadlines(world, node_id).stop_in_s == timedelta(hours=3, minutes=55).total_seconds()
    world.go(at(12))
    assert world.lease_of(job_id).id == second
    late = world.job(lease=third, ranks=1)
    world.go(at(14))
    assert world.lease_of(job_id).id == third
    assert world.get_job(job_id).state is JobState.RUNNING
    assert world.get_job(late).reason_code == "lease_busy"  # its slots are taken


def test_a_job_starts_in_the_grace_of_a_lease_that_goes_on_52(world: World) -> None:
    node_id = world.node()
    first, second = world.book(node_id, at(11), 1), world.book(node_id, at(12), 1)
    world.go(at(11))
    job_id = world.job(lease=first)
    assert world.go(at(11, 57)) == [job_id]
    assert world.lease_of(job_id).id == first
    world.go(at(12))
    assert world.lease_of(job_id).id == second


def test_an_idle_lease_goes_on_if_its_node_is_clean_and_else_ends_as_any_52(world: World) -> None:
    node_id = world.node()
    first, second = world.book(node_id, at(11), 1), world.book(node_id, at(12), 1)
    world.go(at(11))
    world.go(at(11, 59), clean=False)
    world.go(at(12), clean=False)
    assert world.get_lease(first).state is LeaseState.ENDING
    assert world.get_lease(second).state is LeaseState.BOOKED
    world.go(at(12, 0, 5))
    assert world.get_lease(first).state is LeaseState.ENDED
    assert world.get_lease(second).state is LeaseState.ACTIVE


def test_on_a_node_that_is_drained_nothing_goes_on_52(world: World) -> None:
    node_id, first, second, job_id = running(world)
    with world.database.write() as session:
        session.get_one(Node, node_id).state = NodeState.DRAINING
    assert deadlines(world, node_id).stop_in_s == timedelta(minutes=55).total_seconds()
    world.go(at(11, 55))
    assert world.get_job(job_id).state is JobState.STOPPING
    world.exits(job_id, Outcome.LEASE_ENDED)
    world.go(at(12))
    assert world.get_lease(first).state is LeaseState.ENDED
    assert world.get_lease(second).state is LeaseState.BOOKED


def test_after_an_outage_over_the_hour_the_job_is_in_the_second_lease_52(world: World) -> None:
    node_id, first, second, job_id = running(world)
    world.go(at(12, 40), report=False)  # nobody has decided, and nothing was heard since 11:00
    assert world.get_lease(second).state is LeaseState.ACTIVE
    assert world.get_job(job_id).state is JobState.RUNNING
    assert [part.lease_id for part in world.parts(job_id)] == [second]
    assert world.get_lease(first).state is LeaseState.ENDED
    with world.database.read() as session:
        assert session.scalars(select(AttemptPart.node_id)).all() == [node_id]


@dataclass(frozen=True)
class Row:
    """As much of a lease as matters here."""

    id: str
    hold_start: datetime
    hold_end: datetime
    user_id: str = "ada"
    node_id: str = "n"
    kind: LeaseKind = LeaseKind.BOOKED
    state: LeaseState = LeaseState.BOOKED
    num_slots: int | None = None


@pytest.mark.parametrize(
    "other",
    [
        Row("other", at(12), at(13), user_id="bob"),
        Row("other", at(12), at(13), node_id="m"),
        Row("other", at(13), at(14)),
        Row("other", at(12), at(13), state=LeaseState.CANCELLED),
        Row("other", at(12), at(13), kind=LeaseKind.WALK_IN, state=LeaseState.ACTIVE),
    ],
    ids=["another person", "another node", "an hour between", "cancelled", "a walk-in"],
)
def test_only_ones_own_booked_lease_that_touches_follows_52(other: Row) -> None:
    first = Row("first", at(11), at(12), state=LeaseState.ACTIVE)
    assert followers([other, first]) == {}
    after = Row("after", at(12), at(13))
    assert followers([first, after]) == {"first": after}
    assert last_of(first, followers([first, after])) is after
    assert followers([Row("w", at(11, 3), at(12), kind=LeaseKind.WALK_IN), after]) == {}


def test_of_two_leases_beside_each_other_one_goes_on_and_the_other_ends(world: World) -> None:
    first, second = (Row(name, at(11), at(12), state=LeaseState.ACTIVE) for name in ("a", "b"))
    after, more = Row("c", at(12), at(13)), Row("d", at(12), at(13))
    assert followers([second, after, first]) == {"a": after}
    assert followers([more, first, after, second]) == {"a": after, "b": more}
    node = world.node(class_name="cpu8")
    ids = [world.book(node, at(11), 1, num_slots=2) for _ in range(2)]
    world.book(node, at(12), 1, num_slots=2)
    jobs = [world.job(lease=lease_id, wall="9h") for lease_id in ids]
    assert set(world.go(at(11))) == set(jobs)
    for job_id in jobs:
        world.runs(job_id)
    world.go(at(11, 55))
    assert [world.get_job(job_id).state for job_id in jobs] == [JobState.RUNNING, JobState.STOPPING]
    with world.database.read() as session:
        until = {
            order.job_id: order.deadlines.stop_in_s
            for order in orders_for(session, node, [], quota=Quota(1, 1), now=world.now).attempts
        }
    assert until[jobs[0]] > 3000 > until[jobs[1]]
