"""Questions of machines that must be answered under any load."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from core.base.errors import Unavailable

Answer = TypeVar("Answer")

WITHIN_S = 5.0


class Look(Generic[Answer]):
    """A question with a thread of its own; one answer serves all who ask meanwhile."""

    def __init__(self, ask: Callable[[], Answer], *, keep_s: float = 0.0) -> None:
        self._ask = ask
        self._keep_s = keep_s
        """Seconds for which an answer is given again."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._asked_at = 0.0
        self._answer: Future[Answer] | None = None

    async def take(self) -> Answer:
        """Return the answer. Raises the question's own errors, and Unavailable if it takes too
        long."""
        now = time.monotonic()
        last = self._answer
        if last is None or (last.done() and now - self._asked_at >= self._keep_s):
            self._asked_at = now
            self._answer = last = self._thread.submit(self._ask)
        try:
            async with asyncio.timeout(WITHIN_S):
                return await asyncio.shield(asyncio.wrap_future(last))
        except TimeoutError as error:
            raise Unavailable(f"The database did not answer within {WITHIN_S:.0f} s.") from error
