"""What matters goes first: no kind of request can take another's places."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.lanes import LIMITS, THREADS, LaneQueue, Lanes, Limit, Turn, kind_of
from api.middleware.prometheus import RequestNumbers
from api.web.credentials import issue_link
from api.web.places import PLACE, LaneKind
from core.base.clock import utc_now
from core.database.database import Database
from core.policy.grid import HOUR, hour_ceiling
from core.process.settings import ApiSettings
from core.tables.kinds import LinkKind, Role
from tests.api.conftest import NOWHERE, add_person, running_world
from tests.api.shapes import INVENTORY, heartbeat
from tests.forked import origin
from tests.running import own_port, wait_for

READERS = 300
HOURS = count(2)  # from now, for one booking each
NO_LIMIT = 60.0


@pytest.mark.parametrize(
    ("method", "path", "priority", "kind"),
    [
        ("GET", "/readyz", "", None),
        ("GET", "/metrics", "", None),
        ("GET", "/calendar", "", None),
        ("POST", "/leases", "", None),
        ("GET", "/static/htmx.js", "u=6", None),
        ("POST", "/v1/node/heartbeat", "", LaneKind.HEARTBEATS),
        ("POST", "/v1/node/metrics", "", LaneKind.TELEMETRY),
        ("POST", "/v1/node/logs", "", LaneKind.TELEMETRY),
        ("PUT", "/v1/node/files/ab", "", LaneKind.NODE_FILES),
        ("POST", "/v1/leases", "", LaneKind.CLICKS),
        ("POST", "/v1/leases/verdict", "", LaneKind.VERDICTS),
        ("POST", "/v1/jobs", "", LaneKind.SUBMISSIONS),
        ("POST", "/v1/jobs/job_1/clone", "", LaneKind.SUBMISSIONS),
        ("POST", "/v1/jobs/job_1/cancel", "", LaneKind.CLICKS),
        ("DELETE", "/v1/leases/lease_1", "u=7", LaneKind.CLICKS),
        ("POST", "/v1/waitlist/wait_1/accept", "", LaneKind.CLICKS),
        ("POST", "/v1/sessions", "", LaneKind.SIGN_INS),
        ("POST", "/v1/invites/accept", "", LaneKind.SIGN_INS),
        ("POST", "/v1/sessions/oidc", "", LaneKind.PROVIDER),
        ("GET", "/v1/sessions/oidc", "", LaneKind.READS),
        ("DELETE", "/v1/sessions/current", "", LaneKind.CLICKS),
        ("GET", "/v1/leases", "", LaneKind.READS),
        ("GET", "/v1/leases", "u=4, i", LaneKind.READS),
        ("GET", "/v1/leases", "u=5", LaneKind.BACKGROUND),
        ("GET", "/v1/leases", "i, u=7", LaneKind.BACKGROUND),
        ("GET", "/v1/leases", "u=77", LaneKind.READS),
        ("POST", "/v1/jobs/plan", "", LaneKind.READS),
        ("GET", "/v1/usage", "", LaneKind.LONG_READS),
        ("GET", "/v1/leases/stream", "", LaneKind.STREAMS),
        ("GET", "/v1/jobs/job_1/stream", "u=6", LaneKind.STREAMS),
        ("POST", "/v1/datasets", "", LaneKind.FILES),
        ("GET", "/v1/datasets", "", LaneKind.READS),
        ("GET", "/v1/jobs/job_1/artifacts/art_1", "", LaneKind.FILES),
        ("GET", "/v1/jobs/job_1/artifacts", "", LaneKind.READS),
    ],
)
def test_a_request_has_the_lane_of_what_it_is_for(
    method: str, path: str, priority: str, kind: LaneKind | None
) -> None:
    assert kind_of(method, path, priority) is kind


def test_the_threads_are_as_many_as_all_lanes_together() -> None:
    assert sum(limit.at_once for limit in LIMITS.values()) < THREADS
    assert set(LIMITS) == set(LaneKind)


class Desk:
    """An application that works on a request until it is told to finish."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.finish = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        self.begun.append(f"{scope['path']} {message['body'].decode()}".strip())
        await self.finish.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Caller:
    """One request, sent to lanes without a network."""

    def __init__(
        self,
        lanes: ASGIApp,
        method: str,
        path: str,
        body: bytes = b"",
        priority: str = "",
        **others: str,
    ) -> None:
        self.answer: dict[str, object] = {}
        self.hang_up = asyncio.Event()
        self._body: list[Message] = [{"type": "http.request", "body": body}]
        headers = [
            (name.encode(), value.encode())
            for name, value in {"priority": priority, **others}.items()
        ]
        scope: Scope = {"type": "http", "method": method, "path": path, "headers": headers}
        self.task = asyncio.create_task(self._ask(lanes, scope))

    async def _ask(self, lanes: ASGIApp, scope: Scope) -> None:
        await lanes(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.answer.update(message)


def sample(numbers: RequestNumbers, name: str, **labels: str) -> float:
    return numbers.registry.get_sample_value(name, labels) or 0.0


async def turns() -> None:
    """Let everything that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def small(**limits: Limit) -> dict[LaneKind, Limit]:
    return LIMITS | {LaneKind(name): limit for name, limit in limits.items()}


def test_a_line_is_bounded_and_first_come_first_served() -> None:
    async def run() -> None:
        desk, numbers = Desk(), RequestNumbers()
        lanes = Lanes(desk, numbers, small(clicks=Limit(1, 2, NO_LIMIT)))
        callers = [Caller(lanes, "POST", "/v1/leases", b"%d" % n) for n in range(4)]
        await turns()
        assert desk.begun == ["/v1/leases 0"]
        assert sample(numbers, "trainyard_lane_waiting", lane="clicks") == 2
        refused = callers[3].answer
        assert refused["status"] == 503
        document = json.loads(str(refused["body"], "utf-8"))  # type: ignore[call-overload]
        assert document["code"] == "busy"
        assert "Nothing was done." in document["detail"]
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert desk.begun == ["/v1/leases 0", "/v1/leases 1", "/v1/leases 2"]
        assert sample(numbers, "trainyard_lane_waiting", lane="clicks") == 0
        last = Caller(lanes, "POST", "/v1/leases", b"4")
        await last.task
        assert last.answer["status"] == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("anns", "bobs"),
    [
        ({"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}),
        ({"cookie": "a=1; trainyard_session=ann"}, {"cookie": "trainyard_session=bob; a=1"}),
        ({"authorization": "Bearer ann"}, {}),
    ],
)
def test_who_asks_for_many_things_waits_with_the_rest_until_others_have_had_a_turn(
    anns: dict[str, str], bobs: dict[str, str]
) -> None:
    async def run() -> None:
        desk = Desk()
        lanes = Lanes(desk, RequestNumbers(), small(clicks=Limit(1, 9, NO_LIMIT)))
        asked = [("a1", anns), ("a2", anns), ("a3", anns), ("b1", bobs), ("a4", anns), ("b2", bobs)]
        callers = [Caller(lanes, "POST", f"/v1/{name}", **own) for name, own in asked]
        await turns()
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert desk.begun == [f"/v1/{name}" for name in ("a1", "a2", "b1", "a3", "b2", "a4")]

    asyncio.run(run())


def test_a_turn_that_is_given_up_delays_nobody() -> None:
    async def run() -> None:
        desk = Desk()
        lanes = Lanes(desk, RequestNumbers(), small(clicks=Limit(1, 9, NO_LIMIT)))
        callers = [
            Caller(lanes, "POST", f"/v1/{name}", authorization=name[0])
            for name in ("a1", "a2", "b1", "b2", "c1")
        ]
        await turns()
        for gone in (2, 4):  # b has another turn, c has none
            callers[gone].hang_up.set()
            await callers[gone].task
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert desk.begun == ["/v1/a1", "/v1/a2", "/v1/b2"]

    asyncio.run(run())


@given(
    steps=st.lists(
        st.one_of(
            st.sampled_from("abc"), st.just("take"), st.tuples(st.just("leave"), st.integers(0, 9))
        ),
        max_size=60,
    )
)
def test_nobody_is_passed_over_and_no_turn_is_lost(
    steps: list[str | tuple[str, int]],
) -> None:
    loop = asyncio.new_event_loop()
    line, waiting = LaneQueue(), list[tuple[str, Turn]]()
    since_anothers: dict[Turn, set[str]] = {}
    for step in steps:
        if isinstance(step, tuple):
            if waiting:
                person, turn = waiting.pop(step[1] % len(waiting))
                assert line.remove(person, turn)
                assert not line.remove(person, turn)
        elif step == "take":
            if waiting:
                taken = line.take()
                [at] = [n for n, (_, turn) in enumerate(waiting) if turn is taken]
                person, _ = waiting.pop(at)
                assert person not in {other for other, _ in waiting[:at]}, "each in their order"
                firsts = {one: turn for one, turn in reversed(waiting)}
                for other, turn in firsts.items():
                    passed = since_anothers.setdefault(turn, set())
                    assert person not in passed, f"{person} twice while {other} waited"
                    if other != person:
                        passed.add(person)
        else:
            waiting.append((step, loop.create_future()))
            line.add(*waiting[-1])
        assert len(line) == len(waiting)
    loop.close()


def test_who_waited_too_long_is_answered_and_not_worked_on() -> None:
    async def run() -> None:
        desk = Desk()
        lanes = Lanes(desk, RequestNumbers(), small(reads=Limit(1, 9, 0.05)))
        first, second = (Caller(lanes, "GET", f"/v1/{name}") for name in ("nodes", "jobs"))
        await second.task
        assert second.answer["status"] == 503
        assert "The request waited" in str(second.answer["body"])
        desk.finish.set()
        await first.task
        assert desk.begun == ["/v1/nodes"]
        third = Caller(lanes, "GET", "/v1/me")
        await third.task
        assert third.answer["status"] == 200

    asyncio.run(run())


def test_who_has_hung_up_while_waiting_is_not_worked_on() -> None:
    async def run() -> None:
        desk, numbers = Desk(), RequestNumbers()
        lanes = Lanes(desk, numbers, small(clicks=Limit(1, 9, NO_LIMIT)))
        callers = [Caller(lanes, "POST", "/v1/leases", b"%d" % n) for n in range(3)]
        await turns()
        callers[1].hang_up.set()
        await callers[1].task
        assert callers[1].answer == {}
        assert sample(numbers, "trainyard_lane_turned_away_total", lane="clicks", why="gone") == 1
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert desk.begun == ["/v1/leases 0", "/v1/leases 2"]

    asyncio.run(run())


def test_a_request_that_is_ended_while_it_waits_keeps_no_place() -> None:
    async def run() -> None:
        desk = Desk()
        lanes = Lanes(desk, RequestNumbers(), small(clicks=Limit(1, 9, NO_LIMIT)))
        callers = [Caller(lanes, "POST", "/v1/leases", b"%d" % n) for n in range(3)]
        await turns()
        desk.finish.set()
        await callers[0].task  # its place is given to the second by now
        callers[1].task.cancel()
        with suppress(asyncio.CancelledError):
            await callers[1].task
        await callers[2].task
        assert callers[2].answer["status"] == 200

    asyncio.run(run())


def test_no_lane_takes_anothers_places_and_refreshes_go_behind_clicks() -> None:
    async def run() -> None:
        desk = Desk()
        one = Limit(1, 0, NO_LIMIT)
        lanes = Lanes(
            desk,
            RequestNumbers(),
            {kind: one for kind in LaneKind} | {LaneKind.CLICKS: Limit(1, 1, NO_LIMIT)},
        )
        asked = [("GET", "/v1/nodes"), ("POST", "/v1/leases"), ("POST", "/v1/node/heartbeat")]
        callers = [Caller(lanes, method, path) for method, path in asked * 2]
        await turns()
        assert desk.begun == [path for _, path in asked]
        statuses = [caller.answer.get("status") for caller in callers]
        assert statuses == [None, None, None, 503, None, 503]  # a second click stands in its line
        refresh = Caller(lanes, "GET", "/v1/nodes")
        await refresh.task
        assert refresh.answer["status"] == 503
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))

    asyncio.run(run())


def test_while_clicks_wait_one_read_is_worked_on_at_once() -> None:
    async def run() -> None:
        desk = Desk()
        limits = small(clicks=Limit(1, 1, NO_LIMIT), reads=Limit(2, 3, NO_LIMIT))
        lanes = Lanes(desk, RequestNumbers(), limits)
        clicks = [Caller(lanes, "POST", "/v1/leases", b"%d" % n) for n in range(2)]
        await turns()
        reads = [Caller(lanes, "GET", "/v1/nodes") for _ in range(3)]
        await turns()
        assert desk.begun == ["/v1/leases 0", "/v1/nodes"]
        clicks[1].hang_up.set()  # no click waits any more: the next that ends lets reads go on
        await clicks[1].task
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in (clicks[0], *reads)))
        assert [caller.answer["status"] for caller in reads] == [200] * 3

    asyncio.run(run())


def test_while_heartbeats_wait_other_lanes_begin_one_at_once() -> None:
    async def run() -> None:
        desk = Desk()
        limits = small(
            heartbeats=Limit(1, 3, NO_LIMIT),
            clicks=Limit(3, 3, NO_LIMIT),
            files=Limit(3, 3, NO_LIMIT),
        )
        lanes = Lanes(desk, RequestNumbers(), limits)
        beats = [Caller(lanes, "POST", "/v1/node/heartbeat") for _ in range(2)]
        await turns()
        clicks = [Caller(lanes, "POST", "/v1/leases", b"%d" % n) for n in range(3)]
        files = [Caller(lanes, "GET", "/v1/jobs/job_1/code") for _ in range(3)]
        await turns()
        curves = [Caller(lanes, "POST", "/v1/node/metrics") for _ in range(3)]
        await turns()
        assert desk.begun == [
            *("/v1/node/heartbeat", "/v1/leases 0"),
            *["/v1/jobs/job_1/code"] * 3,
            *["/v1/node/metrics"] * 3,  # written together: one thread, however many they are
        ]
        beats[0].task.cancel()  # the other one has its place: none waits
        with suppress(asyncio.CancelledError):
            await beats[0].task
        await turns()
        assert desk.begun[-3:] == ["/v1/node/heartbeat", "/v1/leases 1", "/v1/leases 2"]
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in (beats[1], *clicks, *files, *curves)))

    asyncio.run(run())


class Nodes(Desk):
    """Heartbeats, of which those with a body say something new and are taken in whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["body"]:
            await scope[PLACE].take(LaneKind.WHOLE_BEATS)
            self.begun.append("whole")
            await self.finish.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def test_heartbeats_that_say_nothing_new_do_not_wait_behind_the_others() -> None:
    async def run() -> None:
        desk = Nodes()
        limits = small(heartbeats=Limit(1, 9, NO_LIMIT), whole_beats=Limit(2, 3, NO_LIMIT))
        lanes = Lanes(desk, RequestNumbers(), limits)
        whole = [Caller(lanes, "POST", "/v1/node/heartbeat", b"new") for _ in range(6)]
        await turns()
        same = [Caller(lanes, "POST", "/v1/node/heartbeat") for _ in range(5)]
        await asyncio.gather(*(caller.task for caller in same))
        assert [caller.answer["status"] for caller in same] == [200] * 5
        assert desk.begun == ["whole"] * 2
        assert whole[-1].answer["status"] == 503  # its line is full
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in whole))
        assert [caller.answer["status"] for caller in whole] == [200] * 5 + [503]
        again = [Caller(lanes, "POST", "/v1/node/heartbeat", b"new") for _ in range(2)]
        await asyncio.gather(*(caller.task for caller in again))  # no place was lost
        assert [caller.answer["status"] for caller in again] == [200] * 2

    asyncio.run(run())


def test_what_a_page_refreshes_together_is_answered_together() -> None:
    """A calendar reads its owner's leases, jobs and wishes at once: were one of them refused, it
    would ask for all three again."""

    async def run() -> None:
        desk = Desk()
        lanes = Lanes(desk, RequestNumbers())
        asked = ("leases", "jobs", "waitlist", "maintenance")
        callers = [Caller(lanes, "GET", f"/v1/{name}", priority="u=6") for name in asked]
        await turns()
        assert len(desk.begun) == 1
        desk.finish.set()
        await asyncio.gather(*(caller.task for caller in callers))
        assert [caller.answer["status"] for caller in callers] == [200] * 4

    asyncio.run(run())


def test_a_body_that_does_not_come_holds_no_place() -> None:
    async def run() -> None:
        desk = Desk()
        desk.finish.set()
        lanes = Lanes(desk, RequestNumbers(), small(clicks=Limit(1, 0, 0.0)))
        never = asyncio.Event()

        async def receive() -> Message:
            await never.wait()
            raise AssertionError

        async def send(_: Message) -> None:
            raise AssertionError

        scope: Scope = {"type": "http", "method": "POST", "path": "/v1/leases", "headers": []}
        slow = asyncio.create_task(lanes(scope, receive, send))  # type: ignore[arg-type]
        await turns()
        other = Caller(lanes, "POST", "/v1/leases")
        await other.task
        assert other.answer["status"] == 200
        slow.cancel()

    asyncio.run(run())


def test_pages_that_ask_the_api_do_not_wait_for_themselves(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place in every lane, and six people who open a page that asks for several things."""
    for kind in LaneKind:
        monkeypatch.setitem(LIMITS, kind, Limit(1, 100, NO_LIMIT))

    async def open_pages(app: ASGIApp, token: str) -> list[int]:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(
            transport=transport,
            base_url="http://127.0.0.1:8471",
            headers={"Authorization": f"Bearer {token}"},
        ) as browser:
            pages = ("/calendar", "/jobs", "/nodes", "/usage", "/account", "/leases")
            answers = await asyncio.gather(*(browser.get(page) for page in pages))
        return [answer.status_code for answer in answers]

    settings = ApiSettings(
        database_url=sqlite_url, redis_url=NOWHERE, store=tmp_path / "store", logins_per_minute=1000
    )
    with running_world(settings) as world:
        statuses = asyncio.run(
            asyncio.wait_for(open_pages(world.app, world.tokens["ann"]), timeout=NO_LIMIT)
        )
    assert statuses == [200] * 6


@dataclass
class Served:
    """An API process of its own, and who may ask it."""

    port: int
    people: list[str]
    node: str


@pytest.fixture(scope="module")
def served(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lanes")
    path = folder / "trainyard.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    database = Database(f"sqlite:///{path}")
    people = [add_person(database, f"p{number}", Role.USER) for number in range(8)]
    with database.write() as session:
        _, joining = issue_link(
            session,
            kind=LinkKind.ENROL,
            now=utc_now(),
            lifetime=timedelta(minutes=5),
            node_name="box",
        )
    database.close()
    port = own_port()
    with open(folder / "api.log", "wb") as log:
        child = origin().start(
            "tests.api.served",
            environment={
                **os.environ,
                "TRAINYARD_DATABASE_URL": f"sqlite:///{path}",
                "TRAINYARD_REDIS_URL": f"unix://{folder}/nothing.sock?db=0",
                "TRAINYARD_STORE": str(folder / "store"),
                "TRAINYARD_PORT": str(port),
            },
            log=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            with suppress(httpx2.TransportError):
                return httpx2.get(f"{url}/healthz").is_success
            return False

        wait_for(answers, what="the API")
        body = {"token": joining, "inventory": INVENTORY}
        node = httpx2.post(f"{url}/v1/node/enrol", json=body).json()["node_token"]
        yield Served(port, people, node)
    finally:
        child.terminate()
        child.wait(timeout=20)


@dataclass
class Heard:
    """An answer, and how long it took."""

    status: int
    headers: dict[str, str]
    body: bytes
    took_s: float


async def ask(
    served: Served, method: str, path: str, token: str, body: object = None, **headers: str
) -> Heard:
    """One request on a connection of its own; cheaper than a client, of which there are 300."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    content = b"" if body is None else json.dumps(body).encode()
    sent = {
        "Host": f"127.0.0.1:{served.port}",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **headers,
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    first, *told = head.decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in told)}
    return Heard(int(first.split()[1]), fields, rest, time.perf_counter() - began)


Probe = Callable[[], Awaitable[Heard]]


async def median_s(probe: Probe, times: int = 5) -> float:
    """The median of what some answers took, all of them good."""
    heard = [await probe() for _ in range(times)]
    assert all(one.status in (200, 201) for one in heard), heard
    return median(one.took_s for one in heard)


@asynccontextmanager
async def reading(served: Served, **headers: str) -> AsyncIterator[list[Heard]]:
    """300 clients that ask for something slow, again and again, whatever the answer."""
    heard: list[Heard] = []

    async def read(number: int) -> None:
        while True:
            token = served.people[number % len(served.people)]
            heard.append(await ask(served, "GET", "/v1/slow?ms=50", token, **headers))
            await asyncio.sleep(1.0)

    readers = [asyncio.create_task(read(number)) for number in range(READERS)]
    try:
        while not heard:
            await asyncio.sleep(0.01)
        yield heard
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.parametrize("headers", [{"Priority": "u=6"}, {}], ids=["background", "ordinary"])
def test_clicks_nodes_and_health_are_answered_while_300_read(
    served: Served, headers: dict[str, str]
) -> None:
    """A booking, a heartbeat and /readyz wait for nobody who reads. Without lanes they would wait
    for the 15 s that all of these reads take."""

    async def book() -> Heard:
        number = next(HOURS)
        start = hour_ceiling(utc_now()) + number * HOUR
        block = {"nodes": ["box"], "start": start.isoformat(), "hours": 1}
        token = served.people[number % len(served.people)]
        return await ask(served, "POST", "/v1/leases", token, block)

    probes: list[Probe] = [
        lambda: ask(served, "GET", "/readyz", ""),
        lambda: ask(served, "POST", "/v1/node/heartbeat", served.node, heartbeat()),
        book,
    ]

    async def run() -> None:
        assert (await probes[1]()).status == 200  # the node is there
        async with reading(served, **headers) as heard:
            took_s = await asyncio.gather(*(median_s(probe) for probe in probes))
            while len(heard) < READERS // 4 or all(one.status == 503 for one in heard):
                await asyncio.sleep(0.05)  # refusals come first: they wait for nothing
        assert max(took_s) < READERS * 0.05 / 3, took_s
        statuses = Counter(one.status for one in heard)
        assert set(statuses) == {200, 503}
        refused = [one for one in heard if one.status == 503]
        assert all(json.loads(one.body)["code"] == "busy" for one in refused)
        waits = {int(one.headers["retry-after"]) for one in refused}
        assert len(waits) > 2, "everybody would come back at once"
        if headers:
            assert median(one.took_s for one in refused) < READERS * 0.05 / 3

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_page_that_was_closed_while_it_waited_is_not_read_for(served: Served) -> None:
    """The time that the API works is a fraction of what all who hung up had asked for."""

    async def run() -> None:
        askers = [
            asyncio.create_task(ask(served, "GET", "/v1/slow?ms=100", served.people[0]))
            for _ in range(100)
        ]
        await asyncio.sleep(0.5)
        for asker in askers:
            asker.cancel()
        await asyncio.gather(*askers, return_exceptions=True)

    def gone() -> float:
        text = httpx2.get(f"http://127.0.0.1:{served.port}/metrics").text
        sample = re.search(r'turned_away_total\{lane="reads",why="gone"\} (\S+)', text)
        return float(sample[1]) if sample else 0.0

    before = gone()
    asyncio.run(run())
    wait_for(lambda: gone() - before > 30, what="those who hung up")
