"""What one API process holds, and how a request reads and changes the database.

Handlers open their session themselves, in one `with`, and the commit is the end of that block: it
is over before the answer leaves. A session that is a FastAPI dependency would be opened in one
thread of the pool and used in another; forty requests that wait for SQLite's writer lock would then
hold every thread, and the one that has the lock would find none to run in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.bells import Bells, Ringer
from api.hub import Hub
from api.plan_cache import PlanCache
from api.rate_limits import RateLimits
from api.store import Store
from core.database import Database
from core.policy import Policy, Timetable
from core.settings import ApiSettings


@dataclass(frozen=True)
class Process:
    """One per API process; made in `create_app`, found by handlers through ProcessDep."""

    settings: ApiSettings
    database: Database
    store: Store
    ringer: Ringer
    limits: RateLimits
    plans: PlanCache
    hub: Hub
    policy: Policy = field(default_factory=Policy)
    timetable: Timetable = field(default_factory=Timetable)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that never writes."""
        with self.database.read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[tuple[Session, Bells]]:
        """A session that commits at the end of the block, and bells that ring after it."""
        bells = Bells()
        with self.database.write() as session:
            yield session, bells
        self.hub.wake_soon(bells.jobs)
        self.ringer.ring(bells)

    @property
    def url(self) -> str:
        """What users type into the browser, without a slash at its end."""
        given = self.settings.public_url.rstrip("/")
        return given or f"http://{self.settings.host}:{self.settings.port}"

    @property
    def is_https(self) -> bool:
        """Whether browsers reach us over TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def first_start_link(self) -> Path:
        """Where the first-start link is written, readable by this user alone."""
        return self.settings.store.parent / "first-start-link"


async def process_of(request: Request) -> Process:
    """The process that answers this request."""
    process = request.app.state.process
    assert isinstance(process, Process)
    return process


ProcessDep = Annotated[Process, Depends(process_of)]
