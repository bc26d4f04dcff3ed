"""kill -9 of a scheduler, an API and the database, and the time until all goes on."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

import psutil
from sqlalchemy import select

from benchmarks.course.houses import House
from benchmarks.scale.crowd import Crowd
from core.base.clock import utc_now
from core.database.database import Database
from core.tables.jobs import Attempt
from core.tables.processes import Leadership

LOOK_S = 0.1
DEADLINE_S = 120.0
POSTGRESQL_RESTARTS_S = 1.0  # a supervisor's pause before it starts a dead server again


@dataclass(frozen=True)
class Recovery:
    """Seconds from a kill until each of these was seen again."""

    killed: str
    heartbeat_s: float
    """Time until every node has had a heartbeat accepted."""
    submission_s: float
    """Time until a submission was acknowledged that was sent after the kill."""
    start_s: float
    """Time until a node was ordered to start a job that was placed after the kill."""

    @property
    def whole_s(self) -> float:
        """Seconds until all of it was seen."""
        return max(self.heartbeat_s, self.submission_s, self.start_s)


async def kill_and_watch(
    name: str,
    kill: Callable[[House], Awaitable[None]],
    house: House,
    crowd: Crowd,
    *,
    watched_s: float,
) -> Recovery:
    """Kill something; watch for `watched_s` seconds how heartbeats, submissions and starts go on.

    Raises TimeoutError if heartbeats or submissions do not within DEADLINE_S.
    """
    await kill(house)
    killed_at, killed = time.monotonic(), utc_now()
    submission = asyncio.ensure_future(crowd.submit())
    heartbeat_s = submission_s = 0.0
    while not (heartbeat_s and submission_s) or time.monotonic() - killed_at < watched_s:
        after = time.monotonic() - killed_at
        if after > DEADLINE_S:
            silent = [node.name for node in crowd.nodes if node.heard_at <= killed_at]
            errors = "; ".join(f"{what}: {n:,}" for what, n in crowd.records.errors.items())
            raise TimeoutError(
                f"after the end of {name}: {len(silent)} nodes are not heard, such as "
                f"{', '.join(silent[:3])}. Errors of the whole run: {errors or 'none'}"
            )
        if not heartbeat_s and all(node.heard_at > killed_at for node in crowd.nodes):
            heartbeat_s = after
        if not submission_s and submission.done():
            submission_s = after
        await asyncio.sleep(LOOK_S)
    await submission
    placed = placed_since(house, killed)
    ordered = [at for node in crowd.nodes for key, at in node.ordered_at.items() if key in placed]
    return Recovery(name, heartbeat_s, submission_s, min(ordered, default=math.inf) - killed_at)


def placed_since(house: House, moment: datetime) -> set[tuple[str, int]]:
    """Return job and epoch of all attempts that were placed after a moment."""
    placed = select(Attempt.job_id, Attempt.epoch).where(Attempt.assigned_at > moment)
    with closing(Database(house.database_url)) as database, database.read() as session:
        return {(job_id, epoch) for job_id, epoch in session.execute(placed)}


async def kill_scheduler(house: House) -> None:
    """Kill the scheduler that leads."""
    database = Database(house.database_url)
    try:
        with database.read() as session:
            holder = session.scalars(select(Leadership.holder)).one()
    finally:
        database.close()
    psutil.Process(int(holder.split(":")[1])).kill()


async def kill_api(house: House) -> None:
    """Kill one of the APIs."""
    house.kill_an_api()


async def kill_database(house: House) -> None:
    """Kill the database's server with all its sessions; start it again a second later."""
    assert house.server is not None
    await asyncio.to_thread(house.server.kill)
    await asyncio.sleep(POSTGRESQL_RESTARTS_S)
    await asyncio.to_thread(house.server.start)
    assert house.server.process is not None
    house.roots["postgresql"] = psutil.Process(house.server.process.pid)
