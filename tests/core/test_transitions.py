"""advance(): one writer wins, a stale one changes nothing, and every change has its event."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.orm import Session

from core.base.reasons import ReasonCode
from core.database.database import Database
from core.states import JobState, LeaseState, NodeState
from core.tables.jobs import Event, Job
from core.transitions import Explanation, advance, explain, say
from tests.core.people import NOW, add_job, add_node, add_user

pytestmark = pytest.mark.race


def move(session: Session, job: Job, to: JobState, **changes: object) -> bool:
    return advance(
        session, job, to, now=NOW, reason_code="why", message="Because.", actor="me", **changes
    )


def events_of(session: Session, subject: str) -> list[tuple[str | None, str | None]]:
    rows = session.scalars(select(Event).where(Event.subject == subject).order_by(Event.id))
    return [(event.from_state, event.to_state) for event in rows]


def test_an_edge_is_taken_with_its_event_and_its_changes(database: Database) -> None:
    with database.write() as session:
        job = add_job(session, add_user(session))
        assert move(session, job, JobState.STARTING, epoch=1)
        assert (job.state, job.epoch, job.reason, job.reason_code) == (
            JobState.STARTING,
            1,
            "Because.",
            "why",
        )
        job_id = job.id
    with database.read() as session:
        assert session.get_one(Job, job_id).state is JobState.STARTING
        assert events_of(session, job_id) == [(None, "queued"), ("queued", "starting")]
        event = session.scalars(select(Event).order_by(Event.id.desc())).first()
        assert event is not None
        assert (event.actor, event.reason_code, event.message) == ("me", "why", "Because.")


def test_no_edge_no_change_and_no_event(database: Database) -> None:
    with database.write() as session:
        job = add_job(session, add_user(session))
        assert not move(session, job, JobState.SUCCEEDED)
        assert job.state is JobState.QUEUED
        assert job.reason == "Submitted."
        assert len(events_of(session, job.id)) == 1


def test_a_stale_epoch_changes_nothing(database: Database) -> None:
    with database.write() as session:
        job = add_job(session, add_user(session), state=JobState.RUNNING, epoch=1)
        session.flush()
        session.expunge(job)  # as read by somebody who then slept
        other = session.get_one(Job, job.id)
        assert move(session, other, JobState.QUEUED)
        assert move(session, other, JobState.STARTING, epoch=2)
        assert move(session, other, JobState.RUNNING)
        assert not move(session, job, JobState.SUCCEEDED)
        assert session.get_one(Job, job.id).state is JobState.RUNNING


def test_of_many_who_advance_one_job_one_wins(database: Database) -> None:
    with database.write() as session:
        job_id = add_job(session, add_user(session)).id
    gate = threading.Barrier(8)

    def try_it(number: int) -> bool:
        with database.read() as session:
            job = session.get_one(Job, job_id)
        gate.wait(30)
        with database.write() as session:
            return move(session, session.merge(job, load=False), JobState.STARTING, epoch=1)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(try_it, range(8)))
    assert sum(won) == 1
    with database.read() as session:
        assert session.get_one(Job, job_id).epoch == 1
        assert events_of(session, job_id) == [(None, "queued"), ("queued", "starting")]


def test_a_state_that_the_enum_does_not_know_is_refused_by_the_database(
    database: Database,
) -> None:
    with database.write() as session:
        job_id = add_job(session, add_user(session)).id
    with (
        pytest.raises(IntegrityError, match=r"ck_jobs_state|CHECK"),
        database.write() as session,
    ):
        session.connection().exec_driver_sql(f"UPDATE jobs SET state = 'zzz' WHERE id = '{job_id}'")


def test_sentences_are_written_together_and_only_where_they_still_hold(database: Database) -> None:
    soon = NOW + timedelta(minutes=5)
    with database.write() as session:
        owner = add_user(session)
        ids = [add_job(session, owner).id for _ in range(4)]
        paused, moved_on = ids[2:]
        session.execute(update(Job).where(Job.id == paused).values(state=JobState.PAUSED))
        session.execute(update(Job).where(Job.id == moved_on).values(epoch=1))
        told = [
            Explanation(ids[0], 0, ReasonCode.QUEUE, "Waits for two.", soon),
            Explanation(ids[1], 0, ReasonCode.NODE_BUSY, "Waits for a node."),
            Explanation(paused, 0, ReasonCode.QUEUE, "Waits."),
            Explanation(moved_on, 0, ReasonCode.QUEUE, "Waits."),
        ]
        explain(session, told)
        explain(session, [])
        jobs = {job.id: job for job in session.scalars(select(Job))}
        found = [(jobs[id].reason_code, jobs[id].reason, jobs[id].predicted_start) for id in ids]
        assert found[:2] == [
            (ReasonCode.QUEUE, "Waits for two.", soon),
            (ReasonCode.NODE_BUSY, "Waits for a node.", None),
        ]
        assert "Waits." not in [reason for _, reason, _ in found]
        assert events_of(session, ids[0]) == events_of(session, ids[1])


def test_what_is_said_of_a_node_changes_no_state_and_adds_no_event(database: Database) -> None:
    with database.write() as session:
        node = add_node(session)
        assert say(session, node, "Busy.")
        assert not say(session, node, "Busy.")
        assert (node.state, node.reason) == (NodeState.READY, "Busy.")
        assert events_of(session, node.id) == []


def test_a_job_that_is_resumed_joins_the_end_of_the_line(database: Database) -> None:
    later = NOW + timedelta(hours=1)
    with database.write() as session:
        job = add_job(session, add_user(session))
        move(session, job, JobState.PAUSED)
        advance(
            session,
            job,
            JobState.QUEUED,
            now=later,
            reason_code="resumed",
            message="Resumed.",
            actor="me",
        )
        assert job.queued_at == later
        move(session, job, JobState.STARTING, epoch=1)
        move(session, job, JobState.QUEUED)
        assert job.queued_at == later  # the platform queued it again: it keeps its place


def test_every_kind_of_row_has_its_own_edges(database: Database) -> None:
    with database.write() as session:
        node = add_node(session)
        fields = {"now": NOW, "reason_code": "x", "message": "X.", "actor": "me"}
        assert advance(session, node, NodeState.DRAINING, **fields)  # type: ignore[arg-type]
        with pytest.raises(StatementError, match="not a valid NodeState"):
            advance(session, node, LeaseState.ENDED, **fields)  # type: ignore[arg-type]
