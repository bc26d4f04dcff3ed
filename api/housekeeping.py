"""Housekeeping: old idempotency keys, links and files are deleted a few times a day."""

import asyncio
import os
import socket
from datetime import datetime, timedelta

import anyio
import structlog
from sqlalchemy import delete
from sqlalchemy.exc import SQLAlchemyError

from api.files.arrival import Arrivals
from api.files.resumable import forget_abandoned
from api.files.retention import Retention
from api.files.store import Store
from api.web.process import Process
from core.base.clock import utc_now
from core.database.database import Database
from core.process import read_only
from core.process.timekeeping import EVERY_S
from core.tables.people import Link
from core.tables.processes import IdempotentAnswer

HOUSE_EVERY_S = 6 * 3600.0
KEYS_LIVE = timedelta(days=7)  # how long a repeated request still finds its first answer
LINKS_LIVE = timedelta(days=7)  # after they expired: until then an error can say so

log = structlog.get_logger()


async def keep_house(process: Process) -> None:
    """Delete old idempotency keys and links, and files by the retention rules, until cancelled."""
    holder = f"{socket.gethostname()}:{os.getpid()}"
    retention = Retention(process.database, process.service(Store), process.settings, holder)
    while True:
        try:
            await anyio.to_thread.run_sync(forget_old, process.database, utc_now())
            await anyio.to_thread.run_sync(
                forget_abandoned, process.database, process.service(Arrivals), utc_now()
            )
            await anyio.to_thread.run_sync(retention.run, utc_now())
        except (SQLAlchemyError, OSError) as error:
            log.warning("house_not_kept", error=str(error))
        await asyncio.sleep(HOUSE_EVERY_S)


async def keep_time(process: Process) -> None:
    """Follow the database's clock, until cancelled. While the database is away the local clock
    counts on."""
    while True:
        try:
            await anyio.to_thread.run_sync(process.timekeeper.look)
        except SQLAlchemyError as error:
            log.warning("time_not_kept", error=str(error).splitlines()[0])
        await asyncio.sleep(EVERY_S)


def forget_old(database: Database, now: datetime) -> None:
    """Delete idempotency keys and links that are past their time; nothing while read-only."""
    with database.write() as session:
        if read_only.state(session, now=now) is not None:
            return
        session.execute(
            delete(IdempotentAnswer).where(IdempotentAnswer.created_at < now - KEYS_LIVE)
        )
        session.execute(delete(Link).where(Link.expires_at < now - LINKS_LIVE))
