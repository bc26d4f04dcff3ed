"""Resources of one API process, and access of its requests to the database.

Handlers read in one `with process.read()`, and write by `process.transact(work, ...)`, which
commits before the answer leaves and tries again after a deadlock. A session that is a FastAPI
dependency would be opened in one thread of the pool and used in another; forty requests that wait
for SQLite's writer lock would then hold every thread, and the one that has the lock would find
none to run in.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.web.bells import Bells, Ringer
from api.web.rate_limits import RateLimits
from core.base.clock import utc_now
from core.database.database import Database
from core.process import read_only
from core.process.settings import ApiSettings
from core.process.timekeeping import Timekeeper
from core.tables.topics import topics_of
from core.wire.doorbell import Topic

Answer = TypeVar("Answer")
Service = TypeVar("Service")
P = ParamSpec("P")
DEADLOCKS = ("40P01", "40001")  # deadlock, serialization failure: nothing was written
PAUSES_S = (0.05, 0.2)  # the most that is waited before the second and the third try


@dataclass(frozen=True)
class Process:
    """Resources of an API process; made once in `create_app`, found by handlers through
    ProcessDep."""

    settings: ApiSettings
    database: Database
    ringer: Ringer
    limits: RateLimits
    timekeeper: Timekeeper
    services: Mapping[type[object], object]
    """Resources of single rooms, such as the store: by class, one of each."""
    wake: Callable[[Collection[str], Collection[Topic]], None]
    """Told after each write: the jobs and the topics that changed."""

    def service(self, kind: type[Service]) -> Service:
        """Return this process's only instance of a class; KeyError if it has none."""
        found = self.services[kind]
        assert isinstance(found, kind)
        return found

    def read(self) -> AbstractContextManager[Session]:
        """Return a session that never writes, for one `with`."""
        return self.database.read()

    @contextmanager
    def _write(self, *, first: bool) -> Iterator[tuple[Session, Bells]]:
        """Yield a session that commits at the end of the block, and bells that ring after it."""
        bells = Bells()
        with self.database.write(first=first) as session:
            read_only.refuse(session, now=utc_now())
            yield session, bells
        bells.topics |= topics_of(session)
        self.wake(bells.jobs, bells.topics)
        self.ringer.ring(bells)

    def transact(
        self,
        work: Callable[Concatenate[Session, Bells, P], Answer],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        """Run `work(session, bells, ...)` in one write transaction and return its answer. After a
        deadlock it is tried again, twice at most, so it must change nothing but rows."""
        return self._until_done(lambda *both: work(*both, *args, **kwargs), first=False)

    def transact_first(
        self,
        work: Callable[Concatenate[Session, Bells, P], Answer],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        """Do what `transact` does, before other writers that wait (`Database.write`)."""
        return self._until_done(lambda *both: work(*both, *args, **kwargs), first=True)

    def _until_done(self, work: Callable[[Session, Bells], Answer], *, first: bool) -> Answer:
        for pause_s in PAUSES_S:
            try:
                with self._write(first=first) as (session, bells):
                    return work(session, bells)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in DEADLOCKS:
                    raise
            time.sleep(pause_s * random.random())
        with self._write(first=first) as (session, bells):
            return work(session, bells)

    def record(
        self,
        work: Callable[Concatenate[Session, P], object],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Run `work(session, ...)` in a write transaction of its own, for rows that a request
        leaves but does not answer with; while the platform is read-only, skip it."""
        with self.database.write() as session:
            if read_only.state(session, now=utc_now()) is None:
                work(session, *args, **kwargs)

    @property
    def url(self) -> str:
        """Address that users type into the browser, without a slash at its end."""
        return self.settings.url

    @property
    def is_https(self) -> bool:
        """True if browsers reach the API over TLS."""
        return urlsplit(self.url).scheme == "https"


async def process_of(request: Request) -> Process:
    """Return the process that answers this request."""
    process = request.app.state.process
    assert isinstance(process, Process)
    return process


ProcessDep = Annotated[Process, Depends(process_of)]
