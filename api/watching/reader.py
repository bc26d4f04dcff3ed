"""Readers of what may change: one task reads for all viewers, whenever there may be news."""

import asyncio
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

    @abstractmethod
    async def _read(self) -> None:
        """Read the news, and wake all viewers if there are any."""

    async def refresh(self) -> None:
        """Read the news now, and wake all viewers if there are any."""
        async with self._reading:
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
        while not self.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            await asyncio.sleep(self._gather_s)
            self._wake.clear()
            try:
                await self.refresh()
            except SQLAlchemyError as error:
                log.warning("not_read", what=str(self), error=str(error))
            await asyncio.sleep(self._rest_s)
