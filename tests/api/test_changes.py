"""/v1/changes/stream: a word for each list, and another one when the list reads differently."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select

from api.watching.hub import EVERY_JOB
from api.watching.lists import ListName, Lists
from core.clock import utc_now
from core.policy.grid import hour_ceiling
from core.states import JobState
from core.tables.jobs import Job
from core.tables.nodes import Node
from tests.api.conftest import World
from tests.api.shapes import job_spec

DEADLINE_S = 20


def changed(world: World, before: dict[ListName, str]) -> set[str]:
    """The lists whose words are others now."""
    now = Lists(world.database).words()
    return {name for name, word in now.items() if word != before[name]}


def test_what_is_written_changes_the_words_of_the_lists_that_show_it(world: World) -> None:
    lists = Lists(world.database)
    before = lists.words()
    assert changed(world, before) == set()
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    assert "jobs" in changed(world, before)

    before = Lists(world.database).words()
    with world.database.write() as session:  # as the scheduler tells why it waits: without an event
        job = session.get_one(Job, job_id)
        assert job.state is JobState.QUEUED
        job.reason = "Starts when a node is free."
    assert changed(world, before) == {"jobs"}

    before = Lists(world.database).words()
    with world.database.write() as session:
        node = session.scalars(select(Node)).one()
        node.last_seen_at = utc_now()
    assert changed(world, before) == {"nodes"}

    before = Lists(world.database).words()
    start = hour_ceiling(utc_now()) + timedelta(hours=3)
    block = {"node": "box", "start": start.isoformat(), "hours": 1}
    lease = world.ann.post("/v1/leases", json=block)
    assert lease.status_code == 201, lease.text
    assert {"leases", "nodes"} <= changed(world, before)

    before = Lists(world.database).words()
    assert world.ann.delete(f"/v1/leases/{lease.json()['id']}").status_code == 204
    assert "leases" in changed(world, before)


def test_everybody_s_words_are_read_once_a_second(world: World) -> None:
    at = 10.0
    lists = Lists(world.database, clock=lambda: at)
    before = lists.words()
    assert world.ann.post("/v1/jobs", json=job_spec()).status_code == 201
    assert lists.words() == before
    at = 11.0
    assert lists.words() != before


def test_a_page_hears_of_its_lists_as_soon_as_this_process_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.watching.hub.DOCUMENT_REST_S", 0.0)
    monkeypatch.setattr("api.watching.hub.DOCUMENT_POLL_S", 2.0 * DEADLINE_S)  # it must be woken
    hub = world.process.hub

    class Number:
        is_final = False
        said = 0

        def model_dump_json(self) -> str:
            return str(self.said)

    number = Number()

    async def scene() -> list[bytes]:
        hub.start()
        told = []
        async with asyncio.timeout(DEADLINE_S):
            async for piece in hub.stream_document("changes", "jobs", [EVERY_JOB], lambda: number):
                told.append(piece)
                if len(told) == 2:
                    number.said = 1
                    hub.wake_soon(())  # a lease was booked, say
                if len(told) == 3:
                    break
        await hub.close()
        return told

    pieces = asyncio.run(scene())
    assert pieces[1:] == [
        b"event: changes\ndata: 0\n\n",
        b"event: changes\ndata: 1\n\n",
    ]


def test_a_list_that_is_none_is_refused(world: World) -> None:
    assert world.ann.get("/v1/changes/stream?list=users").status_code == 422
    assert world.ann.get("/v1/changes/stream").status_code == 422
    assert world.nobody.get("/v1/changes/stream?list=jobs").status_code == 401
