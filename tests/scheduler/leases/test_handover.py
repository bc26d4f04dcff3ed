"""Leases from begin to end: a node changes hands only clean, and who waits for it reads why."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from core.database.database import Database
from core.jobs.attempts import conclude, live_attempt
from core.spec.spec import WorkbenchJobSpec
from core.spec.workbench import plan_workbench
from core.states import JobState, LeaseState, NodeState, Outcome
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node
from core.transitions import advance
from scheduler.leases import handover
from tests.scheduler.world import CPU2, World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


def hold_of(world: World, lease_id: str) -> Occupancy:
    with world.database.read() as session:
        return session.query(Occupancy).filter_by(lease_id=lease_id).one()


def set_state(world: World, node_id: str, state: NodeState, reason: str = "") -> None:
    with world.database.write() as session:
        node = session.get_one(Node, node_id)
        node.state, node.reason = state, reason


def test_a_walk_in_shrinks_to_the_moment_its_node_is_verified_clean(world: World) -> None:
    world.node()
    job_id = world.job(wall="3h")
    world.cycle()
    world.runs(job_id)
    world.now = at(11, 10)
    world.exits(job_id, clean=False)
    world.cycle()
    lease = world.lease_of(job_id)
    assert lease.state is LeaseState.ACTIVE
    world.now = at(11, 10, 6)
    world.report()
    world.cycle()
    lease = world.lease_of(job_id)
    assert lease.state is LeaseState.ENDED
    assert lease.hold_end == at(15)  # what was sold stays written
    assert hold_of(world, lease.id).hold_end == at(11, 10, 6)
    assert list(world.events(lease.id)) == ["active", "ending", "ended"]


def test_a_clean_word_from_before_the_exit_does_not_count(world: World) -> None:
    """The scheduler gave an attempt up; the node last said `clean` while it still ran it."""
    node_id = world.node()
    job_id = world.job()
    world.cycle()
    world.runs(job_id)
    world.report()
    world.now += timedelta(seconds=2)
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        attempt = live_attempt(session, job)
        assert attempt is not None
        conclude(
            session,
            job,
            attempt,
            Outcome.NODE_LOST,
            message="Given up.",
            now=world.now,
            actor="admin",
        )
    lease_id = world.lease_of(job_id).id
    assert world.cycle(after_s=10) == []
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE
    world.report(node_id)
    assert world.cycle() == [job_id]
    assert world.get_lease(lease_id).state is LeaseState.ENDED


def test_back_to_back_leases_never_overlap_on_a_slow_node(world: World) -> None:
    node_id = world.node()
    first = world.book(node_id, at(11), 1, user="ada")
    second = world.book(node_id, at(12), 1, user="bob")
    job_id, next_job = world.job(lease=first, wall="3h"), world.job(lease=second, user="bob")
    world.now = at(11)
    world.report()
    assert world.cycle() == [job_id]
    world.runs(job_id)
    world.now = at(11, 55)
    world.report()
    world.cycle()
    world.now = at(12)
    world.report()  # it still saves
    assert world.cycle() == []
    assert world.get_lease(second).state is LeaseState.BOOKED
    assert world.get_lease(second).reason == (
        "Begins as soon as possible. Other jobs are still leaving north-01."
    )
    assert "is free and clean" in world.get_job(next_job).reason
    world.now = at(12, 0, 9)
    world.exits(job_id, Outcome.LEASE_ENDED)
    assert world.cycle() == [next_job]
    assert world.get_lease(first).state is LeaseState.ENDED
    lease = world.get_lease(second)
    assert lease.state is LeaseState.ACTIVE
    assert lease.reason == "north-01 is yours until 12:55 UTC."


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        (NodeState.DRAINING, "New disk.", "north-01 is being drained (New disk)."),
        (NodeState.QUARANTINED, "", "north-01 is quarantined."),
        (NodeState.READY, "", "north-01 has not been heard from since 10:57 UTC."),
    ],
)
def test_a_lease_whose_node_is_not_ready_says_so_and_is_given_back_at_its_end(
    world: World, state: NodeState, reason: str, told: str
) -> None:
    node_id = world.node(clean=False)
    lease_id = world.book(node_id, at(11), 1)
    job_id = world.job(lease=lease_id)
    set_state(world, node_id, state, reason)
    world.now = at(11, 1)
    world.cycle()
    lease = world.get_lease(lease_id)
    assert lease.state is LeaseState.BOOKED
    assert lease.reason == f"Begins as soon as possible. {told}"
    assert "north-01" in world.get_job(job_id).reason
    world.now = at(12)
    world.cycle()
    lease = world.get_lease(lease_id)
    assert lease.state is LeaseState.CANCELLED
    assert lease.reason.startswith("north-01 was not ready at any time during it")
    assert not hold_of(world, lease_id).live
    world.cycle()
    assert world.get_job(job_id).reason.startswith("Its lease has ended. ")


def test_a_lease_begins_late_when_its_node_comes_back_in_its_hours(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 2)
    world.now = at(11, 20)
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.BOOKED
    world.report()
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ACTIVE


def test_a_workbench_is_over_with_a_lease_that_never_began_and_does_not_walk_in(
    world: World,
) -> None:
    node_id = world.node(clean=False)
    lease_id = world.book(node_id, at(11), 1)
    terms = {"name": "bench", "resources": {"wall_time": "24h"}, "lease": lease_id}
    spec = WorkbenchJobSpec.model_validate({**terms, "workbench": {"kind": "terminal"}})
    planned = plan_workbench(nodes=1, ranks_per_node=1, hardware=CPU2)
    documents = {"spec": spec.model_dump(mode="json"), "plan": planned.model_dump(mode="json")}
    job_id = world.job(ranks=1, lease=lease_id, **documents)
    world.now = at(11, 1)
    world.cycle()
    assert world.get_job(job_id).state is JobState.QUEUED
    world.report(node_id)
    world.now = at(12)
    world.cycle()
    world.report(node_id)
    assert world.cycle() == []
    job = world.get_job(job_id)
    assert (job.state, job.reason_code) == (JobState.CANCELLED, "lease_ends")
    assert "Its lease is over" in job.reason


def test_a_job_is_not_started_in_the_last_minute_of_its_lease(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(11), 1)
    world.now = at(11, 54, 30)
    world.report()
    world.cycle()
    job_id = world.job(lease=lease_id)
    assert world.cycle() == []
    assert world.get_job(job_id).reason_code == "lease_ends"
    world.now = at(11, 55)
    world.report()
    assert world.cycle() == [job_id]  # on a walk-in, as its lease is over
    assert world.lease_of(job_id).kind is LeaseKind.WALK_IN


def test_jobs_in_a_lease_that_is_given_back_are_asked_to_stop(world: World) -> None:
    node_id = world.node()
    lease_id = world.book(node_id, at(10), 4)
    world.cycle(after_s=5)
    job_id = world.job(lease=lease_id, wall="3h")
    assert world.cycle() == [job_id]
    world.runs(job_id)
    with world.database.write() as session:
        advance(
            session,
            session.get_one(Lease, lease_id),
            LeaseState.ENDING,
            now=world.now,
            reason_code="released",
            message="Given back.",
            actor="user_ada",
        )
    world.bells.nodes.clear()
    world.cycle()
    assert world.get_job(job_id).state is JobState.STOPPING
    assert world.bells.nodes == ["north-01"]
    world.exits(job_id, Outcome.LEASE_ENDED)
    world.cycle()
    assert world.get_lease(lease_id).state is LeaseState.ENDED
    assert hold_of(world, lease_id).hold_end == world.now


def test_one_move_that_the_database_refuses_does_not_hold_up_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [world.node(f"n-{number}") for number in range(3)]
    booked = [world.book(node_id, at(11), 1) for node_id in nodes]
    world.now = at(11)
    world.report()
    carry_out = handover.carry_out

    def one_fails(session: Session, move: handover.Move, now: datetime, holder: str) -> list[str]:
        if isinstance(move, handover.Begin) and move.lease.id == booked[0]:
            raise OperationalError("UPDATE leases", {}, Exception("deadlock detected"))
        return carry_out(session, move, now, holder)

    with monkeypatch.context() as patch:
        patch.setattr(handover, "carry_out", one_fails)
        world.cycle()
    states = [world.get_lease(lease_id).state for lease_id in booked]
    assert states == [LeaseState.BOOKED, LeaseState.ACTIVE, LeaseState.ACTIVE]
    world.cycle()
    assert world.get_lease(booked[0]).state is LeaseState.ACTIVE
