"""Live streams of one process: each watched job is read once, however many watch it.

A Redis message (`live.<job id>`) wakes the job's feed, and so does a second of silence: with Redis
away everything goes on, a second later. While nobody watches, nobody listens. Jobs that wait are
looked at together. A feed keeps its last batches; for a viewer who is too slow for them, or who
comes back after a break, what is missing is read from the database, once for all who miss the same.

Nothing is queued per viewer. A document about several jobs, such as an agenda, is read when one of
the jobs is woken, and every other second: what is late changes by itself. All who watch it see one
reading, at most a second old. Calendars are told from one board, and lists from another: each is
read once for all who watch.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import redis.asyncio
import structlog
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from api.nodes.watched import Watched
from api.watching.arrivals import Arrivals
from api.watching.board import Board
from api.watching.feed import Feed
from api.watching.lists import ListName, Lists
from api.watching.news import Position, message
from api.watching.reader import Reader
from api.watching.waiting_jobs import WaitingJobs
from api.web.identity import Person
from core.database.database import Database
from core.wire.doorbell import LIVE, Topic

AWAY_S = 1.0  # between two tries to reach Redis
PING_S = 15.0
DOCUMENT_POLL_S = 2.0
DOCUMENT_REST_S = 1.0  # between two reads: what a study found is worked out from all of its curves

READERS = 4  # threads that read for streams
CATCHING_UP = 2  # further threads, for viewers who come: a crowd holds up nobody who is there

PING = b": ping\n\n"
AGAIN_MS = (500, 2500)  # after which browsers come back to a server that was away

log = structlog.get_logger()


class StreamDocument(Protocol):
    """Content of a stream: a view that says whether it can still change."""

    @property
    def is_final(self) -> bool:
        """True once the document can no longer change."""

    def model_dump_json(self) -> str:
        """Return the document as JSON."""


class Hub:
    """All live streams of a process."""

    def __init__(self, database: Database, redis_url: str, watched: Watched) -> None:
        self._database = database
        self._redis_url = redis_url
        self._watched = watched
        self._board = Board(database)
        self._lists = Lists(database)
        self._feeds: dict[str, Feed] = {}
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._listeners: dict[str, set[asyncio.Event]] = defaultdict(set)
        """Events of the streams that listen to a job, by job id; set when the job has news."""
        self._num_viewers = 0
        self._has_viewers = asyncio.Event()
        self._is_closing = False
        self._limiter = anyio.CapacityLimiter(READERS)
        self._catching_up = anyio.CapacityLimiter(CATCHING_UP)
        self._arrivals = Arrivals(database)
        self._waiting_jobs = WaitingJobs(database, self._feeds, self._limiter)
        self._listener: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to listen. Call it in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._listener = asyncio.create_task(self._listen())

    def close_soon(self) -> None:
        """End all streams; callable from a signal handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_streams)

    async def close(self) -> None:
        """End all streams and stop listening."""
        self._end_streams()
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
        for reader in self._readers:
            reader.stop()

    @property
    def num_viewers(self) -> int:
        """Number of open streams."""
        return self._num_viewers

    @property
    def _readers(self) -> Sequence[Reader]:
        return (self._board, self._lists, self._waiting_jobs, *self._feeds.values())

    async def stream(self, job_id: str, last_event_id: str) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a job, from a position or from the start, until its
        end."""
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = Feed(self._database, job_id, self._limiter, self._catching_up, self._arrivals)
            self._feeds[job_id] = feed
        feed.join()
        self._waiting_jobs.join()
        try:
            with self._viewing(), self._watched.watching([job_id]):
                async for piece in self._follow(feed, Position.parse(last_event_id)):
                    yield piece
        finally:
            self._waiting_jobs.leave()
            feed.leave()
            if feed.num_viewers == 0 and self._feeds.get(job_id) is feed:
                del self._feeds[job_id]

    async def _follow(self, feed: Feed, since: Position | None) -> AsyncIterator[bytes]:
        yield _again()
        if since is None:
            payload, place = await feed.open()
        else:
            payload, place = b"", since
            # From here on the feed is not behind this viewer.
            await feed.refresh(since=asyncio.get_running_loop().time())
        shown = feed.job
        yield message("job", shown) + payload
        while not self._is_closing:
            changed, target = feed.changed, feed.position
            batch = feed.batch_after(place)
            if batch is not None:
                payload, place = batch.payload, batch.position
            elif not place.is_at(target):
                missed = await feed.missed(place, target)
                payload, place = missed.payload, missed.position
            else:
                payload = b""
            if place.is_at(feed.position) and feed.job != shown:
                shown = feed.job
                payload += message("job", shown)
            if payload:
                yield payload
            elif not place.is_at(target):
                continue
            elif place.is_at(feed.position) and feed.is_over:
                yield message("end", shown, place)
                return
            elif not await _told(changed, PING_S):
                yield PING

    def stream_calendar(self, person: Person, last_event_id: str) -> AsyncIterator[bytes]:
        """Return the server-sent events of a calendar: all holds of nodes, or the changes since a
        version, and then every change."""
        return self._watch(self._board, self._board.follow(person, last_event_id))

    def stream_lists(self, person: Person, names: Collection[ListName]) -> AsyncIterator[bytes]:
        """Return the server-sent events of lists: a word for each, and all words again when one has
        changed."""
        return self._watch(self._lists, self._lists.follow(person, names))

    async def _watch(self, reader: Reader, news: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """Yield a reader's messages to one viewer: at each change, what `news` returns."""
        yield _again()
        reader.join()
        try:
            with self._viewing():
                try:
                    await reader.begin()
                except SQLAlchemyError as error:
                    log.warning("not_read", what=str(reader), error=str(error))
                    return  # the viewer comes back
                while not self._is_closing:
                    changed = reader.changed
                    if payload := news():
                        yield payload
                    elif not await _told(changed, PING_S):
                        yield PING
        finally:
            reader.leave()

    async def stream_document(
        self, kind: str, name: str, job_ids: Collection[str], read: Callable[[], StreamDocument]
    ) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a document about some jobs: `kind` with the document
        whenever it has changed, and `end` once it is final. `read` is called in a thread, once for
        all viewers of this kind and name; the caller has already checked that the viewer may see
        it."""
        yield _again()
        shown = ""
        with (
            self._viewing(),
            self._watched.watching(job_ids),
            self._listening(job_ids) as heard,
            self._sharing(kind, name) as reading,
        ):
            while not self._is_closing:
                heard.clear()
                try:
                    document = await reading.take(read, self._limiter)
                except SQLAlchemyError as error:
                    log.warning("document_not_read", kind=kind, error=str(error))
                    return  # the viewer comes back
                before, shown = shown, document.model_dump_json()
                if document.is_final:
                    yield message("end", shown)
                    return
                yield message(kind, shown) if shown != before else PING
                await asyncio.sleep(DOCUMENT_REST_S)
                await _told(heard, DOCUMENT_POLL_S - DOCUMENT_REST_S)

    def wake_soon(self, job_ids: Collection[str], topics: Collection[Topic] = ()) -> None:
        """Wake the streams that show what this process has written; callable from any thread."""
        if (job_ids or topics) and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_all, job_ids, topics)

    @contextmanager
    def _viewing(self) -> Iterator[None]:
        self._num_viewers += 1
        self._has_viewers.set()
        try:
            yield
        finally:
            self._num_viewers -= 1

    @contextmanager
    def _listening(self, job_ids: Collection[str]) -> Iterator[asyncio.Event]:
        heard = asyncio.Event()
        for job_id in job_ids:
            self._listeners[job_id].add(heard)
        try:
            yield heard
        finally:
            for job_id in job_ids:
                self._listeners[job_id].discard(heard)
                if not self._listeners[job_id]:
                    del self._listeners[job_id]

    @contextmanager
    def _sharing(self, kind: str, name: str) -> Iterator["_Reading"]:
        reading = self._readings.setdefault((kind, name), _Reading())
        reading.num_viewers += 1
        try:
            yield reading
        finally:
            reading.num_viewers -= 1
            if not reading.num_viewers:
                del self._readings[kind, name]

    async def _listen(self) -> None:
        is_away = False
        while True:
            await self._has_viewers.wait()
            client = redis.asyncio.Redis.from_url(
                self._redis_url, socket_timeout=None, socket_connect_timeout=2
            )
            try:
                async with client, client.pubsub() as channel:
                    await channel.psubscribe(f"{LIVE}*")
                    await channel.subscribe(*Topic)
                    if is_away:
                        log.info("live_doorbell_back")
                    is_away = False
                    async for heard in channel.listen():
                        if not self._num_viewers:
                            self._has_viewers.clear()
                            break  # a message is work, and there are many of them
                        name = (heard.get("channel") or b"").decode("utf-8", "replace")
                        topics = [topic for topic in Topic if topic == name]
                        self._wake_all([] if topics else [name.removeprefix(LIVE)], topics)
            except (RedisError, OSError) as error:
                if not is_away:
                    log.warning("live_doorbell_away", error=str(error))
                is_away = True
                await asyncio.sleep(AWAY_S)

    def _end_streams(self) -> None:
        self._is_closing = True
        for reader in self._readers:
            reader.tell()
        for listeners in self._listeners.values():
            for heard in listeners:
                heard.set()

    def _wake_all(self, job_ids: Collection[str], topics: Collection[Topic] = ()) -> None:
        self._board.ring(topics)
        self._lists.wake()
        for job_id in job_ids:
            feed = self._feeds.get(job_id)
            if feed is not None:
                feed.wake()
            for heard in self._listeners.get(job_id, ()):
                heard.set()


@dataclass
class _Reading:
    """The last reading of a document, shared by all who watch it."""

    num_viewers: int = 0
    _document: StreamDocument | None = None
    _begun_at: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(
        self, read: Callable[[], StreamDocument], limiter: anyio.CapacityLimiter
    ) -> StreamDocument:
        """Return the document, read again if the last reading is more than a second old."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            if self._document is None or now - self._begun_at >= DOCUMENT_REST_S:
                self._document = await anyio.to_thread.run_sync(read, limiter=limiter)
                self._begun_at = now
            return self._document


async def _told(changed: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event. Returns False if it is not set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return False
    return True


def _again() -> bytes:
    """Return the time after which the browser reconnects to a lost stream, random for each
    viewer."""
    return f"retry: {random.randint(*AGAIN_MS)}\n\n".encode()
