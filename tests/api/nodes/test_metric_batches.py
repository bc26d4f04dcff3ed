"""Batches of metrics that arrive together: one transaction, and each its own answer."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from api.nodes import metric_batches
from api.nodes.metric_batches import SentBatch, append_together
from api.records import metric_store
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.base.secret_text import digest
from core.process import read_only
from core.states import AttemptState, JobState
from core.tables.jobs import Attempt, Job
from core.tables.kinds import TokenKind
from core.tables.people import Token
from core.tables.telemetry import MetricChunk
from core.wire.messages import MetricsBatch
from tests.api.conftest import World, client
from tests.api.running_jobs import running_job


def lines_of(numbers: range) -> list[dict[str, Any]]:
    return [{"step": n, "loss": float(n)} for n in numbers]


def sent(
    world: World, job_id: str, numbers: range, *, epoch: int = 1, rank: int = 0, token: str = "box"
) -> SentBatch:
    message = MetricsBatch(
        job_id=job_id, epoch=epoch, rank=rank, first_line=numbers.start, lines=lines_of(numbers)
    )
    batch = metric_store.read_batch(message.lines, message.first_line)
    return SentBatch(digest(world.tokens.get(token, token)), message, batch)


def told(answers: Any) -> list[int | str]:
    return [one.code if isinstance(one, ServiceError) else one.ack.next_line for one in answers]


def stored_lines(world: World, job_id: str, rank: int = 0) -> list[int]:
    with world.database.read() as session:
        attempt_id = session.scalars(select(Attempt.id).where(Attempt.job_id == job_id)).one()
        found = metric_store.lines_between(session, attempt_id, rank=rank, start=0, end=10_000)
    return [int(line["line"] or 0) for line in found]


def test_each_of_a_group_has_its_own_answer(world: World) -> None:
    job_id, other_id = running_job(world, num_slots=1), running_job(world, num_slots=1)
    group = [
        sent(world, job_id, range(0, 4)),
        sent(world, job_id, range(4, 6)),
        sent(world, job_id, range(0, 4)),  # sent twice at once
        sent(world, job_id, range(5, 9)),  # overlapping
        sent(world, job_id, range(20, 22)),  # a gap
        sent(world, job_id, range(0, 3), rank=1),
        sent(world, job_id, range(9, 12), epoch=7),
        sent(world, "job_none", range(0, 1)),
        sent(world, other_id, range(0, 5)),
        sent(world, job_id, range(9, 10), token="ann"),  # a person's
        sent(world, job_id, range(9, 10), token="ty_nobody"),
        sent(world, job_id, range(9, 10)),
    ]
    answers = world.process.transact(append_together, group)
    no, who = "not_found", "unauthenticated"
    assert told(answers) == [4, 6, 6, 9, 9, 3, no, no, 5, who, who, 10]
    assert stored_lines(world, job_id) == list(range(10))
    assert stored_lines(world, job_id, rank=1) == [0, 1, 2]
    assert stored_lines(world, other_id) == [0, 1, 2, 3, 4]
    with world.database.read() as session:
        jobs = session.execute(select(Job.state, Job.last_step, Job.last_loss).order_by(Job.id))
        assert [tuple(row) for row in jobs] == [
            (JobState.RUNNING, 9, 9.0),
            (JobState.RUNNING, 4, 4.0),
        ]
    assert told(world.process.transact(append_together, group[:2])) == [10, 10]
    assert stored_lines(world, job_id) == list(range(10))


def test_an_abandoned_attempt_is_refused_alone(world: World) -> None:
    job_id, other_id = running_job(world, num_slots=1), running_job(world, num_slots=1)
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(epoch=2))
        session.execute(
            update(Attempt)
            .where(Attempt.job_id == job_id)
            .values(state=AttemptState.EXITED, outcome="node_lost")
        )
    group = [sent(world, job_id, range(0, 2)), sent(world, other_id, range(0, 2))]
    assert told(world.process.transact(append_together, group)) == ["stale_epoch", 2]
    assert stored_lines(world, job_id) == []


def test_a_token_that_was_revoked_a_moment_ago_stores_nothing(world: World) -> None:
    job_id = running_job(world, num_slots=1)
    batch = sent(world, job_id, range(0, 2))
    with world.database.write() as session:
        of_nodes = Token.kind == TokenKind.NODE
        session.execute(update(Token).where(of_nodes).values(revoked_at=utc_now()))
    assert told(world.process.transact(append_together, [batch])) == ["unauthenticated"]
    assert stored_lines(world, job_id) == []


def test_a_group_that_fails_is_written_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = running_job(world, num_slots=1), running_job(world, num_slots=1)
    job_ids = [first, first, second]
    real = metric_store.insert_rows

    def failing(session: Any, rows: Any) -> None:
        real(session, rows)
        if any(row["rank"] == 13 for row in rows):
            raise RuntimeError("as a broken constraint would")

    monkeypatch.setattr(metric_store, "insert_rows", failing)
    group = [
        sent(world, job_id, range(0, 2), rank=rank)
        for job_id, rank in zip(job_ids, (0, 13, 0), strict=True)
    ]

    async def story() -> list[Any]:
        taken = (metric_batches.take(world.process, batch) for batch in group)
        return await asyncio.gather(*taken, return_exceptions=True)

    outcomes = asyncio.run(story())
    told = [getattr(one, "next_line", type(one).__name__) for one in outcomes]
    assert told == [2, "RuntimeError", 2]
    ranks = zip(job_ids, (0, 13, 0), strict=True)
    assert [len(stored_lines(world, one, rank)) for one, rank in ranks] == [2, 0, 2]


@pytest.mark.race
def test_ranks_that_send_at_once_and_twice_are_stored_once(world: World) -> None:
    job_id = running_job(world, num_slots=1)
    local = threading.local()

    def send(number: int) -> int:
        rank, first = number % 8, 3 * (number // 16)
        if not hasattr(local, "node"):
            local.node = client(world.app, world.tokens["box"])
        body = {"job_id": job_id, "epoch": 1, "rank": rank, "first_line": first}
        answer = local.node.post(
            "/v1/node/metrics", json={**body, "lines": lines_of(range(first, first + 3))}
        )
        assert answer.status_code == 200
        return int(answer.json()["next_line"])

    for start in range(0, 160, 16):  # each batch of 8 ranks twice
        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(send, range(start, start + 16))) == {3 * (start // 16) + 3}
    for rank in range(8):
        assert stored_lines(world, job_id, rank) == list(range(30))
    with world.database.read() as session:
        assert session.scalar(select(func.sum(MetricChunk.count))) == 8 * 30


def test_while_nothing_may_be_changed_nodes_are_told_to_come_again(world: World) -> None:
    job_id = running_job(world, num_slots=1)
    with world.database.write() as session:
        read_only.begin(session, "A backup.", now=utc_now(), lasts=timedelta(minutes=5))
    body = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": 0, "lines": [{"step": 1}]}
    answer = world.node.post("/v1/node/metrics", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "read_only")


@pytest.mark.parametrize(
    ("headers", "changes", "status"),
    [
        ({}, {}, 200),
        ({}, {"job_id": "job_none"}, 404),
        ({}, {"epoch": 3}, 404),
        ({}, {"lines": [{"loss": 1.0}]}, 422),
        ({}, {"lines": [{"step": 1, "a b": 1.0}]}, 422),
        ({}, {"rank": -1}, 422),
        ({}, {"color": "red"}, 422),
        ({"Authorization": "Bearer ty_wrong"}, {}, 401),
        ({"Authorization": "Basic abc"}, {}, 401),
        ({"Authorization": "Bearer ty_wrong"}, {"lines": [{"loss": 1.0}]}, 401),
    ],
)
def test_the_short_way_and_the_thorough_one_answer_the_same(
    world: World, headers: dict[str, str], changes: dict[str, Any], status: int
) -> None:
    body = {"job_id": running_job(world, num_slots=1), "epoch": 1, "rank": 0, "first_line": 0}
    content = json.dumps({**body, "lines": lines_of(range(2)), **changes})
    answers = [
        world.node.post(
            "/v1/node/metrics", content=content, headers={"Content-Type": kind, **headers}
        )
        for kind in ("application/json", "application/json; charset=utf-8")
    ]
    assert [answer.status_code for answer in answers] == [status, status]
    assert answers[0].json() == answers[1].json()
