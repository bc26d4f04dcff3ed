"""An API whose answers to the pages' own reads a test delays or refuses, and whose streams say what
the test has them say. The dashboard on top of it is the real one."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.dashboard.fake_api import FakeApi
from tests.running import own_port

STREAMS = ("/v1/leases/stream", "/v1/changes/stream")


@dataclass
class Read:
    """A GET of a page, of the API or of a piece of itself."""

    path: str
    query: dict[str, list[str]]
    is_background: bool
    at: float
    """Seconds, as `time.monotonic`."""
    ended_at: float | None = None


@dataclass
class BusyApi:
    """The streams that are open, and what was asked."""

    api: FakeApi
    url: str = ""
    delay_s: float = 0
    """Of every read in the background."""
    retry_after: int | None = None
    """If it is set, reads in the background are refused."""
    reads: list[Read] = field(default_factory=list)
    _open: dict[asyncio.Queue[str], str] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None

    def begin_with(self, path: str, kind: str, **said: object) -> None:
        """What every new stream says first."""
        self._first[path] = _event(kind, said)

    def tell(self, path: str, kind: str, **said: object) -> None:
        """Say it on all streams of that path that are open."""
        assert self._loop is not None
        for queue, on in list(self._open.items()):
            if on == path:
                self._loop.call_soon_threadsafe(queue.put_nowait, _event(kind, said))

    def streams(self) -> int:
        """How many are open."""
        return len(self._open)

    def of(self, path: str) -> list[Read]:
        """The reads of that path so far."""
        return [read for read in self.reads if read.path == path]

    def most_at_once(self, path: str) -> int:
        """The most reads of that path that were being answered at one moment."""
        reads = self.of(path)
        return max(
            sum(one.at <= read.at < (one.ended_at or time.monotonic()) for one in reads)
            for read in reads
        )

    def app(self) -> ASGIApp:
        """The application."""
        behind = self.api.app()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            path = request.url.path
            if path in STREAMS:
                await StreamingResponse(self._stream(path), media_type="text/event-stream")(
                    scope, receive, send
                )
                return
            if request.method != "GET" or path.startswith("/static"):
                await behind(scope, receive, send)
                return
            is_background = request.headers.get("priority") == "u=6"
            read = Read(path, parse_qs(request.url.query), is_background, time.monotonic())
            self.reads.append(read)
            try:
                if is_background and self.retry_after is not None:
                    problem = {"title": "Busy", "status": 503, "detail": "Too many are reading."}
                    refusal = JSONResponse(problem, 503, {"Retry-After": str(self.retry_after)})
                    await refusal(scope, receive, send)
                    return
                if is_background:
                    await asyncio.sleep(self.delay_s)
                await behind(scope, receive, send)
            finally:
                read.ended_at = time.monotonic()

        return answer

    async def _stream(self, path: str):  # type: ignore[no-untyped-def]
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._open[queue] = path
        try:
            yield "retry: 1000\n\n" + self._first.get(path, "")
            while True:
                yield await queue.get()
        finally:
            del self._open[queue]


def _event(kind: str, said: dict[str, object]) -> str:
    return f"event: {kind}\nid: {said.get('version', '')}\ndata: {json.dumps(said)}\n\n"


@contextmanager
def serving(api: FakeApi) -> Iterator[BusyApi]:
    """It, at an address, until the end of the block."""
    busy = BusyApi(api)
    port = own_port()
    config = uvicorn.Config(
        busy.app(),
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the busy API did not start"
        time.sleep(0.02)
    busy.url = f"http://127.0.0.1:{port}"
    try:
        yield busy
    finally:
        server.should_exit = True
        thread.join(timeout=10)
