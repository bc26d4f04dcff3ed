"""News about one job, read once for all viewers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from sqlalchemy.orm import Session

from api.watching.arrivals import Arrivals
from api.watching.news import Mark, News, Position, first_news, first_position, read_news
from api.watching.reader import Reader
from core.database.database import Database

Result = TypeVar("Result")

POLL_S = 1.0
WAITING_POLL_S = 30.0  # `waiting_jobs.py` looks at jobs that wait, at all of them in one query
# A node sends curves and logs at the same moment, and Redis says of both what this process knows
# already: they are read together.
GATHER_S = REST_S = 0.05
BATCHES = 64


class Feed(Reader):
    """The newest batches of one job, and the job itself.

    Those who come together share what is read for them: where they begin, and what they missed.
    """

    def __init__(
        self,
        database: Database,
        job_id: str,
        limiter: anyio.CapacityLimiter,
        catching_up: anyio.CapacityLimiter,
        arrivals: Arrivals,
    ) -> None:
        """Set the threads that read: `limiter` for all viewers, `catching_up` for new ones, and
        `arrivals` for the first viewers of jobs that wait."""
        super().__init__(POLL_S, REST_S, gather_s=GATHER_S)
        self.job_id = job_id
        self.position = Position()
        self.job = ""
        """`JobView` as JSON; empty before the first read."""
        self.mark: Mark | None = None
        """Mark of the job at the last reading, while it waits."""
        self._database = database
        self._limiter, self._catching_up, self._arrivals = limiter, catching_up, arrivals
        self._batches: OrderedDict[str, News] = OrderedDict()
        self._opening: tuple[bytes, Position] | None = None
        self._turn = asyncio.Lock()  # of those who catch up

    def __str__(self) -> str:
        return self.job_id

    def batch_after(self, place: Position) -> News | None:
        """Return the batch that begins exactly at `place`, if it is still kept."""
        return self._batches.get(place.text)

    async def open(self) -> tuple[bytes, Position]:
        """Return the last lines of the logs and the position after them, at which a new viewer
        begins. The feed is not behind it."""
        async with self._turn:
            opening = self._opening
            if self.job and (opening is None or self.batch_after(opening[1]) is None):
                opening = self._opening = await self._ask(first_position, self._catching_up)
            if opening is None or self.batch_after(opening[1]) is None:
                await self.refresh()
                opening = self._opening
        assert opening is not None
        return opening

    async def missed(self, place: Position, until: Position) -> News:
        """Return the news between two positions."""
        async with self._turn:
            news = self.batch_after(place)
            if news is None:
                ask = partial(read_news, since=place, until=until)
                news = await self._ask(ask, self._catching_up)
                if not news.position.is_at(place):
                    self._keep(place, news)
        return news

    async def _ask(
        self, ask: Callable[[Session, str], Result], limiter: anyio.CapacityLimiter
    ) -> Result:
        """Ask the database, in a thread."""

        def in_thread() -> Result:
            with self._database.read() as session:
                return ask(session, self.job_id)

        return await anyio.to_thread.run_sync(in_thread, limiter=limiter)

    async def _read(self) -> None:
        more = True
        if not self.job:
            payload, before, news = await self._first_news()
            self._opening, more = (payload, before), news.has_more
            self._take(before, news)
        while more and not self.is_over:
            before = self.position
            news = await self._ask(partial(read_news, since=before), self._limiter)
            more = news.has_more
            self._take(before, news)

    async def _first_news(self) -> tuple[bytes, Position, News]:
        news = await self._arrivals.news_of(self.job_id)
        if news is not None:
            return b"", Position(), news
        return await self._ask(first_news, self._catching_up)

    def _take(self, before: Position, news: News) -> None:
        is_new = news.job != self.job or news.is_over
        if not news.position.is_at(before):
            is_new = True
            self._keep(before, news)
        self.position, self.job, self.is_over = news.position, news.job, news.is_over
        self.mark = news.mark
        self._poll_s = POLL_S if self.mark is None else WAITING_POLL_S
        if is_new:
            self.tell()

    def _keep(self, place: Position, news: News) -> None:
        self._batches[place.text] = news
        while len(self._batches) > BATCHES:
            self._batches.popitem(last=False)
