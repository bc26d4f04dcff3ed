"""/v1/changes/stream: a word for each list, and another one when the list reads differently."""

import asyncio
import json
from collections.abc import Callable

import pytest
from sqlalchemy import select

from api.watching import lists
from api.watching.lists import ListName, read_words
from core.base.clock import utc_now
from core.states import JobState
from core.tables.jobs import Job
from core.tables.nodes import Node
from tests.api.conftest import World
from tests.api.shapes import job_spec
from tests.api.watching.hubs import hub_of
from tests.api.watching.test_calendar_stream import book, person

DEADLINE_S = 20


def changed(world: World, work: Callable[[], object]) -> set[str]:
    """Whose lists read differently after it: `ann`, `bob`, `staff` (jobs), `nodes`."""

    def words() -> dict[str, str | None]:
        with world.database.read() as session:
            known = read_words(session, utc_now())
        jobs = {name: known.jobs.get(person(world.database, name).id) for name in ("ann", "bob")}
        return {**jobs, "staff": known.all_jobs, "nodes": known.nodes}

    before = words()
    work()
    return {name for name, word in words().items() if word != before[name]}


def test_lists_read_differently_for_those_whose_jobs_or_nodes_have_changed(world: World) -> None:
    def submit() -> str:
        return str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])

    def explain() -> None:  # as the scheduler tells why it waits: without an event
        with world.database.write() as session:
            job = session.scalars(select(Job)).one()
            assert job.state is JobState.QUEUED
            job.reason = "Starts when a node is free."

    def beat() -> None:
        with world.database.write() as session:
            session.scalars(select(Node)).one().last_seen_at = utc_now()

    assert changed(world, lambda: None) == set()
    assert changed(world, submit) == changed(world, explain) == {"ann", "staff"}
    assert changed(world, beat) == {"nodes"}
    assert changed(world, lambda: book(world, 3, who="bob")) == {"bob", "staff"}, (
        "nobody has it yet"
    )
    job_id = world.ann.get("/v1/jobs").json()["data"][0]["id"]
    cancel = lambda: world.ann.post(f"/v1/jobs/{job_id}/cancel")  # noqa: E731
    assert changed(world, cancel) == {"ann", "staff"}

    def come_and_go() -> None:
        world.ann.post(f"/v1/jobs/{submit()}/cancel")

    assert changed(world, come_and_go) == {"ann", "staff"}


def test_a_page_hears_of_its_lists_as_soon_as_this_process_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "REST_S", 0.0)
    monkeypatch.setattr(lists, "POLL_S", 2.0 * DEADLINE_S)  # it must be woken
    hub = hub_of(world)
    people = {name: person(world.database, name) for name in ("ann", "bob", "stefan")}
    told: dict[str, list[str]] = {name: [] for name in people}

    async def watch(name: str) -> None:
        async for piece in hub.stream_lists(people[name], [ListName.JOBS]):
            if piece.startswith(b"event: changes\ndata: "):
                told[name].append(json.loads(piece.split(b"data: ")[1])["words"]["jobs"])

    async def scene() -> None:
        hub.start()
        watching = [asyncio.create_task(watch(name)) for name in people]
        async with asyncio.timeout(DEADLINE_S):
            while not all(told.values()):
                await asyncio.sleep(0.01)
            job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
            hub.wake_soon([job_id], ())
            while len(told["ann"]) < 2 or len(told["stefan"]) < 2:
                await asyncio.sleep(0.01)
        await hub.close()
        await asyncio.gather(*watching)

    asyncio.run(scene())
    assert told["bob"] == [""], "somebody else's job is nothing to him"


def test_a_list_that_is_none_is_refused(world: World) -> None:
    assert world.ann.get("/v1/changes/stream?list=users").status_code == 422
    assert world.ann.get("/v1/changes/stream").status_code == 422
    assert world.nobody.get("/v1/changes/stream?list=jobs").status_code == 401
