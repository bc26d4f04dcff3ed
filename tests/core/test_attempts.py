"""Job and attempt never disagree: every outcome, in every state, whatever the owner wants."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.jobs import attempts
from core.jobs.attempts import NodeAssignment
from core.leases import leases
from core.states import (
    JOB_EDGES,
    LIVE_JOB,
    TERMINAL_JOB,
    AttemptState,
    Desired,
    JobState,
    Outcome,
    job_after,
)
from core.tables.files import Checkpoint
from core.tables.jobs import Attempt, Event, Job
from core.tables.kinds import LeaseKind
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.wire.messages import ExitRecord
from tests.core.people import NOW, add_job, add_node, add_user


def assigned(session: Session, **changes: Any) -> tuple[Job, Attempt]:
    """A job that has just been assigned to a node, and its attempt."""
    user_id = add_user(session)
    job = add_job(session, user_id, **changes)
    node = add_node(session)
    lease = leases.take(
        session,
        user_id=user_id,
        node=node,
        kind=LeaseKind.WALK_IN,
        start=NOW,
        end=NOW + timedelta(hours=2),
        grace_s=300,
        now=NOW,
        actor="t",
        message="Walk-in.",
    )
    attempt = attempts.assign(session, job, [NodeAssignment(node, lease)], now=NOW, actor="t")
    assert attempt is not None
    return job, attempt


def bring_to(session: Session, job: Job, attempt: Attempt, state: JobState) -> None:
    if state is JobState.RUNNING:
        attempts.run(session, job, attempt, now=NOW, actor="t")
    if state is JobState.STOPPING:
        attempts.ask_to_stop(session, job, Outcome.PAUSED, now=NOW, message="Stop.", actor="t")
    assert job.state is state


def record(job: Job, outcome: Outcome, *, duration_s: float = 60.0) -> ExitRecord:
    return ExitRecord(
        job_id=job.id,
        epoch=job.epoch,
        boot_id="boot-1",
        outcome=outcome,
        reason="It ended.",
        duration_s=duration_s,
    )


@pytest.mark.parametrize("state", LIVE_JOB)
@pytest.mark.parametrize("outcome", Outcome)
def test_no_outcome_leaves_a_job_alive_without_an_attempt(
    migrated_sqlite_database: Database, outcome: Outcome, state: JobState
) -> None:
    for desired in Desired:
        for failures in (0, 3):
            with migrated_sqlite_database.write() as session:
                job, attempt = assigned(session, desired=desired, infrastructure_failures=failures)
                bring_to(session, job, attempt, state)
                assert attempts.conclude(
                    session,
                    job,
                    attempt,
                    outcome,
                    message="It ended.",
                    now=NOW,
                    actor="t",
                    record=record(job, outcome),
                )
                assert attempt.state is AttemptState.EXITED
                assert attempt.outcome is outcome
                assert job.state is job_after(outcome, desired, failures), (desired, failures)
                assert (job.finished_at is not None) is (job.state in TERMINAL_JOB)
                told = session.scalars(
                    select(Event).where(Event.subject == job.id, Event.kind.in_(JobState))
                ).all()
                for event in told:
                    if event.from_state:
                        assert event.to_state in JOB_EDGES[JobState(event.from_state)]
                session.rollback()


def test_an_attempt_is_concluded_once(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        bring_to(session, job, attempt, JobState.RUNNING)
        fields: dict[str, Any] = {"message": "It ended.", "now": NOW, "actor": "t"}
        assert attempts.conclude(session, job, attempt, Outcome.NODE_LOST, **fields)
        assert job.state is JobState.QUEUED
        assert not attempts.conclude(session, job, attempt, Outcome.SUCCEEDED, **fields)
        assert job.state is JobState.QUEUED
        assert job.infrastructure_failures == 1


def test_an_exit_of_an_older_attempt_leaves_the_job_alone(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        stale = attempt
        job.epoch += 1  # as if another attempt had begun
        session.flush()
        assert attempts.conclude(
            session, job, stale, Outcome.SUCCEEDED, message="Late.", now=NOW, actor="t"
        )
        assert job.state is JobState.STARTING


def test_a_wish_that_came_meanwhile_is_seen(database: Database) -> None:
    """The caller's copy of the job is old; conclude() reads it again under its lock."""
    with database.write() as session:
        job, attempt = assigned(session)
        job_id, attempt_id = job.id, attempt.id
    with database.read() as session:
        stale = session.get_one(Job, job_id)
    with database.write() as session:
        session.get_one(Job, job_id).desired = Desired.CANCEL
    with database.write() as session:
        job = session.merge(stale, load=False)
        attempt = session.get_one(Attempt, attempt_id)
        attempts.conclude(
            session, job, attempt, Outcome.NODE_LOST, message="Lost.", now=NOW, actor="t"
        )
        assert job.state is JobState.CANCELLED


def test_failures_of_the_platform_back_off_and_then_fail(database: Database) -> None:
    waits = []
    with database.write() as session:
        job, attempt = assigned(session)
        for _ in range(3):
            attempts.conclude(
                session, job, attempt, Outcome.START_FAILED, message="No.", now=NOW, actor="t"
            )
            assert job.state is JobState.QUEUED
            assert job.not_before is not None
            waits.append((job.not_before - NOW).total_seconds())
            attempt = _again(session, job, attempt)
        attempts.conclude(
            session, job, attempt, Outcome.START_FAILED, message="No.", now=NOW, actor="t"
        )
        assert waits == [5, 30, 120]
        assert job.state is JobState.FAILED
        assert "failure 4" in job.reason


def test_the_end_of_a_lease_costs_no_budget(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        for number in range(1, 8):
            attempts.conclude(
                session,
                job,
                attempt,
                Outcome.LEASE_ENDED,
                message="The lease ended.",
                now=NOW,
                actor="t",
                record=record(job, Outcome.LEASE_ENDED, duration_s=10),
            )
            assert (job.state, job.interruptions) == (JobState.QUEUED, number)
            assert (job.infrastructure_failures, job.not_before) == (0, None)
            attempt = _again(session, job, attempt)
        assert job.used_s == 70


def test_without_wall_time_left_it_is_not_tried_again(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session, wall_time_s=600, used_s=300)
        attempts.conclude(
            session,
            job,
            attempt,
            Outcome.LEASE_ENDED,
            message="The lease ended.",
            now=NOW,
            actor="t",
            record=record(job, Outcome.LEASE_ENDED, duration_s=300),
        )
        assert (job.state, job.reason_code) == (JobState.FAILED, "time_limit")
        assert "10min" in job.reason
        assert job.finished_at == NOW


def test_a_lost_attempt_is_charged_only_for_what_it_proved(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        bring_to(session, job, attempt, JobState.RUNNING)
        attempt.last_step_at = NOW + timedelta(seconds=90)
        attempts.conclude(
            session,
            job,
            attempt,
            Outcome.NODE_LOST,
            message="Lost.",
            now=NOW + timedelta(hours=1),
            actor="t",
        )
        assert job.used_s == 90


def test_a_new_attempt_goes_on_from_the_furthest_checkpoint(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        for step in (20, 40):
            session.add(
                Checkpoint(
                    id=new_id(IdKind.CHECKPOINT),
                    job_id=job.id,
                    epoch=1,
                    step=step,
                    size=1,
                    files=[],
                    created_at=NOW,
                )
            )
        session.flush()
        attempts.conclude(session, job, attempt, Outcome.KILLED, message="K.", now=NOW, actor="t")
        again = _again(session, job, attempt)
        newest = attempts.newest_checkpoint(session, job.id)
        assert newest is not None
        assert (newest.step, again.resume_checkpoint_id) == (40, newest.id)
        assert "from its checkpoint of step 40" in job.reason


def test_a_job_has_at_most_one_live_attempt(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        ids = {"job_id": job.id, "node_id": attempt.node_id, "lease_id": attempt.lease_id}
    with (
        pytest.raises(IntegrityError, match=r"uq_attempts_live_job|attempts\.job_id"),
        database.write() as session,
    ):
        session.add(
            Attempt(id="att_2", epoch=2, state=AttemptState.ASSIGNED, assigned_at=NOW, **ids)
        )


def test_a_job_that_is_not_queued_gets_no_attempt(database: Database) -> None:
    with database.write() as session:
        job, attempt = assigned(session)
        node = session.get_one(Node, attempt.node_id)
        lease = session.get_one(Lease, attempt.lease_id)
        assert (
            attempts.assign(session, job, [NodeAssignment(node, lease)], now=NOW, actor="t") is None
        )
        assert job.epoch == 1


def _again(session: Session, job: Job, before: Attempt) -> Attempt:
    place = NodeAssignment(
        session.get_one(Node, before.node_id), session.get_one(Lease, before.lease_id), (0,)
    )
    again = attempts.assign(session, job, [place], now=NOW, actor="t")
    assert again is not None
    return again
