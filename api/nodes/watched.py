"""Jobs that somebody watches: their nodes bring news each second, others every 20.

Each time that a node brings lines costs its ranks 8 ms of a core, whatever their number. A job is
watched while a stream shows it, and for a while after somebody has read it, its curves or its
output. The API processes tell each other by a sorted set in Redis, where a job's score is the end
of its watch; with Redis away each knows of its own viewers. A node hears at once that one of its
jobs is watched from now on. If that is lost, what it brings next is 20 s late, once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import anyio
import redis.asyncio
import structlog
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from api.web.bells import Bells, Ringer
from api.web.process import Process
from core.database.database import Database
from core.states import LIVE_ATTEMPT
from core.tables.jobs import Attempt, AttemptPart
from core.tables.nodes import Node
from core.wire.messages import SHIP_AFTER

WATCHED_S = 15.0  # after somebody has read, or a process has last told of its viewers
TELL_EVERY_S = 5.0
HEARD_FOR_S = 1.0  # what others have told is known for so long, while nodes ask for it
REST_S = 0.1  # between two exchanges
UNWATCHED_PAUSE_S = 20.0
RUNG = 100  # jobs at a time: a class that comes back after a restart is told with the next lines
ANSWERS_WITHIN_S = 2.0
KEY = "watched"

log = structlog.get_logger()


class Watched:
    """Jobs that somebody watches, here or on another API process."""

    def __init__(self, database: Database, redis_url: str, ringer: Ringer) -> None:
        self._database = database
        self._redis_url = redis_url
        self._ringer = ringer
        self._viewers = Counter[str]()
        self._read_until: dict[str, float] = {}
        self._told: set[str] = set()
        """Jobs that this process has told of, and whose nodes it has rung."""
        self._heard: frozenset[str] = frozenset()
        """Jobs that any process has told of."""
        self._heard_at = float("-inf")
        self.is_away = False
        """True while Redis does not answer."""
        self._wanted = asyncio.Event()
        self._limiter = anyio.CapacityLimiter(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tell and to hear. Call it in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @contextmanager
    def watching(self, job_ids: Collection[str]) -> Iterator[None]:
        """Count a viewer of these jobs for the time of a block in the loop."""
        self._viewers.update(job_ids)
        if not self._told.issuperset(job_ids):
            self._wanted.set()
        try:
            yield
        finally:
            self._viewers.subtract(job_ids)

    def note_reading(self, job_id: str) -> None:
        """Note that somebody has read a job, its curves or its output; callable from any thread."""
        self._read_until[job_id] = time.monotonic() + WATCHED_S
        if job_id not in self._told and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wanted.set)

    def pause_s(self, job_id: str) -> float:
        """Return the seconds that a node is to wait before it brings the next news of a job; 0 if
        the job is watched. Call it in the loop."""
        now = time.monotonic()
        if now - self._heard_at > HEARD_FOR_S:
            self._wanted.set()  # for the next answer: none waits for Redis
        if self._viewers[job_id] > 0 or self._read_until.get(job_id, now) > now:
            return 0.0
        return 0.0 if job_id in self._heard else UNWATCHED_PAUSE_S

    def _here(self) -> set[str]:
        """Return the jobs that are watched on this process; forget those that no longer are."""
        now = time.monotonic()
        self._viewers = +self._viewers
        for job_id, until in [*self._read_until.items()]:
            if until <= now:
                self._read_until.pop(job_id, None)
        return {*self._viewers, *self._read_until}

    async def _run(self) -> None:
        async with redis.asyncio.Redis.from_url(
            self._redis_url,
            socket_timeout=ANSWERS_WITHIN_S,
            socket_connect_timeout=ANSWERS_WITHIN_S,
            decode_responses=True,
        ) as client:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TELL_EVERY_S if self._told else None):
                        await self._wanted.wait()
                self._wanted.clear()
                try:
                    here = self._here()
                    await self._exchange(client, here)
                    new, self._told = here - self._told, here
                    if new:
                        await self._ring(new)
                except Exception:  # without this task nobody would be watched any more
                    log.exception("watched_not_told")
                await asyncio.sleep(REST_S)

    async def _exchange(self, client: "redis.asyncio.Redis", here: Collection[str]) -> None:
        """Tell the others of the jobs watched here, and hear of all."""
        now = time.time()
        try:
            async with client.pipeline(transaction=False) as commands:
                if here:
                    commands.zadd(KEY, dict.fromkeys(here, now + WATCHED_S))
                commands.zremrangebyscore(KEY, "-inf", now)
                commands.zrange(KEY, 0, -1)
                *_, found = await commands.execute()
            self._heard, self.is_away = frozenset(found), False
        except (RedisError, OSError) as error:
            if not self.is_away:
                log.warning("watched_not_told", error=str(error))
            self._heard, self.is_away = frozenset(), True
        self._heard_at = time.monotonic()

    async def _ring(self, job_ids: Collection[str]) -> None:
        """Ring the nodes on which these jobs run."""
        some = [*islice(job_ids, RUNG)]
        with suppress(SQLAlchemyError):  # they hear of it with their next lines
            nodes = await anyio.to_thread.run_sync(self._nodes_of, some, limiter=self._limiter)
            self._ringer.ring(Bells(nodes=nodes))

    def _nodes_of(self, job_ids: Collection[str]) -> set[str]:
        query = (
            select(Node.name)
            .join(AttemptPart, AttemptPart.node_id == Node.id)
            .join(Attempt, Attempt.id == AttemptPart.attempt_id)
            .where(AttemptPart.ended_at.is_(None), Attempt.state.in_(LIVE_ATTEMPT))
            .where(Attempt.job_id.in_(job_ids))
        )
        with self._database.read() as session:
            return set(session.scalars(query))


def ship_after(process: Process, job_id: str) -> dict[str, str]:
    """Return the header that says when the next news of a job are wanted; none while somebody
    watches it."""
    pause_s = process.service(Watched).pause_s(job_id)
    return {SHIP_AFTER: f"{pause_s:.0f}"} if pause_s else {}
