"""Simulated browser: sends requests as the pages' scripts do, and records its person's waits."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from benchmarks.course.records import Records
from benchmarks.course.wire import Answer, Line, Lost

CAN_WAIT = {"Priority": "u=6"}  # RFC 9218: background
STREAM_AGAIN_S = 3.0  # Chromium's default pause before it opens a lost stream again
GIVEN_UP_S = 2.0  # live.js, after an answer that is no stream
COOKIE = "trainyard_session"

Heard = Callable[[str, Any], None]


class Busy(Exception):
    """Refusal of a read: the server can't answer now."""

    def __init__(self, wait_s: float | None) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s
        """Seconds to wait, as the server asked; None if it gave no time."""


class Browser:
    """A browser with one tab."""

    def __init__(
        self, host: str, port: int, secret: str, records: Records, chance: random.Random
    ) -> None:
        self.records, self.chance = records, chance
        headers = {
            "Cookie": f"{COOKIE}={secret}",
            "Origin": f"http://{host}:{port}",
            "Sec-Fetch-Site": "same-origin",
            "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140",
            "Accept": "*/*",
        }
        self.line = Line(host, port, headers)
        self.kept: set[str] = set()
        """Paths of files that it has cached for ever."""
        self.is_streaming = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        what: str,
        method: str,
        path: str,
        document: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        is_by_itself: bool = False,
        since: float | None = None,
    ) -> Answer | None:
        """Send a request, and record under `what` the time that it took from now or `since`.

        Returns None if no answer came.
        """
        sent = dict(headers or {})
        if document is None or isinstance(document, bytes):
            body = document
        else:
            body, sent["Content-Type"] = json.dumps(document).encode(), "application/json"
        begun = time.perf_counter() if since is None else since
        try:
            answer = await self.line.ask(method, path, body=body, headers=sent)
        except (Lost, TimeoutError) as error:
            self.records.errors[f"{what}: {type(error).__name__}"] += 1
            return None
        self.records.wait(what, time.perf_counter() - begun)
        self._count(what, answer, is_by_itself)
        return answer

    async def read(self, what: str, path: str, *, can_wait: bool) -> Any:
        """Read a document; return None if it is refused for good. Raises Busy if the server may
        answer later."""
        headers = CAN_WAIT if can_wait else None
        answer = await self.ask(what, "GET", path, headers=headers, is_by_itself=True)
        if answer is None:
            raise Busy(None)
        if answer.status == 429 or answer.status >= 500:
            told = answer.headers.get("retry-after")
            raise Busy(None if told is None else float(told))
        if answer.status != 200:
            return None
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.body

    async def click(
        self, what: str, method: str, path: str, document: object = None, *, once: bool = False
    ) -> Answer:
        """Send the request of a person's click until it is answered; with an idempotency key if it
        must take effect only `once`."""
        headers = {"Idempotency-Key": uuid.uuid4().hex} if once else None
        begun = time.perf_counter()
        while True:
            answer = await self.ask(what, method, path, document, headers=headers, since=begun)
            if answer is not None:
                return answer
            await asyncio.sleep(1 + self.chance.random())  # "try again", says the page; people do

    def listen(self, path: str, heard: Heard, came_back: Callable[[], None] = lambda: None) -> None:
        """Hold a stream of server-sent events open, as EventSource does."""
        self.start(self._listen(path, heard, came_back))

    def start(self, work: Awaitable[None]) -> None:
        """Run work of a page's script in a task of its own."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Close the tab; another page may be opened in it."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.line.close()

    async def _listen(self, path: str, heard: Heard, came_back: Callable[[], None]) -> None:
        events = Events(heard, self)
        while True:
            sent = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
            if events.last_id:
                sent["Last-Event-ID"] = events.last_id
            try:
                answer = await self.line.ask("GET", path, headers=sent, heard=events.feed)
                if answer.status != 200:  # EventSource gives up; live.js opens a new one
                    self.records.counts[f"stream refused: {answer.status}"] += 1
                    told = float(answer.headers.get("retry-after", "0"))
                    await asyncio.sleep(max(told, GIVEN_UP_S) * self.chance.uniform(0.5, 1.5))
            except (Lost, TimeoutError):
                self.records.counts["streams lost"] += 1
            self.is_streaming = False
            events.begin(came_back)
            await asyncio.sleep(events.again_s)

    def _count(self, what: str, answer: Answer, is_by_itself: bool) -> None:
        if answer.status == 503 and is_by_itself and "retry-after" in answer.headers:
            self.records.counts[f"{what}: put off"] += 1
        elif answer.status >= 500:
            self.records.errors[f"{what}: {answer.status}"] += 1
        elif answer.status >= 400:
            self.records.counts[f"{what}: {answer.status}"] += 1

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.records.errors[f"in the simulation: {error!r}"] += 1


class Events:
    """Server-sent events, put together from pieces."""

    def __init__(self, heard: Heard, browser: Browser) -> None:
        self.last_id = ""
        self.again_s = STREAM_AGAIN_S
        self._heard, self._browser = heard, browser
        self._rest = b""
        self._came_back: Callable[[], None] = lambda: None

    def begin(self, came_back: Callable[[], None]) -> None:
        """Forget a partial event of a broken stream; call `came_back` once the stream is back."""
        self._rest = b""
        self._came_back = came_back

    def feed(self, piece: bytes) -> None:
        """Take a piece, and pass each event that is complete on."""
        if not self._browser.is_streaming:
            self._browser.is_streaming = True
            self._came_back()
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for block in whole:
            name, number, retry, document = parsed(block)
            self.last_id = number or self.last_id
            self.again_s = int(retry) / 1000 if retry else self.again_s
            if name:
                self._heard(name, document)


@lru_cache(maxsize=512)
def parsed(block: bytes) -> tuple[str, str, str, Any]:
    """Parse an event into name, id, retry and document.

    Cached, so that the same bytes are parsed once for all browsers.
    """
    fields = {"event": b"", "id": b"", "retry": b"", "data": b""}
    for row in block.split(b"\n"):
        field, _, value = row.partition(b":")
        if field.decode() in fields:
            fields[field.decode()] += value.removeprefix(b" ")
    document = json.loads(fields["data"]) if fields["data"] else None
    event, number, retry = (fields[name].decode() for name in ("event", "id", "retry"))
    return event, number, retry, document
