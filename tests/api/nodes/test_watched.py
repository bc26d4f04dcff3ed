"""Nodes bring the news of watched jobs at once, and those of others every 20 seconds."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from api.nodes import watched as rooms
from api.nodes.watched import UNWATCHED_PAUSE_S, Watched
from api.web.bells import Bells, Ringer
from core.process.settings import ApiSettings
from core.wire.doorbell import Doorbell
from core.wire.messages import SHIP_AFTER
from tests.api.conftest import World, running_world
from tests.api.running_jobs import running_job
from tests.api.shapes import free

DEADLINE_S = 20.0
NOWHERE = "unix:///nonexistent/valkey.sock"


def send_line(world: World, job_id: str, number: int) -> httpx2.Response:
    batch = {"job_id": job_id, "epoch": 1, "rank": 0, "first_line": number}
    answer = world.node.post("/v1/node/metrics", json={**batch, "lines": [{"step": number}]})
    assert answer.status_code == 200, answer.text
    return answer


def send_byte(world: World, job_id: str, at: int, *, kind: str) -> httpx2.Response:
    batch: dict[str, Any] = {"job_id": job_id, "epoch": 1, "rank": 0, "stream": "stdout"}
    batch |= {"first_byte": at, "size": 1, "content": "x"}
    answer = world.node.post("/v1/node/logs", json=batch, headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text
    return answer


class Rung(Ringer):
    """Keeps the names of the nodes that are rung."""

    def __init__(self) -> None:
        super().__init__(Doorbell(NOWHERE))
        self.nodes = set[str]()

    def ring(self, bells: Bells) -> None:
        self.nodes |= bells.nodes


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("page", ["", "/metrics", "/logs"])
def test_whoever_has_read_a_job_or_its_curves_or_its_output_is_a_viewer_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    # The long way answers as the short one does.
    plain, with_charset = "application/json", "application/json; charset=utf-8"
    job_id = running_job(world)
    assert send_line(world, job_id, 0).headers[SHIP_AFTER] == "20"
    assert send_byte(world, job_id, 0, kind=plain).headers[SHIP_AFTER] == "20"
    assert send_byte(world, job_id, 1, kind=with_charset).headers[SHIP_AFTER] == "20"
    world.bob.get(f"/v1/jobs/{job_id}{page}")  # refused: it is ann's
    assert SHIP_AFTER in send_line(world, job_id, 1).headers
    assert world.ann.get(f"/v1/jobs/{job_id}{page}").status_code == 200
    assert SHIP_AFTER not in send_line(world, job_id, 2).headers
    assert SHIP_AFTER not in send_byte(world, job_id, 2, kind=with_charset).headers
    monkeypatch.setattr(rooms, "WATCHED_S", -1.0)
    assert world.ann.get(f"/v1/jobs/{job_id}{page}").status_code == 200  # long ago
    assert SHIP_AFTER in send_line(world, job_id, 3).headers


def test_another_process_hears_of_a_viewer_and_of_the_end_and_the_node_is_rung_once(
    settings: ApiSettings, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "WATCHED_S", 1.0)
    monkeypatch.setattr(rooms, "TELL_EVERY_S", 0.2)
    monkeypatch.setattr(rooms, "HEARD_FOR_S", 0.1)
    with running_world(settings.model_copy(update={"redis_url": valkey_url})) as world:
        job_id, waiting = running_job(world), "job_that_waits"
        rung = Rung()

        async def scene() -> None:
            here = Watched(world.database, valkey_url, rung)
            there = Watched(world.database, valkey_url, Rung())
            here.start()
            there.start()
            assert there.pause_s(job_id) == UNWATCHED_PAUSE_S
            with here.watching([job_id, waiting]):
                assert here.pause_s(job_id) == 0.0
                await wait_until(lambda: there.pause_s(job_id) == 0.0)
                await wait_until(lambda: rung.nodes == {"box"})
                rung.nodes.clear()
                await asyncio.sleep(2 * rooms.WATCHED_S)  # it is told again before its end
                assert there.pause_s(job_id) == 0.0
                assert not rung.nodes
                with here.watching([job_id]):
                    pass
                assert here.pause_s(job_id) == 0.0
            await wait_until(lambda: there.pause_s(job_id) == UNWATCHED_PAUSE_S)
            await wait_until(lambda: here.pause_s(job_id) == UNWATCHED_PAUSE_S)
            await here.close()
            await there.close()

        asyncio.run(scene())
        free(world.database)


def test_with_redis_away_each_process_knows_of_its_own_viewers(world: World) -> None:
    async def scene() -> None:
        rung = Rung()
        watched = Watched(world.database, NOWHERE, rung)
        watched.start()
        with watched.watching(["job_here"]):
            await wait_until(lambda: watched.pause_s("job_there") > 0.0 and watched.is_away)
            assert watched.pause_s("job_here") == 0.0
        assert watched.pause_s("job_here") == UNWATCHED_PAUSE_S
        await watched.close()

    asyncio.run(scene())
