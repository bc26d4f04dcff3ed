"""Look at the watched jobs that wait: at all of them at once, and only what has changed is read.

A job that waits has nothing that reports about it. Hundreds of such feeds that each asked once a
second kept live ones waiting for 14 s.
"""

from collections.abc import Mapping, Sequence

import anyio

from api.watching.feed import POLL_S, Feed
from api.watching.news import Mark, marks_of
from api.watching.reader import Reader
from core.database.database import Database

A_QUERY = 500  # jobs


class WaitingJobs(Reader):
    """One look a second at all feeds of jobs that wait, which wakes those with news."""

    def __init__(
        self, database: Database, feeds: Mapping[str, Feed], limiter: anyio.CapacityLimiter
    ) -> None:
        super().__init__(POLL_S, rest_s=0.0)
        self._database = database
        self._feeds = feeds
        self._limiter = limiter

    def __str__(self) -> str:
        return "jobs that wait"

    async def _read(self) -> None:
        marks = {feed.job_id: feed.mark for feed in self._feeds.values() if feed.mark is not None}
        if not marks:
            return
        now = await anyio.to_thread.run_sync(self._marks, [*marks], limiter=self._limiter)
        for job_id, mark in marks.items():
            feed = self._feeds.get(job_id)
            if feed is not None and now.get(job_id) != mark:
                feed.wake()

    def _marks(self, job_ids: Sequence[str]) -> dict[str, Mark]:
        found: dict[str, Mark] = {}
        with self._database.read() as session:
            for start in range(0, len(job_ids), A_QUERY):
                found |= marks_of(session, job_ids[start : start + A_QUERY])
        return found
