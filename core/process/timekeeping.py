"""Timekeeping: a process follows the database's clock, so that all processes have one."""

import time
from datetime import datetime, timedelta

import structlog
from sqlalchemy import func, select

from core.base import clock
from core.database.database import Database

EVERY_S = 5.0
TOLD = timedelta(seconds=2)

log = structlog.get_logger()


class Timekeeper:
    """Follower of the database's clock, which it reads now and then. One per process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked_at: float | None = None
        self._is_off = False
        self.doubted = timedelta()
        """Lead of the database's clock over ours, while that is not believed."""

    def look(self) -> None:
        """Follow the database's clock, if the last look is some seconds ago."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < EVERY_S:
            return
        reference = database_time(self._database)
        self._looked_at = now
        self.doubted = clock.follow(reference)
        off = clock.wall_clock() - clock.utc_now()
        if self.doubted:
            log.error(
                "database_clock_leapt",
                seconds=self.doubted.total_seconds(),
                todo="Correct the database's clock; if it is correct, restart this process.",
            )
        if (abs(off) > TOLD) != self._is_off:
            self._is_off = not self._is_off
            log.warning(
                "clock_is_off" if self._is_off else "clock_is_right",
                seconds=round(off.total_seconds(), 1),
                todo="Synchronise this machine's clock with a time server (chrony, "
                "systemd-timesyncd).",
            )


def database_time(database: Database) -> datetime:
    """Return the database's time; with SQLite, which has no clock, this machine's."""
    if database.is_sqlite:
        return clock.wall_clock()
    with database.read() as session:
        now = session.scalar(select(func.clock_timestamp()))
    assert isinstance(now, datetime)
    return now
