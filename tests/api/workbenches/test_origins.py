"""Origins of workbenches: who gets in, and what a program there gets to see and to say."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from websockets.frames import Frame as SocketFrame
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from api.web.auth import COOKIE as SESSION
from api.workbenches import passes
from api.workbenches.origins import COOKIE, domain_flaw
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from core.tables.workbenches import WorkbenchPass
from core.wire.frames import FrameKind, pack, unpack
from tests.api.conftest import NOWHERE, World
from tests.api.shapes import heartbeat, job_spec, place

pytestmark = pytest.mark.db
DOMAIN = "localhost:8471"
SPEC = {"name": "lab", "workbench": {"kind": "jupyter"}, "resources": {"wall_time": "50min"}}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def settings(sqlite_url: str, tmp_path: Path) -> ApiSettings:
    """On one database: what depends on its kind is in test_passes.py."""
    return ApiSettings(database_url=sqlite_url, redis_url=NOWHERE, store=tmp_path / "store")


class Program:
    """The program in a workbench, behind a porter: answers each connection as a test scripts it."""

    def __init__(self, world: World, job: str) -> None:
        self.job, self.origin = job, f"http://{job.removeprefix('job_')}-1.{DOMAIN}"
        self.host = self.origin.removeprefix("http://")
        self.seen: list[bytes] = []
        self.answer: Callable[[bytes], bytes] = lambda _: OK
        self.sockets: dict[int, ServerProtocol] = {}
        self.heads: dict[int, bytes] = {}
        self.ready, self.stirred = threading.Event(), threading.Event()
        self._client = world.node
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self.ready.wait(10)

    def _serve(self) -> None:
        with self._client.websocket_connect(f"/v1/node/workbenches/{self.job}/1/tunnel") as api:
            self._api = api
            api.send_bytes(api.receive_bytes())  # HELLO
            self.ready.set()
            try:
                while True:
                    for frame in self._obey(api.receive_bytes()):
                        api.send_bytes(frame)
            except WebSocketDisconnect:
                return

    def close(self) -> None:
        """Break its node's connection."""
        self._api.close()
        self._thread.join(10)

    def _obey(self, message: bytes) -> Iterator[bytes]:
        kind, stream, content = unpack(message)
        if kind is FrameKind.STIRRED:
            self.stirred.set()
        elif kind is FrameKind.OPEN:
            assert json.loads(content) == {"server": True}
            self.heads[stream] = b""
            yield pack(FrameKind.OPENED, stream, b"{}")
        elif kind is FrameKind.DATA and stream in self.sockets:
            self.sockets[stream].receive_data(content)
            yield from self._speak(stream)
        elif kind is FrameKind.DATA:
            self.heads[stream] += content
            head, end, body = self.heads[stream].partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if not end or len(body) < int(length[1] if length else 0):
                return
            if b"upgrade: websocket" in self.heads[stream].lower():
                self.sockets[stream] = ServerProtocol(subprotocols=["kernel", "other"])
                self.sockets[stream].receive_data(self.heads[stream])
                yield from self._speak(stream)
                return
            self.seen.append(self.heads[stream])
            yield pack(FrameKind.DATA, stream, self.answer(self.heads[stream]))
            yield pack(FrameKind.CLOSE, stream, b"{}")

    def _speak(self, stream: int) -> Iterator[bytes]:
        socket = self.sockets[stream]
        for event in socket.events_received():
            if isinstance(event, Request):
                self.seen.append(self.heads[stream])
                socket.send_response(socket.accept(event))
            elif isinstance(event, SocketFrame) and event.opcode is Opcode.TEXT:
                socket.send_text(b"echo " + event.data)
        for piece in socket.data_to_send():
            if piece:
                yield pack(FrameKind.DATA, stream, piece)


def run(world: World, owner: TestClient) -> str:
    """A workbench that its node says is running."""
    job = str(owner.post("/v1/jobs", json=SPEC).json()["id"])
    assert place(world.database, job) == 1
    observed = {"job_id": job, "epoch": 1, "phase": "running"}
    world.node.post("/v1/node/heartbeat", json=heartbeat(observed)).raise_for_status()
    return job


@pytest.fixture
def program(world: World) -> Iterator[Program]:
    """Ann's."""
    program = Program(world, run(world, world.ann))
    yield program
    program.close()


def ticket_of(client: TestClient, job: str) -> str:
    answer = client.post(f"/v1/workbenches/{job}/entry")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"].partition("#")[2])


def browser(world: World, program: Program, cookie: str = "") -> TestClient:
    """A browser on the workbench's origin."""
    headers = {"Cookie": cookie} if cookie else {}
    return TestClient(world.app, base_url=program.origin, headers=headers, follow_redirects=False)


def trade(world: World, program: Program, ticket: str, **headers: str) -> Any:
    given = {"Origin": program.origin, **headers}
    return browser(world, program).post("/.trainyard/enter", content=ticket, headers=given)


def entered(world: World, program: Program) -> TestClient:
    """A browser that has a pass."""
    answer = trade(world, program, ticket_of(world.ann, program.job))
    assert answer.status_code == 204, answer.text
    return browser(world, program, answer.headers["set-cookie"].partition(";")[0])


def test_a_ticket_works_once_at_its_own_origin_for_a_short_while(
    world: World, program: Program
) -> None:
    assert browser(world, program).get("/lab").status_code == 403
    ticket = ticket_of(world.ann, program.job)
    assert trade(world, program, ticket, Origin="http://evil.example").status_code == 403
    first = trade(world, program, ticket)
    assert first.status_code == 204
    cookie = first.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE.lower())
    for word in ("secure", "httponly", "samesite=lax", "path=/"):
        assert word in cookie
    assert "domain" not in cookie
    assert trade(world, program, ticket).status_code == 403
    assert trade(world, program, "ty_nonsense").status_code == 403
    assert trade(world, program, "x" * 5000).status_code == 413
    late = ticket_of(world.ann, program.job)
    with world.database.write() as session:
        past = utc_now() - timedelta(seconds=1)
        session.execute(update(WorkbenchPass).values(ticket_ends_at=past))
    assert trade(world, program, late).status_code == 403


def test_its_own_pages_alone_are_told_its_end(world: World, program: Program) -> None:
    page = entered(world, program)
    stops_at = world.ann.get(f"/v1/jobs/{program.job}").json()["stops_at"]
    told = page.get("/.trainyard/clock").json()["ends_at"]
    assert datetime.fromisoformat(told) == datetime.fromisoformat(stops_at)
    assert program.seen == []  # it is asked of us, not of the program
    assert browser(world, program).get("/.trainyard/clock").status_code == 403
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert page.get("/.trainyard/clock", headers=foreign).status_code == 403


def test_a_key_in_its_own_pages_is_told_to_its_porter(world: World, program: Program) -> None:
    page = entered(world, program)
    assert (
        page.post("/.trainyard/clock", headers={"Origin": "http://other.test"}).status_code == 403
    )
    assert not program.stirred.is_set()
    answer = page.post("/.trainyard/clock", headers={"Origin": program.origin})
    assert answer.status_code == 204, answer.text
    assert program.stirred.wait(10)


def test_nobody_else_gets_a_ticket_and_no_pass_opens_anothers_workbench(
    world: World, program: Program
) -> None:
    entry = f"/v1/workbenches/{program.job}/entry"
    assert world.bob.post(entry).status_code == 404
    assert world.admin.post(entry).status_code == 403
    assert world.nobody.post(entry).status_code == 401
    mine = entered(world, program)
    assert mine.get("/lab").text == "ok"
    cookie = mine.headers["Cookie"]
    terminal = {**SPEC, "workbench": {"kind": "terminal"}}
    other = str(world.ann.post("/v1/jobs", json=terminal).json()["id"])
    there = TestClient(
        world.app,
        base_url=f"http://{other.removeprefix('job_')}-1.{DOMAIN}",
        headers={"Cookie": cookie},
    )
    assert there.get("/").status_code == 403
    theirs = program.origin.replace("-1.", "-2.")
    assert (
        TestClient(world.app, base_url=theirs, headers={"Cookie": cookie}).get("/").status_code
        == 403
    )
    recipe = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    assert world.ann.post(f"/v1/workbenches/{recipe}/entry").status_code == 404


@pytest.mark.parametrize(
    "host", [f"x.{DOMAIN}", f"a.b.{DOMAIN}", f"{'0' * 26}-0x1.{DOMAIN}", f"{'0' * 25}-1.{DOMAIN}"]
)
def test_other_hosts_of_the_domain_are_nobodys(world: World, host: str) -> None:
    assert TestClient(world.app, base_url=f"http://{host}").get("/v1/me").status_code == 404


def test_the_api_is_not_at_a_workbenchs_origin(world: World, program: Program) -> None:
    page = entered(world, program)
    for path in ("/v1/me", "/login", "/static/style.css", "/readyz"):
        assert page.get(path).text == "ok", path
    assert [seen.split()[1] for seen in program.seen] == [
        b"/v1/me", b"/login", b"/static/style.css", b"/readyz",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", {"Sec-Fetch-Site": "same-site"}),
        ("GET", {"Origin": "http://evil.example"}),
        ("POST", {"Origin": "http://evil.example"}),
        ("POST", {"Origin": "null"}),
        ("POST", {}),
        ("DELETE", {"Sec-Fetch-Site": "cross-site"}),
    ],
)
def test_requests_of_foreign_pages_do_not_reach_the_program(
    world: World, program: Program, method: str, headers: dict[str, str]
) -> None:
    assert entered(world, program).request(method, "/api", headers=headers).status_code == 403
    assert program.seen == []


def test_the_program_sees_none_of_our_secrets_and_its_own_cookies(
    world: World, program: Program
) -> None:
    page = entered(world, program)
    own = page.headers["Cookie"]
    page.headers["Cookie"] = f"_xsrf=2|a; {own}; {SESSION}=ty_session; theme=dark"
    page.post(
        "/api/contents?x=1",
        content=b"body",
        headers={
            "Origin": program.origin,
            "Authorization": "Bearer ty_mine",
            "Connection": "keep-alive, X-Hop",
            "Sec-Fetch-Site": "same-origin",
        },
    )
    [seen] = program.seen
    head, _, body = seen.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /api/contents?x=1 http/1.1"
    assert f"host: {program.host}".encode() in lines
    assert f"origin: {program.origin}".encode() in lines
    assert b"cookie: _xsrf=2|a; theme=dark" in lines
    assert b"connection: close" in lines
    assert body == b"body"
    assert b"ty_" not in seen


def test_what_the_program_answers_cannot_set_cookies_for_others(
    world: World, program: Program
) -> None:
    program.answer = lambda _: (
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=localhost; Path=/\r\n"
        b"Set-Cookie: b=2;domain=.localhost\r\nConnection: keep-alive\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    answer = entered(world, program).get("/")
    assert answer.text == "abcde"
    assert answer.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
    assert "keep-alive" not in answer.headers.get("connection", "")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\n",
        b"HTTP/1.1 999999 OK\r\n\r\n",
    ],
)
def test_a_program_that_answers_nonsense_costs_its_owner_a_503(
    world: World, program: Program, nonsense: bytes
) -> None:
    program.answer = lambda _: nonsense
    page = entered(world, program)
    assert page.get("/").status_code == 503
    program.answer = lambda _: OK
    assert page.get("/").text == "ok"


def test_a_websocket_passes_unchanged_from_the_origins_own_pages_alone(
    world: World, program: Program
) -> None:
    page = entered(world, program)
    for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:8471"}):
        with (
            pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)),
            page.websocket_connect(f"ws://{program.host}/channels", headers=origin),
        ):
            pass
    with (
        pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)),
        browser(world, program).websocket_connect(
            f"ws://{program.host}/channels", headers={"Origin": program.origin}
        ),
    ):
        pass
    assert program.seen == []
    with page.websocket_connect(
        f"ws://{program.host}/channels?id=1",
        subprotocols=["kernel"],
        headers={"Origin": program.origin},
    ) as socket:
        assert socket.accepted_subprotocol == "kernel"
        socket.send_text("hello")
        assert socket.receive_text() == "echo hello"
    assert program.seen[0].startswith(b"GET /channels?id=1 HTTP/1.1")
    assert COOKIE.encode() not in program.seen[0]


def test_who_signs_out_and_a_workbench_that_has_ended_are_out(
    world: World, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "TRUSTED_FOR_S", 0.0)
    page = entered(world, program)
    assert page.get("/").status_code == 200
    world.ann.delete("/v1/sessions/current").raise_for_status()
    assert page.get("/").status_code == 403


@pytest.mark.parametrize(
    ("ours", "domain", "is_refused"),
    [
        ("https://yard.example", "yard.example", True),
        ("https://yard.example", "benches.yard.example", True),
        ("https://app.yard.example", "benches.yard.example", True),
        ("https://app.yard.example", "yard.example", True),
        ("https://app.yard.example", "yard-benches.example", False),
        ("https://app.yard.example", "notyard.example:8443", False),
        ("http://127.0.0.1:8471", "localhost:8471", False),
        ("https://yard.example", "", False),
    ],
)
def test_a_domain_of_our_own_site_is_refused(
    settings: ApiSettings, ours: str, domain: str, is_refused: bool
) -> None:
    given = settings.model_copy(update={"public_url": ours, "workbench_domain": domain})
    assert bool(domain_flaw(given)) is is_refused


def test_without_a_domain_the_reason_is_said(world: World, program: Program) -> None:
    settings = world.process.settings
    object.__setattr__(
        world.process, "settings", settings.model_copy(update={"public_url": "https://a.example"})
    )
    answer = world.ann.post(f"/v1/workbenches/{program.job}/entry")
    assert answer.status_code == 422
    assert "TRAINYARD_WORKBENCH_DOMAIN" in answer.json()["detail"]
    [listed] = world.ann.get("/v1/workbenches").json()["data"]
    assert "TRAINYARD_WORKBENCH_DOMAIN" in listed["no_browser"]
