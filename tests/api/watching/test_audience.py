"""A stream ends with the right to watch, and nobody watches without end; over real sockets."""

import re
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import httpx2
import pytest
import uvicorn

from api.watching import audience, hub
from api.watching.audience import Audience
from api.watching.hub import Hub
from core.tables.kinds import Role
from tests.api.conftest import World, add_person
from tests.api.shapes import job_spec
from tests.running import own_port, wait_for

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PATH = "/v1/changes/stream?list=jobs"
PASSWORD = "a sentence nobody else has"


@pytest.fixture
def url(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of the world's application, served."""
    monkeypatch.setattr(audience, "LOOK_S", 0.1)
    port = own_port()
    server = uvicorn.Server(uvicorn.Config(world.app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, what="the server")
    yield f"http://127.0.0.1:{port}"
    world.process.service(Hub).close_soon()
    server.should_exit = True
    thread.join()


def watching(url: str, token: str, stack: ExitStack) -> Generator[str]:
    """The lines of an open stream that has begun."""
    headers = {"Authorization": f"Bearer {token}"}
    client = stack.enter_context(httpx2.Client(base_url=url, headers=headers, timeout=30))
    answer = stack.enter_context(client.stream("GET", PATH))
    assert answer.status_code == 200
    lines = answer.iter_lines()
    stack.callback(lines.close)  # and so it is not collected, which would hang up
    assert next(lines).startswith("retry")
    return lines


def test_a_stream_ends_soon_after_the_right_to_watch(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disable() -> None:
        assert world.admin.patch("/v1/users/dan", json={"disabled": True}).is_success

    def demote() -> None:
        assert world.admin.patch("/v1/users/sue", json={"role": "user"}).is_success

    def revoke() -> None:
        mine = world.ann.get("/v1/tokens").json()["data"]
        (token,) = [one["id"] for one in mine if one["name"] == "watch"]
        assert world.ann.delete(f"/v1/tokens/{token}").is_success

    def sign_out() -> None:
        headers = {"Authorization": f"Bearer {session}"}
        assert httpx2.delete(f"{url}/v1/sessions/current", headers=headers).is_success

    dan = add_person(world.database, "dan", Role.USER)
    sue = add_person(world.database, "sue", Role.STAFF)
    token = world.ann.post("/v1/tokens", json={"name": "watch", "scopes": ["read"]}).json()
    session = add_person(world.database, "eve", Role.USER)
    with ExitStack() as stack:
        stays = watching(url, world.tokens["bob"], stack)
        for end, secret in (
            (disable, dan),
            (demote, sue),
            (revoke, token["secret"]),
            (sign_out, session),
        ):
            lines = watching(url, secret, stack)
            end()
            list(lines)  # it ends by itself, and as HTTP says
        monkeypatch.setattr(hub, "PING_S", 0.2)  # from the next news on
        assert world.bob.post("/v1/jobs", json=job_spec()).is_success
        assert any(next(stays).startswith(":") for _ in range(20)), "others watch on"


def test_a_stream_lasts_some_minutes_and_goes_on_elsewhere(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends at another moment, and its connection with it: what comes back may meet another
    process, and is told only what is new."""
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    token = {"Authorization": f"Bearer {world.tokens['ann']}"}

    def watch(wanted: str, **headers: str) -> str:
        """What a stream tells until it ends by itself: of one that is short, longer if need be."""
        for lasts_s in (0.5, 2.0, 8.0, 32.0):
            monkeypatch.setattr(audience, "LASTS_S", (lasts_s, lasts_s * 1.1))
            answer = httpx2.get(
                f"{url}/v1/jobs/{job}/stream", headers={**token, **headers}, timeout=60
            )
            assert answer.headers["connection"] == "close"
            if wanted in answer.text:
                break
        return answer.text

    (*_, last_id) = re.findall(r"^id: (.+)$", watch("event: event"), flags=re.MULTILINE)
    again = watch("event: job", **{"Last-Event-ID": last_id})
    assert "event: job" in again
    assert "event: event" not in again


def test_one_person_watches_forty_things_and_no_more(world: World, url: str) -> None:
    token, headers = world.tokens["ann"], {"Authorization": f"Bearer {world.tokens['ann']}"}
    with ExitStack() as stack:
        for _ in range(audience.MOST_STREAMS - 1):
            watching(url, token, stack)
        with ExitStack() as last:
            watching(url, token, last)
            refused = httpx2.get(url + PATH, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
            assert "40 live streams open" in refused.json()["detail"]
            assert refused.headers["retry-after"]
            watching(url, world.tokens["bob"], last)
        num_left = audience.MOST_STREAMS - 1
        seats = world.process.service(Audience)
        wait_for(lambda: seats.num_seats == num_left, what="the closed streams")
        watching(url, token, stack)
