"""A small real HTTP server that answers as a test tells it, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What to send. `cut` closes the line in the middle; `hold` keeps a stream open."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hold: threading.Event | None = None


Handler = Callable[[Asked], Answer]


@dataclass
class FakeServer:
    """Routes are `"GET /v1/jobs"`; a list of answers is used up, its last one stays."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    routes: dict[str, Handler] = field(default_factory=dict)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, route: str, *answers: Answer | Handler) -> None:
        """Answer `route` with these, one after the other."""
        left = list(answers)

        def handler(asked: Asked) -> Answer:
            chosen = left.pop(0) if len(left) > 1 else left[0]
            return chosen if isinstance(chosen, Answer) else chosen(asked)

        self.routes[route] = handler

    def of(self, route: str) -> list[Asked]:
        """The requests for `route`."""
        method, _, path = route.partition(" ")
        return [asked for asked in self.asked if (asked.method, asked.path) == (method, path)]

    def wait_for(self, route: str, count: int, timeout_s: float = 30.0) -> None:
        """Return once `route` was asked for `count` times."""
        with self.arrived:
            came = self.arrived.wait_for(lambda: len(self.of(route)) >= count, timeout_s)
        assert came, f"{route} was asked {len(self.of(route))} times, not {count}"


def as_json(document: Any, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, json.dumps(document).encode())


def listed(documents: Sequence[Any], *, has_more: bool = False) -> Answer:
    """One page."""
    return as_json({"object": "list", "data": list(documents), "has_more": has_more})


def refused(
    status: int,
    code: str,
    detail: str,
    *,
    param: str | None = None,
    errors: Sequence[dict[str, str]] = (),
    retry_after: str | None = None,
) -> Answer:
    """A problem document."""
    document = {
        "type": "about:blank",
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        "param": param,
        "errors": list(errors),
    }
    headers = {"Retry-After": retry_after} if retry_after else {}
    return Answer(status, json.dumps(document).encode(), "application/problem+json", headers)


def streamed(*events: tuple[str, str, Any], hold: threading.Event | None = None) -> Answer:
    """Server-sent events of (id, kind, data); then the line is closed, or held open."""
    text = "".join(
        f"event: {kind}\nid: {place}\ndata: {json.dumps(data)}\n\n" for place, kind, data in events
    )
    return Answer(200, f": ping\n\n{text}".encode(), "text/event-stream", hold=hold)


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server on a free port of the loopback."""

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            parts = urlsplit(self.path)
            asked = Asked(
                self.command,
                parts.path,
                parse_qs(parts.query),
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(int(self.headers.get("content-length", 0))),
            )
            with fake.arrived:
                fake.asked.append(asked)
                fake.arrived.notify_all()
            handler = fake.routes.get(f"{asked.method} {asked.path}")
            answer = (
                handler(asked)
                if handler
                else refused(404, "not_found", f"There is no {asked.path} here.")
            )
            self.send_answer(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = respond

        def send_answer(self, answer: Answer) -> None:
            self.close_connection = True
            if answer.cut and not answer.body:
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            is_stream = answer.content_type == "text/event-stream"
            if not is_stream:
                length = len(answer.body) * (2 if answer.cut else 1)
                self.send_header("Content-Length", str(length))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)
            self.wfile.flush()
            if answer.hold is not None:
                answer.hold.wait(60)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the tests' output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    server.daemon_threads = True
    fake = FakeServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
