"""Jobs on several nodes, and several jobs on one: who gets which slots, all or nothing."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from core.database.database import Database
from core.jobs import attempts
from core.jobs.gang_exit import PartEnd
from core.states import AttemptState, JobState, LeaseState, Outcome, Phase
from core.tables.jobs import Attempt, AttemptPart, Job
from core.tables.leases import Lease
from core.wire.messages import (
    ExitRecord,
)
from tests.scheduler.world import World, at


@pytest.fixture
def world(database: Database) -> World:
    return World(database, at(10, 57))


def two_nodes(world: World) -> tuple[str, str]:
    return world.node("north-01"), world.node("north-02")


def end_part(world: World, job_id: str, position: int, outcome: Outcome, guilt: int | None) -> None:
    """One node reports its end."""
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        attempt = attempts.live_attempt(session, job)
        assert attempt is not None
        part = attempts.parts_of(session, attempt)[position]
        record = ExitRecord(
            job_id=job_id,
            epoch=attempt.epoch,
            boot_id="boot-1",
            outcome=outcome,
            reason=f"Part {position}: {outcome}.",
            guilt=guilt,
            duration_s=5.0,
        )
        end = PartEnd(record)
        assert attempts.end_part(session, job, attempt, part, end, now=world.now, actor="node")
        part.files_kept = True


def test_a_job_on_two_nodes_takes_both_in_one_go(world: World) -> None:
    nodes = two_nodes(world)
    job_id = world.job(nodes=2)
    assert world.cycle() == [job_id]
    parts = world.parts(job_id)
    assert [part.node_id for part in parts] == list(nodes)
    assert [part.slots for part in parts] == [[0, 1], [0, 1]]
    leases = [world.get_lease(part.lease_id) for part in parts]
    assert {(lease.state, lease.hold_end) for lease in leases} == {(LeaseState.ACTIVE, at(12))}
    attempt = world.attempt(job_id)
    assert attempt.rendezvous is not None
    assert 15_000 <= attempt.rendezvous["port"] < 32_768
    assert len(attempt.rendezvous["key"]) == 64
    assert world.bells.nodes == ["north-01", "north-02"]


def test_with_one_of_two_nodes_taken_a_gang_holds_none(world: World) -> None:
    two_nodes(world)
    other = world.job(user="bob")
    world.cycle()
    job_id = world.job(nodes=2)
    assert world.cycle() == []
    with world.database.read() as session:
        assert len(session.scalars(select(Lease)).all()) == 1
    assert "north-01 and north-02" in world.get_job(job_id).reason
    world.runs(other)
    world.exits(other)
    assert world.cycle() == [job_id]


def test_one_that_fails_stops_the_others_and_is_blamed(world: World) -> None:
    nodes = two_nodes(world)
    job_id = world.job(nodes=2)
    world.cycle()
    world.runs(job_id)
    end_part(world, job_id, 1, Outcome.KILLED, guilt=0)
    assert world.get_job(job_id).state is JobState.STOPPING
    assert world.attempt(job_id).state is AttemptState.STOPPING
    world.now += timedelta(seconds=4)
    world.report()
    world.cycle()  # the node whose part has ended is free at once
    states = [world.get_lease(part.lease_id).state for part in world.parts(job_id)]
    assert states == [LeaseState.ACTIVE, LeaseState.ENDED]
    end_part(world, job_id, 0, Outcome.USER_ERROR, guilt=3)
    job = world.get_job(job_id)
    assert (job.state, job.infrastructure_failures) == (JobState.QUEUED, 1)
    assert world.attempt(job_id).outcome is Outcome.KILLED
    assert "Part 1" in job.reason
    world.now += timedelta(seconds=6)
    world.report()
    assert world.cycle() == [job_id]
    assert {part.node_id for part in world.parts(job_id)} == set(nodes)


def test_a_node_that_restarts_ends_its_part_and_the_others_are_stopped(world: World) -> None:
    _, second = two_nodes(world)
    job_id = world.job(nodes=2)
    world.cycle()
    world.runs(job_id)
    world.now += timedelta(seconds=3)
    world.report(second, boot_id="boot-2")
    world.cycle()
    assert world.get_job(job_id).state is JobState.STOPPING
    assert [part.ended_at is None for part in world.parts(job_id)] == [True, False]
    end_part(world, job_id, 0, Outcome.USER_ERROR, guilt=3)
    assert world.attempt(job_id).outcome is Outcome.NODE_LOST
    assert "north-02 was restarted" in world.get_job(job_id).reason


def test_a_silent_node_is_waited_for(world: World) -> None:
    first, _ = two_nodes(world)
    job_id = world.job(nodes=2, wall="20min")
    world.cycle()
    world.runs(job_id)
    end_part(world, job_id, 0, Outcome.USER_ERROR, guilt=3)
    world.now += timedelta(minutes=12)  # past the verdicts' rest after a mass silence
    world.report(first)
    world.cycle()
    assert world.get_job(job_id).state is JobState.STOPPING
    world.now = at(12, 1, 1)
    world.report(first)
    world.cycle()
    assert world.attempt(job_id).outcome is Outcome.NODE_LOST


def test_a_node_that_does_not_start_its_ranks_frees_all(world: World) -> None:
    first, _ = two_nodes(world)
    job_id = world.job(nodes=2)
    world.cycle()
    with world.database.write() as session:
        part = session.get_one(AttemptPart, (world.attempt(job_id).id, 0))
        part.phase = Phase.READY
    world.now += timedelta(seconds=121)
    world.report(first)
    world.cycle()
    attempt = world.attempt(job_id)
    assert (attempt.outcome, "north-02" in attempt.reason) == (Outcome.START_FAILED, True)
    assert all(part.ended_at is not None for part in world.parts(job_id))
    assert world.get_job(job_id).state is JobState.QUEUED


def test_one_that_fetches_is_waited_for_as_long_as_it_is_heard(world: World) -> None:
    two_nodes(world)
    job_id = world.job(nodes=2)
    world.cycle()
    with world.database.write() as session:
        for part, phase in zip(
            session.scalars(select(AttemptPart).order_by(AttemptPart.position)),
            (Phase.READY, Phase.PREPARING),
            strict=True,
        ):
            part.phase = phase
    world.now += timedelta(seconds=600)
    world.report()
    world.cycle()
    assert world.attempt(job_id).outcome is None


def test_a_gang_runs_in_leases_that_overlap(world: World) -> None:
    nodes = two_nodes(world)
    leases = [world.book(node_id, at(11), 2) for node_id in nodes]
    job_id = world.job(nodes=2)
    with world.database.write() as session:
        job = session.get_one(Job, job_id)
        job.spec = {**job.spec, "leases": leases}
        job.lease_id = leases[0]
    assert world.cycle() == []
    assert world.get_job(job_id).reason_code == "lease_not_begun"
    world.now = at(11)
    world.report()
    assert world.cycle() == [job_id]
    assert [part.lease_id for part in world.parts(job_id)] == leases


def test_jobs_of_one_user_run_beside_each_other(world: World) -> None:
    node_id = world.node(class_name="cpu8")
    lease = world.book(node_id, at(10), 2)
    world.report()
    jobs = [world.job(ranks=ranks, lease=lease) for ranks in (4, 2, 4, 2)]
    assert world.cycle() == [jobs[0], jobs[1], jobs[3]]
    assert [world.parts(jobs[n])[0].slots for n in (0, 1, 3)] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    waiting = world.get_job(jobs[2])
    assert waiting.reason_code == "lease_busy"
    world.runs(jobs[0])
    world.now += timedelta(seconds=30)
    world.exits(jobs[0])
    assert world.cycle() == [jobs[2]]
    assert world.parts(jobs[2])[0].slots == [0, 1, 2, 3]


def test_a_walk_in_is_joined_by_its_owner_alone_and_only_where_nobody_waits(world: World) -> None:
    world.node(class_name="cpu8")
    first = world.job(ranks=2, wall="30min")
    world.cycle()
    joins = world.job(ranks=2, wall="40min")
    others = world.job(ranks=2, wall="5min", user="bob")
    assert world.cycle() == [joins]
    assert world.lease_of(joins).id == world.lease_of(first).id
    assert world.get_job(others).predicted_start == at(11, 38)  # 10:57 + 40 min + cleaning
    longer = world.job(ranks=2, wall="45min")  # it would keep bob waiting
    within = world.job(ranks=2, wall="20min")
    assert world.cycle() == [within]
    assert world.get_job(longer).state is JobState.QUEUED
    with world.database.read() as session:
        live = session.scalars(select(Attempt).where(Attempt.state != AttemptState.EXITED)).all()
    assert len({attempt.lease_id for attempt in live}) == 1
