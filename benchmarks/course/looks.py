"""Reads that a page makes by itself, without a click, as dashboard/static/looks.js makes them.

One look is made at a time, with a rest after it. Changes that ring all pages at once are read at a
random moment. A busy server is left alone for as long as it asks. A person's clicks go first.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from benchmarks.course.browsers import Browser, Busy

REST_S = 4.0
SPREAD_S = 1.5
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0

Read = Callable[[bool], Awaitable[None]]
"""Function that reads a part; its argument tells the server that the read can wait. Raises Busy."""


@dataclass
class Part:
    """A part of the page; times are those of the event loop."""

    read: Read
    rest_s: float
    due: float = inf
    rested: float = 0.0
    is_asked: bool = False

    @property
    def ready_at(self) -> float:
        """Time from which it may be read."""
        return max(self.due, self.rested)


class Looks:
    """Schedule of the reads that one page makes by itself."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._parts: dict[str, Part] = {}
        self._changed = asyncio.Event()
        self._persons = 0
        self._looking: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._refusals = 0

    def reads(self, name: str, read: Read, *, rest_s: float = REST_S) -> None:
        """Add a part of the page, with the function that reads it."""
        self._parts[name] = Part(read, rest_s)

    def ring(
        self, *names: str, after_s: float = 0.0, spread_s: float = 0.0, is_asked: bool = False
    ) -> None:
        """Let parts be read after `after_s` and a random part of `spread_s` seconds.

        With `is_asked` a person waits for them, so the server is not told that they can wait.
        """
        at = self._now() + after_s + self._browser.chance.random() * spread_s
        for part in map(self._parts.__getitem__, names):
            part.due = min(part.due, at)
            part.is_asked = part.is_asked or is_asked
        self._changed.set()

    async def asked(self, work: Awaitable[Any]) -> Any:
        """Do the work of a person's click; a look under way is cancelled, and made again after
        it."""
        self._persons += 1
        if self._looking is not None:
            self._looking.cancel()
        try:
            return await work
        finally:
            self._persons -= 1
            self._changed.set()

    async def live(self) -> None:
        """Read the parts that are due, until cancelled."""
        while True:
            await self._until_ready()
            begun = self._now()
            due = [part for part in self._parts.values() if part.ready_at <= begun]
            self._looking = asyncio.ensure_future(self._look(due, begun))
            try:
                await asyncio.wait([self._looking])
            except asyncio.CancelledError:
                self._looking.cancel()
                raise
            if not self._looking.cancelled() and (error := self._looking.exception()):
                raise error
            self._looking = None

    async def _until_ready(self) -> None:
        while True:
            self._changed.clear()
            next_at = min((part.ready_at for part in self._parts.values()), default=inf)
            wait_s = max(next_at, self._not_before) - self._now()
            if not self._persons and wait_s <= 0:
                return
            timeout = None if self._persons or wait_s == inf else wait_s
            with contextlib.suppress(TimeoutError):  # wait_for of Python 3.11 may lose a cancel()
                async with asyncio.timeout(timeout):
                    await self._changed.wait()

    async def _look(self, due: list[Part], begun: float) -> None:
        part = due[0]
        try:
            for part in due:
                part.due = inf
                await part.read(not part.is_asked)
                part.is_asked = False
            self._refusals = 0
        except asyncio.CancelledError:
            part.due = begun
            raise
        except Busy as busy:
            part.due = begun
            self._refusals += 1
            wait_s = busy.wait_s or FIRST_WAIT_S * 2 ** (self._refusals - 1)
            spread = 1 + self._browser.chance.random()
            self._not_before = self._now() + min(wait_s, LONGEST_WAIT_S) * spread
        now = self._now()
        for one in due:
            if one.due > begun:
                one.rested = now + max(one.rest_s, now - begun)
        self._not_before = max(self._not_before, now + (now - begun))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
