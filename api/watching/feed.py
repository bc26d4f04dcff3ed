"""News about one job, read once for all viewers."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from sqlalchemy.orm import Session

from api.watching.news import News, Position, first_position, read_news
from api.watching.reader import Reader
from core.database.database import Database

Result = TypeVar("Result")

POLL_S = 1.0
# A node sends curves and logs at the same moment, and Redis says of both what this process knows
# already: they are read together.
GATHER_S = REST_S = 0.05
BATCHES = 64


class Feed(Reader):
    """The newest batches of one job, and the job itself."""

    def __init__(self, database: Database, job_id: str, limiter: anyio.CapacityLimiter) -> None:
        super().__init__(POLL_S, REST_S, gather_s=GATHER_S)
        self._database = database
        self._job_id = job_id
        self._limiter = limiter
        self.position = Position()
        self.job = ""
        """`JobView` as JSON; empty before the first read."""
        self._batches: OrderedDict[str, News] = OrderedDict()

    def __str__(self) -> str:
        return self._job_id

    def batch_after(self, place: Position) -> News | None:
        """Return the batch that begins exactly at `place`, if it is still kept."""
        return self._batches.get(place.text)

    async def read(self, ask: Callable[[Session, str], Result]) -> Result:
        """Ask the database, in a thread."""

        def in_thread() -> Result:
            with self._database.read() as session:
                return ask(session, self._job_id)

        return await anyio.to_thread.run_sync(in_thread, limiter=self._limiter)

    async def _read(self) -> None:
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
