"""First viewers of jobs that wait: those who come together are read for together.

A class that opens its pages at once, or comes back after a restart, watches hundreds of jobs that
have nothing but a few events. Each was four queries and a turn of a thread.
"""

from collections.abc import Sequence

from api.watching.news import News, news_of_untried
from api.web.groups import Groups
from core.database.database import Database


class Arrivals(Groups[str, News | None]):
    """Jobs of this process whose first viewers wait for the news."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def news_of(self, job_id: str) -> News | None:
        """Return the news of a job from the start; None unless it waits for its first attempt."""
        return await self.write(job_id, self._read)

    def _read(self, job_ids: Sequence[str]) -> Sequence[News | None]:
        with self._database.read() as session:
            found = news_of_untried(session, job_ids)
        return [found.get(job_id) for job_id in job_ids]
