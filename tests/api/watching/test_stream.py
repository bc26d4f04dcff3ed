"""Live streams: everything once, also across breaks, with Redis or without."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import redis
from sqlalchemy.orm import Session

from api.watching import arrivals, feed, news, waiting_jobs
from api.watching.hub import Hub
from api.watching.news import News
from core.base.reasons import NamedCode
from core.process.settings import ApiSettings
from core.transitions import Explanation, explain
from core.wire.doorbell import LIVE
from tests.api.conftest import World, running_world
from tests.api.running_jobs import running_job
from tests.api.shapes import exit_record, free, heartbeat, job_spec, place
from tests.api.watching.hubs import hub_of
from tests.one_database import quick_on_postgresql

DEADLINE_S = 30


@dataclass(frozen=True)
class Told:
    """One server-sent event."""

    event: str
    data: Any
    id: str


class Viewer:
    """Reads a stream until it has seen enough."""

    def __init__(self, hub: Hub, job_id: str, last_id: str = "") -> None:
        self.hub, self.job_id, self.last_id = hub, job_id, last_id
        self.told: list[Told] = []

    async def watch(self, enough: Callable[["Viewer"], bool]) -> "Viewer":
        """Connect, read until `enough`, hang up."""
        stream = self.hub.stream(self.job_id, self.last_id)
        try:
            async with asyncio.timeout(DEADLINE_S):
                async for payload in stream:
                    self._take(payload)
                    if enough(self):
                        break
        finally:
            await stream.aclose()
        return self

    def _take(self, payload: bytes) -> None:
        for block in payload.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            self.last_id = fields.get("id", self.last_id)
            if "event" in fields:
                told = Told(fields["event"], json.loads(fields["data"]), self.last_id)
                self.told.append(told)

    @property
    def metric_lines(self) -> list[int]:
        return [
            line["line"]
            for told in self.told
            if told.event == "metrics"
            for line in told.data["lines"]
        ]

    @property
    def log_texts(self) -> list[str]:
        return [
            line["text"] for told in self.told if told.event == "log" for line in told.data["lines"]
        ]

    @property
    def event_ids(self) -> list[int]:
        return [told.data["id"] for told in self.told if told.event == "event"]

    @property
    def has_ended(self) -> bool:
        return bool(self.told) and self.told[-1].event == "end"


def send(world: World, job_id: str, start: int, count: int) -> None:
    """Metrics lines and log lines of the same numbers."""
    about = {"job_id": job_id, "epoch": 1, "rank": 0}
    lines = [{"step": n, "loss": 1 / (n + 1)} for n in range(start, start + count)]
    metrics = {**about, "first_line": start, "lines": lines}
    assert world.node.post("/v1/node/metrics", json=metrics).status_code == 200
    text = "".join(f"{n:04}\n" for n in range(start, start + count))
    logs = {**about, "stream": "stdout", "first_byte": 5 * start, "size": 5 * count}
    assert world.node.post("/v1/node/logs", json={**logs, "content": text}).status_code == 200


def finish(world: World, job_id: str) -> None:
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": exit_record(job_id)}
    world.node.post("/v1/node/heartbeat", json=heartbeat({**seen, "kept": True}))


def test_a_viewer_sees_everything_once_and_the_end(world: World) -> None:
    job_id = running_job(world)
    send(world, job_id, 0, 10)

    async def scene() -> Viewer:
        hub = world.process.service(Hub)
        viewer = Viewer(hub, job_id)
        watching = asyncio.create_task(viewer.watch(lambda v: v.has_ended))
        while len(viewer.metric_lines) < 10:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(send, world, job_id, 10, 5)
        while len(viewer.metric_lines) < 15:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(finish, world, job_id)
        await watching
        assert hub.num_viewers == 0
        return viewer

    viewer = asyncio.run(scene())
    assert viewer.metric_lines == list(range(15))
    assert viewer.log_texts == [f"{n:04}" for n in range(15)]
    assert viewer.event_ids == sorted(set(viewer.event_ids))
    assert viewer.told[0].event == "job"
    assert viewer.told[-1].data["state"] == "succeeded"
    stored = world.ann.get(f"/v1/jobs/{job_id}/events").json()["data"]
    assert viewer.event_ids == [event["id"] for event in stored]


def test_a_viewer_who_comes_back_misses_nothing_and_gets_nothing_twice(world: World) -> None:
    job_id = running_job(world)
    send(world, job_id, 0, 10)

    async def scene() -> list[Viewer]:
        hub = world.process.service(Hub)
        steady = Viewer(hub, job_id)
        watching = asyncio.create_task(steady.watch(lambda v: v.has_ended))
        parts = [await Viewer(hub, job_id).watch(lambda v: len(v.metric_lines) >= 10)]
        for start in range(10, 60, 10):
            await asyncio.to_thread(send, world, job_id, start, 10)  # while nobody of them watches
            back = Viewer(hub, job_id, parts[-1].last_id)
            parts.append(await back.watch(lambda v: len(v.metric_lines) >= 1))
        await asyncio.to_thread(finish, world, job_id)
        last = Viewer(hub, job_id, parts[-1].last_id)
        parts.append(await last.watch(lambda v: v.has_ended))
        await watching
        return [steady, *parts]

    steady, *parts = asyncio.run(scene())
    assert steady.metric_lines == list(range(60))
    assert [line for part in parts for line in part.metric_lines] == list(range(60))
    assert [text for part in parts for text in part.log_texts] == steady.log_texts
    assert [number for part in parts for number in part.event_ids] == steady.event_ids


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8, 13])
def test_every_position_is_one_to_go_on_from(world: World, cut: int) -> None:
    """Even one in the middle of a batch, and after the rows behind it were merged."""
    job_id = running_job(world)
    for start in range(0, 20, 5):
        send(world, job_id, start, 5)

    async def scene() -> tuple[Viewer, Viewer]:
        hub = world.process.service(Hub)
        first = await Viewer(hub, job_id).watch(lambda v: bool(v.log_texts) and len(v.told) > 5)
        await asyncio.to_thread(finish, world, job_id)
        place = first.told[min(cut, len(first.told) - 1)]
        first.told = first.told[: first.told.index(place) + 1]
        rest = await Viewer(hub, job_id, place.id).watch(lambda v: v.has_ended)
        return first, rest

    first, rest = asyncio.run(scene())
    assert first.metric_lines + rest.metric_lines == list(range(20))
    assert first.log_texts + rest.log_texts == [f"{n:04}" for n in range(20)]
    ids = first.event_ids + rest.event_ids
    assert ids == sorted(set(ids))


def test_a_position_that_makes_no_sense_starts_from_the_beginning(world: World) -> None:
    job_id = running_job(world)
    send(world, job_id, 0, 3)
    finish(world, job_id)

    async def scene(last_id: str) -> Viewer:
        hub = world.process.service(Hub)
        return await Viewer(hub, job_id, last_id).watch(lambda v: v.has_ended)

    for last_id in ("nonsense", "1~~", "9~9~9~9"):
        assert asyncio.run(scene(last_id)).metric_lines == [0, 1, 2], last_id


def test_a_job_that_only_changes_its_reason_is_told(world: World) -> None:
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])

    def change() -> None:
        with world.database.write() as session:
            explain(session, [Explanation(job_id, 0, NamedCode("busy"), "Node is busy.")])

    async def scene() -> Viewer:
        viewer = Viewer(world.process.service(Hub), job_id)
        watching = asyncio.create_task(
            viewer.watch(
                lambda v: bool(v.told) and v.told[-1].data.get("reason") == "Node is busy."
            )
        )
        while not viewer.event_ids:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(change)
        return await watching

    assert asyncio.run(scene()).told[-1].event == "job"


class Readings:
    """Counts what feeds ask the database for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in ("first_news", "first_position", "read_news"):
            monkeypatch.setattr(feed, name, partial(self._count, name, getattr(feed, name)))

    def _count(self, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.counts[name] += 1
        return real(*args, **named)


@quick_on_postgresql
def test_a_job_that_waits_is_read_again_only_when_it_has_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_jobs, "POLL_S", 0.05)
    readings = Readings(monkeypatch)
    hub = hub_of(world)
    job_ids = [str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"]) for _ in range(3)]

    def change() -> None:
        with world.database.write() as session:
            explain(session, [Explanation(job_ids[0], 0, NamedCode("busy"), "Node is busy.")])

    async def scene() -> None:
        viewers = [Viewer(hub, job_id) for job_id in job_ids]
        watching = [asyncio.create_task(one.watch(lambda _: False)) for one in viewers]
        while not all(one.event_ids for one in viewers):
            await asyncio.sleep(0.01)
        before = readings.counts["read_news"]
        await asyncio.sleep(1.5)  # a poll of a feed, and thirty of those that wait
        assert readings.counts["read_news"] == before
        await asyncio.to_thread(change)
        while viewers[0].told[-1].data.get("reason") != "Node is busy.":
            await asyncio.sleep(0.01)
        assert readings.counts["read_news"] == before + 1
        await asyncio.to_thread(place, world.database, job_ids[1])
        while viewers[1].told[-1].data.get("state") != "starting":
            await asyncio.sleep(0.01)
        before = readings.counts["read_news"]
        await asyncio.sleep(1.5)
        assert readings.counts["read_news"] > before  # it has an attempt that may report
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))
    free(world.database)


def test_nothing_is_lost_of_a_job_that_runs_and_ends_while_it_is_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    real = news.marks_of

    def then_run(session: Any, job_ids: Any) -> Any:
        found = real(session, job_ids)
        monkeypatch.setattr(news, "marks_of", real)
        place(world.database, job_id)
        send(world, job_id, 0, 10)
        finish(world, job_id)
        return found

    monkeypatch.setattr(news, "marks_of", then_run)
    viewer = Viewer(
        hub_of(world),
        job_id,
    )
    asyncio.run(viewer.watch(lambda _: False))
    assert viewer.metric_lines == list(range(10))
    assert viewer.log_texts == [f"{n:04}" for n in range(10)]
    assert viewer.told[-1].event == "end"
    free(world.database)


@quick_on_postgresql
def test_jobs_that_wait_are_opened_together_and_tell_what_each_tells_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_ids = [str(world.ann.post("/v1/jobs", json=job_spec()).json()["id"]) for _ in range(12)]
    groups: list[int] = []
    real = arrivals.news_of_untried

    def counted(session: Session, wanted: Collection[str]) -> dict[str, News]:
        groups.append(len(wanted))
        return real(session, wanted)

    monkeypatch.setattr(arrivals, "news_of_untried", counted)

    async def watch() -> list[Viewer]:
        hub = hub_of(world)
        viewers = [Viewer(hub, job_id) for job_id in job_ids]
        return await asyncio.gather(*(one.watch(lambda v: bool(v.event_ids)) for one in viewers))

    together = asyncio.run(watch())
    assert sum(groups) == len(job_ids)
    assert len(groups) <= 3  # the first may come alone
    monkeypatch.setattr(news, "EVENTS_A_READ", 1)  # more events than a reading takes
    monkeypatch.setattr(news, "FIRST_EVENTS", news.FIRST_EVENTS.limit(1))
    alone = asyncio.run(watch())
    assert [one.told for one in alone] == [one.told for one in together]
    assert [one.last_id for one in alone] == [one.last_id for one in together]


def test_a_crowd_that_comes_together_is_read_for_a_few_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "POLL_S", 3600.0)
    job_id = running_job(world)
    send(world, job_id, 0, 50)
    readings = Readings(monkeypatch)
    hub = hub_of(world)

    async def watch(last_id: str = "") -> list[Viewer]:
        viewers = [Viewer(hub, job_id, last_id) for _ in range(100)]
        enough = 50 if not last_id else 20
        return await asyncio.gather(
            *(one.watch(lambda v: len(v.metric_lines) >= enough) for one in viewers)
        )

    new = asyncio.run(watch())
    assert all(one.metric_lines == list(range(50)) for one in new)
    assert all(one.log_texts == new[0].log_texts and len(one.log_texts) == 50 for one in new)
    assert readings.counts["first_news"] == 1
    assert readings.counts["first_position"] <= 1
    assert readings.counts["read_news"] <= 3

    send(world, job_id, 50, 20)
    readings.counts.clear()
    back = asyncio.run(watch(new[0].last_id))
    assert all(one.metric_lines == list(range(50, 70)) for one in back)
    assert all(one.log_texts == [f"{n:04}" for n in range(50, 70)] for one in back)
    assert readings.counts["read_news"] <= 4
    free(world.database)


def test_another_process_wakes_a_viewer_through_redis(
    settings: ApiSettings, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "POLL_S", 3600.0)  # so that only the doorbell can do it
    with running_world(settings.model_copy(update={"redis_url": valkey_url})) as world:
        job_id = running_job(world)
        other = hub_of(world)  # of another API process

        async def scene() -> Viewer:
            other.start()
            viewer = Viewer(other, job_id)
            watching = asyncio.create_task(viewer.watch(lambda v: len(v.metric_lines) >= 3))
            while not viewer.event_ids:
                await asyncio.sleep(0.01)
            sent = 0
            while not watching.done():  # it may not listen yet: the first bells may be lost
                await asyncio.to_thread(send, world, job_id, sent, 1)
                sent += 1
                await asyncio.wait([watching], timeout=0.2)
            await other.close()
            return await watching

        lines = asyncio.run(scene()).metric_lines
        assert lines == list(range(len(lines)))
        free(world.database)


def test_a_process_that_nobody_watches_listens_to_no_doorbell(
    settings: ApiSettings, valkey_url: str
) -> None:
    bell = f"{LIVE}job_nobody_watches"
    with (
        running_world(settings.model_copy(update={"redis_url": valkey_url})) as world,
        redis.Redis.from_url(valkey_url) as valkey,
    ):
        job_id = running_job(world)
        hub = hub_of(world)

        def hears() -> bool:
            return bool(valkey.publish(bell, ""))

        async def scene() -> None:
            hub.start()
            await asyncio.sleep(0)
            assert (hub.num_viewers, hears()) == (0, False)
            stream = hub.stream(job_id, "")
            await anext(stream)
            while not hears():
                await asyncio.sleep(0.01)
            assert hub.num_viewers == 1
            await stream.aclose()
            assert hub.num_viewers == 0
            while hears():  # the first that it hears in vain
                await asyncio.sleep(0.01)
            await hub.close()

        asyncio.run(scene())
        free(world.database)


def test_browsers_come_back_to_a_server_that_was_away_at_moments_of_their_own(
    world: World,
) -> None:
    async def first_words() -> bytes:
        stream = world.process.service(Hub).stream_document("changes", "jobs", [], lambda: None)
        try:
            return await anext(stream)
        finally:
            await stream.aclose()

    async def scene() -> set[bytes]:
        return {await first_words() for _ in range(20)}

    words = asyncio.run(scene())
    assert len(words) > 1
    assert all(500 <= int(one.removeprefix(b"retry: ")) <= 2500 for one in words)


def test_closing_the_hub_ends_all_streams(world: World) -> None:
    job_id = running_job(world)

    async def scene() -> None:
        hub = hub_of(world)
        hub.start()
        watching = [
            asyncio.create_task(Viewer(hub, job_id).watch(lambda _: False)) for _ in range(20)
        ]
        while hub.num_viewers < 20:
            await asyncio.sleep(0.01)
        hub.close_soon()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*watching)
        await hub.close()
        assert hub.num_viewers == 0

    asyncio.run(scene())


def test_the_stream_speaks_http(world: World) -> None:
    job_id = running_job(world)
    send(world, job_id, 0, 3)
    finish(world, job_id)
    with world.ann.stream("GET", f"/v1/jobs/{job_id}/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    assert text.startswith("retry: ")
    assert text.rstrip().split("\n\n")[-1].startswith("event: end\n")


@dataclass
class Paper:
    """A document that says what is written on it."""

    text: str = "one"
    is_final: bool = False

    def model_dump_json(self) -> str:
        return json.dumps(self.text)


def test_a_document_is_sent_whenever_it_reads_differently_and_at_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.watching.hub.DOCUMENT_REST_S", 0.0)
    monkeypatch.setattr("api.watching.hub.DOCUMENT_POLL_S", 2.0 * DEADLINE_S)  # it must be woken
    paper = Paper()

    async def scene() -> list[bytes]:
        hub = hub_of(world)
        hub.start()
        told = []
        async with asyncio.timeout(DEADLINE_S):
            async for piece in hub.stream_document(
                "paper", "one", ["job_a", "job_b"], lambda: paper
            ):
                told.append(piece)
                assert hub.num_viewers == (0 if len(told) == 1 else 1)
                match len(told):
                    case 2:
                        paper.text = "two"
                        hub.wake_soon({"job_b"})
                    case 3:
                        hub.wake_soon({"job_a"})  # and nothing is new
                    case 4:
                        paper.is_final = True
                        hub.wake_soon({"job_a", "job_c"})
        assert hub.num_viewers == 0
        await hub.close()
        return told

    _, one, two, ping, end = asyncio.run(scene())
    assert one == b'event: paper\ndata: "one"\n\n'
    assert two == b'event: paper\ndata: "two"\n\n'
    assert ping.startswith(b":")
    assert end == b'event: end\ndata: "two"\n\n'


def test_closing_the_hub_ends_the_streams_of_documents(world: World) -> None:
    async def scene() -> None:
        hub = hub_of(world)
        hub.start()
        async with asyncio.timeout(DEADLINE_S):
            async for piece in hub.stream_document("paper", "one", ["job_a"], Paper):
                if piece.startswith(b"event: "):
                    hub.close_soon()
        await hub.close()

    asyncio.run(scene())


def test_a_document_is_read_once_for_all_who_watch_it(world: World) -> None:
    num_reads = 0

    def read() -> Paper:
        nonlocal num_reads
        num_reads += 1
        return Paper(is_final=True)

    async def watch(hub: Hub, name: str) -> list[bytes]:
        return [piece async for piece in hub.stream_document("paper", name, ["job_a"], read)]

    async def scene() -> None:
        hub = hub_of(world)
        hub.start()
        async with asyncio.timeout(DEADLINE_S):
            told = await asyncio.gather(*(watch(hub, "one") for _ in range(50)))
            assert {pieces[-1] for pieces in told} == {b'event: end\ndata: "one"\n\n'}
            assert num_reads == 1
            await watch(hub, "two")
            assert num_reads == 2
        await hub.close()

    asyncio.run(scene())
