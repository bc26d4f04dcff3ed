"""Pieces of output that arrive together: one transaction, and each its own answer."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update

from api.nodes import log_pieces
from api.nodes.log_pieces import SentPiece, append_together
from api.records import log_store
from api.records.log_store import LogFilter
from core.base.errors import ServiceError
from core.base.secret_text import digest
from core.states import AttemptState
from core.tables.jobs import Attempt, Job
from core.wire.messages import LogBatch
from tests.api.conftest import World
from tests.api.running_jobs import running_job


def sent(
    world: World,
    job_id: str,
    first_byte: int,
    content: str,
    *,
    size: int | None = None,
    epoch: int = 1,
    rank: int = 0,
    stream: str = "stdout",
    token: str = "box",
) -> SentPiece:
    message = LogBatch(
        job_id=job_id,
        epoch=epoch,
        rank=rank,
        stream=stream,
        first_byte=first_byte,
        size=len(content.encode()) if size is None else size,
        content=content,
    )
    return SentPiece(digest(world.tokens.get(token, token)), message)


def told(answers: Any) -> list[int | str]:
    return [one.code if isinstance(one, ServiceError) else one.next_byte for one in answers]


def stored(world: World, job_id: str) -> list[tuple[int, str, int, str]]:
    with world.database.read() as session:
        page = log_store.tail(session, job_id, 1000, wanted=LogFilter())
    return [(line.rank, line.stream, line.line, line.text) for line in page.lines]


def test_each_of_a_group_has_its_own_answer(world: World) -> None:
    job_id, other_id = running_job(world, num_slots=1), running_job(world, num_slots=1)
    group = [
        sent(world, job_id, 0, "one\ntw"),
        sent(world, job_id, 6, "o\nthree\n"),  # goes on with what this group has begun
        sent(world, job_id, 0, "one\ntw"),  # sent twice at once
        sent(world, job_id, 8, "three\nfour\n"),  # overlapping
        sent(world, job_id, 8, "�\n", size=99),  # overlapping, and changed by decoding
        sent(world, job_id, 500, "far\n"),  # a gap
        sent(world, job_id, 0, "warn\n", stream="stderr"),
        sent(world, job_id, 0, "second\n", rank=1),
        sent(world, job_id, 19, "x\n", epoch=7),
        sent(world, "job_none", 0, "x\n"),
        sent(world, other_id, 0, "other\n"),
        sent(world, job_id, 19, "x\n", token="ann"),  # a person's
        sent(world, job_id, 19, "x\n", token="ty_nobody"),
        sent(world, job_id, 19, "five\n"),
    ]
    no, who = "not_found", "unauthenticated"
    answers = world.process.transact(append_together, group)
    assert told(answers) == [6, 14, 14, 19, 19, 19, 5, 7, no, no, 6, who, who, 24]
    of_first = [(0, "stdout", n, text) for n, text in enumerate(("one", "two", "three", "four"))]
    assert sorted(stored(world, job_id)) == sorted(
        [*of_first, (0, "stdout", 4, "five"), (0, "stderr", 0, "warn"), (1, "stdout", 0, "second")]
    )
    assert stored(world, other_id) == [(0, "stdout", 0, "other")]
    assert told(world.process.transact(append_together, group[:2])) == [24, 24]


def test_an_abandoned_attempt_is_refused_alone(world: World) -> None:
    job_id, other_id = running_job(world, num_slots=1), running_job(world, num_slots=1)
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(epoch=2))
        session.execute(
            update(Attempt)
            .where(Attempt.job_id == job_id)
            .values(state=AttemptState.EXITED, outcome="node_lost")
        )
    group = [sent(world, job_id, 0, "late\n"), sent(world, other_id, 0, "x\n")]
    assert told(world.process.transact(append_together, group)) == ["stale_epoch", 2]
    assert stored(world, job_id) == []


def test_a_group_that_fails_is_written_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = running_job(world, num_slots=1), running_job(world, num_slots=1)
    with world.database.read() as session:
        broken = session.scalars(select(Attempt.id).where(Attempt.job_id == first)).one()
    real = log_store.append

    def failing(session: Any, pieces: Any, **named: Any) -> None:
        real(session, pieces, **named)
        if any(piece.attempt_id == broken for piece in pieces):
            raise RuntimeError("as a broken constraint would")

    monkeypatch.setattr(log_store, "append", failing)
    group = [sent(world, job_id, 0, "text\n") for job_id in (first, second)]

    async def story() -> list[Any]:
        taken = (log_pieces.take(world.process, piece) for piece in group)
        return await asyncio.gather(*taken, return_exceptions=True)

    outcomes = asyncio.run(story())
    assert [getattr(one, "next_byte", type(one).__name__) for one in outcomes] == [
        "RuntimeError",
        5,
    ]
    assert stored(world, first) == []
    assert stored(world, second) == [(0, "stdout", 0, "text")]
