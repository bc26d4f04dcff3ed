"""Readers of what may change: one task reads for all viewers, whenever there may be news."""

import asyncio
import math
from abc import ABC, abstractmethod
from contextlib import suppress

import structlog
from sqlalchemy.exc import SQLAlchemyError

log = structlog.get_logger()


class Reader(ABC):
    """A reader that works while somebody watches: when it is woken, and after `poll_s` of
    silence."""

    is_over = False
    """True once nothing can change any more."""

    def __init__(self, poll_s: float, rest_s: float, *, gather_s: float = 0.0) -> None:
        """Set the pauses: `rest_s` lies between two readings, `gather_s` between what wakes the
        reader and the reading, which then has all that belongs together."""
        self.num_viewers = 0
        self.changed = asyncio.Event()
        """Event that is set when there is something new, and then replaced by a fresh one."""
        self._poll_s, self._rest_s, self._gather_s = poll_s, rest_s, gather_s
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_kept_up = False
        self._began_at = -math.inf

    @abstractmethod
    async def _read(self) -> None:
        """Read the news, and wake all viewers if there are any."""

    async def refresh(self, *, since: float = math.inf) -> None:
        """Read the news now, and wake all viewers if there are any.

        Do nothing if a reading has ended that began at `since`, of the loop's time, or later: those
        who come together need one reading between them.
        """
        async with self._reading:
            if self._is_kept_up and self._began_at >= since:
                return
            self._began_at = asyncio.get_running_loop().time()
            await self._read()
            self._is_kept_up = True

    async def begin(self) -> None:
        """Read for a viewer who has joined, unless the reader is kept up to date for others."""
        async with self._reading:
            if not self._is_kept_up:
                await self._read()
                self._is_kept_up = True

    def join(self) -> None:
        """Add a viewer."""
        self.num_viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self) -> None:
        """Remove a viewer."""
        self.num_viewers -= 1
        if self.num_viewers == 0:
            self.stop()

    def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._is_kept_up = False

    def wake(self) -> None:
        """Read again soon: there may be something new."""
        self._wake.set()

    def tell(self) -> None:
        """Wake all viewers."""
        told, self.changed = self.changed, asyncio.Event()
        told.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        joined_at = loop.time()
        while not self.is_over:
            due_at = max(joined_at, self._began_at) + self._poll_s
            if loop.time() < due_at and not self._wake.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due_at):
                        await self._wake.wait()
                continue  # unless it was woken, somebody may have read meanwhile
            await asyncio.sleep(self._gather_s)
            self._wake.clear()
            try:
                await self.refresh()
            except SQLAlchemyError as error:
                log.warning("not_read", what=str(self), error=str(error))
            await asyncio.sleep(self._rest_s)
