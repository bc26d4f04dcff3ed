"""What a body holds costs the API little, whoever sends it: others are answered meanwhile."""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from pathlib import Path

import httpx2
import psutil
import pytest

from api.web.credentials import issue_link
from core.base.clock import utc_now
from core.database.database import Database
from core.tables.kinds import LinkKind, Role
from tests.api.conftest import add_person
from tests.api.shapes import INVENTORY, heartbeat, job_spec
from tests.forked import origin
from tests.running import own_port, wait_for

YAML = "application/yaml"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
ABOUT_A_MB = 990_000
CPU_S = 1.5  # of one request; before there were bounds the worst of these took 38 s
LAG_S = 5.0
MEMORY_BYTES = 150 << 20


def filled(start: str, piece: str, end: str, size: int = ABOUT_A_MB) -> bytes:
    return (start + piece * ((size - len(start) - len(end)) // len(piece)) + end).encode()


KEYS = ",".join(f'"k{n}":1' for n in range(60_000))
BODIES = {
    "yaml list": (YAML, filled("a: [", "1,", "1]")),
    "yaml lines": (YAML, filled("a:\n", "- 1\n", "")),
    "yaml keys": (YAML, "".join(f"k{n}: 1\n" for n in range(60_000)).encode()),
    "yaml comments": (YAML, filled("", "#\n", "a: 1")),
    "yaml directives": (YAML, "".join(f"%TAG !{n}! b\n" for n in range(60_000)).encode()),
    "yaml depth": (YAML, filled("a: ", "[", "")),
    "yaml folded": (YAML, filled('a: "', "x\n\n", '"')),
    "json list": (JSON, filled('{"a":[', "[],", "1]}")),
    "json keys": (JSON, ("{" + KEYS + "}").encode()),
    "json depth": (JSON, filled("", "[", "")),
    "json digits": (JSON, filled('{"a":', "1", "}")),
}
SPECS = ("/v1/jobs", "/v1/jobs/plan", "/v1/studies", "/v1/agendas", "/v1/agendas/plan")


@dataclass
class Server:
    """An API process of its own, and what it costs to answer."""

    url: str
    process: psutil.Process
    tokens: dict[str, str]
    lags_s: list[float] = field(default_factory=list)

    def post(self, path: str, kind: str, body: bytes, caller: str) -> httpx2.Response:
        """One answer; its CPU time is bounded."""
        headers = {"Content-Type": kind}
        if caller:
            headers["Authorization"] = f"Bearer {self.tokens[caller]}"
        before = sum(self.process.cpu_times()[:2])
        answer = httpx2.post(self.url + path, content=body, headers=headers, timeout=60)
        spent_s = sum(self.process.cpu_times()[:2]) - before
        assert spent_s < CPU_S, f"{path} {len(body):,} bytes of {kind} by {caller}: {spent_s:.1f} s"
        return answer

    def watch(self, done: threading.Event) -> None:
        """How long /healthz takes, again and again, at least once."""
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            while True:
                began = time.monotonic()
                client.get("/healthz")
                self.lags_s.append(time.monotonic() - began)
                if done.wait(0.02):
                    return


@pytest.fixture(scope="module")
def server(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    path, port = folder / "trainyard.db", own_port()
    path.write_bytes(migrated_sqlite.read_bytes())
    database = Database(f"sqlite:///{path}")
    tokens = {"ann": add_person(database, "ann", Role.USER)}
    with database.write() as session:
        _, secret = issue_link(
            session,
            kind=LinkKind.ENROL,
            now=utc_now(),
            lifetime=timedelta(minutes=5),
            node_name="box",
        )
    database.close()
    environment = {
        "TRAINYARD_DATABASE_URL": f"sqlite:///{path}",
        "TRAINYARD_REDIS_URL": f"unix://{folder}/nothing.sock?db=0",
        "TRAINYARD_STORE": str(folder / "store"),
        "TRAINYARD_PORT": str(port),
        "TRAINYARD_SUBMISSIONS_PER_MINUTE": "1000",
    }
    with open(folder / "api.log", "wb") as log:
        child = origin().start("api.main", environment={**os.environ, **environment}, log=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(url), what="the API")
        joining = {"token": secret, "inventory": INVENTORY}
        tokens["box"] = httpx2.post(f"{url}/v1/node/enrol", json=joining).json()["node_token"]
        found = Server(url, psutil.Process(child.pid), tokens)
        beat = json.dumps(heartbeat()).encode()
        assert found.post("/v1/node/heartbeat", JSON, beat, "box").status_code == 200
        planned = found.post("/v1/jobs/plan", JSON, json.dumps(job_spec()).encode(), "ann")
        assert planned.status_code == 200, planned.text
        yield found
    finally:
        child.terminate()
        child.wait(timeout=20)


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz").is_success
    except httpx2.TransportError:
        return False


@pytest.fixture
def watched(server: Server) -> Iterator[Server]:
    """The server, and at the end: it answered others all the time, and kept nothing."""
    server.lags_s.clear()
    before = server.process.memory_info().rss
    done = threading.Event()
    watcher = threading.Thread(target=server.watch, args=[done])
    watcher.start()
    yield server
    done.set()
    watcher.join()
    assert max(server.lags_s) < LAG_S
    assert server.process.memory_info().rss - before < MEMORY_BYTES


def test_nothing_large_is_read_of_a_stranger(watched: Server) -> None:
    for path, (name, (kind, body)) in zip(cycle(SPECS), BODIES.items()):
        assert watched.post(path, kind, body, "").status_code == 401, (name, path)
    batch = filled("[", "[],", "1]", 2 << 20)
    for path in ("/v1/node/metrics", "/v1/sessions", "/v1/leases"):
        for caller in ("", "ann") if path.startswith("/v1/node/") else ("",):
            body = batch if path.startswith("/v1/node/") else batch[:ABOUT_A_MB]
            assert watched.post(path, JSON, body, caller).status_code == 401, path
    form = b"source=form&spec=" + filled("a: [", "1,", "1]", 100_000)
    answer = watched.post("/jobs/plan", FORM, form, "")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_what_a_stranger_may_send_is_answered_by_its_route(watched: Server) -> None:
    for size, status in ((16_000, 422), (16 << 10, 422), ((16 << 10) + 1, 401)):
        body = b"{".ljust(size - 1) + b"}"
        assert watched.post("/v1/sessions", JSON, body, "").status_code == status, size


def test_a_signed_in_person_gets_an_answer_to_anything_soon(watched: Server) -> None:
    for path, (name, (kind, body)) in zip(cycle(SPECS), BODIES.items()):
        answer = watched.post(path, kind, body, "ann")
        assert answer.status_code in (413, 422), (name, path, answer.text)
        if kind == JSON:
            answer = watched.post("/v1/leases", kind, body, "ann")
            assert answer.status_code in (400, 413, 422), (name, answer.text)
        form = b"source=form&spec=" + body.replace(b"%", b"%25")
        answer = watched.post("/jobs/plan", FORM, form, "ann")
        assert answer.status_code in (200, 413), name


def test_a_node_gets_an_answer_to_anything_soon(watched: Server) -> None:
    for body in (filled("[", "[],", "1]", 6 << 20), filled("[", "[", "", 6 << 20)):
        answer = watched.post("/v1/node/metrics", JSON, body, "box")
        assert answer.status_code in (400, 413, 422), answer.text
    for path, most in (("/v1/node/metrics", 2 << 20), ("/v1/node/checkpoints", 6 << 20)):
        for size, status in ((most, 422), (most + 1, 413)):
            assert watched.post(path, JSON, b" " * size, "box").status_code == status, (path, size)
