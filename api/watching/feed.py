"""What is new about one job, read once for all who watch it."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.watching.news import News, Position, first_position, read_news
from core.database import Database

Result = TypeVar("Result")

POLL_S = 1.0
REST_S = 0.05  # between two reads of one job: bundles what comes in bursts
BATCHES = 64

log = structlog.get_logger()


class Feed:
    """The newest batches of one job, and the job itself."""

    def __init__(self, database: Database, job_id: str, limiter: anyio.CapacityLimiter) -> None:
        self._database = database
        self._job_id = job_id
        self._limiter = limiter
        self.position = Position()
        self.job = ""
        """`JobView` as JSON; empty before the first read."""
        self.is_over = False
        self.changed = asyncio.Event()
        """Set when there is something new, and replaced by a fresh one."""
        self.num_viewers = 0
        self._batches: OrderedDict[str, News] = OrderedDict()
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def join(self) -> None:
        """One more viewer."""
        self.num_viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self) -> None:
        """One viewer less."""
        self.num_viewers -= 1

    def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """There may be new rows."""
        self._wake.set()

    def tell(self) -> None:
        """Wake all viewers."""
        told, self.changed = self.changed, asyncio.Event()
        told.set()

    def batch_after(self, place: Position) -> News | None:
        """The batch that begins exactly at `place`, if it is still kept."""
        return self._batches.get(place.text)

    async def read(self, ask: Callable[[Session, str], Result]) -> Result:
        """Ask the database, in a thread."""

        def in_thread() -> Result:
            with self._database.read() as session:
                return ask(session, self._job_id)

        return await anyio.to_thread.run_sync(in_thread, limiter=self._limiter)

    async def refresh(self) -> None:
        """Read what is new and tell all viewers."""
        async with self._reading:
            if not self.job:
                _, self.position = await self.read(first_position)
            more = True
            while more and not self.is_over:
                before = self.position
                news = await self.read(partial(read_news, since=before))
                more = news.has_more
                self._take(before, news)

    def _take(self, before: Position, news: News) -> None:
        is_new = news.job != self.job or news.is_over
        if not news.position.is_at(before):
            is_new = True
            self._batches[before.text] = news
            while len(self._batches) > BATCHES:
                self._batches.popitem(last=False)
        self.position, self.job, self.is_over = news.position, news.job, news.is_over
        if is_new:
            self.tell()

    async def _run(self) -> None:
        while not self.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.refresh()
            except SQLAlchemyError as error:
                log.warning("feed_not_read", job=self._job_id, error=str(error))
            await asyncio.sleep(REST_S)
