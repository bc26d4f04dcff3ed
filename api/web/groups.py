"""Group commit: what waits to be written is written together, in one transaction.

A commit costs an fsync, and on SQLite the turn of a writer, whether it writes one row or fifty.
What comes while nobody writes is written at once, by a thread of the group's own; what comes
meanwhile waits, and is the next group. So nobody waits for company, a request that is alone is a
group of one, and those that wait hold no thread. What only reads, such as a plan, can wait the same
way: a session, a statement and the interpreter's turn are paid once for all.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

from core.base.errors import ServiceError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
P = ParamSpec("P")
Write = Callable[[Sequence[Item]], Sequence[Answer]]

MOST = 64  # in one group, so that other writers get their turn


class Groups(Generic[Item, Answer]):
    """Line of items that wait to be written. Only its event loop touches it."""

    def __init__(self) -> None:
        self._line: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=type(self).__name__)

    def __len__(self) -> int:
        """Return the number of items that wait to be written."""
        return len(self._line)

    async def write(self, item: Item, write: Write[Item, Answer]) -> Answer:
        """Have an item written with those that wait at this moment; return its answer.

        `write` writes items in one transaction, and returns an answer for each. If it raises, the
        items of its group are written one by one: an error meets only the item that causes it.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._line.append((item, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(write))
        return await answer

    async def _write_all(self, write: Write[Item, Answer]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._line:
                group, self._line = self._line[:MOST], self._line[MOST:]
                items = [item for item, _ in group]
                outcomes = await loop.run_in_executor(self._thread, _written, items, write)
                for (_, answer), (found, error) in zip(group, outcomes, strict=True):
                    if answer.cancelled():
                        continue
                    if error is None:
                        answer.set_result(*found)
                    else:
                        answer.set_exception(error)
        finally:
            self._writing = None


def attempt(work: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer | ServiceError:
    """Return what `work` returns, or its refusal, so that one of a group is refused alone."""
    try:
        return work(*args, **kwargs)
    except ServiceError as refusal:
        return refusal


def _written(
    items: Sequence[Item], write: Write[Item, Answer]
) -> Sequence[tuple[Sequence[Answer], Exception | None]]:
    """Return the answer of each item, alone in a sequence, or its error."""
    try:
        return [([answer], None) for answer in write(items)]
    except Exception as error:
        if len(items) == 1:
            return [([], error)]
    return [outcome for item in items for outcome in _written([item], write)]
