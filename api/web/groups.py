"""Group commit: what waits to be written is written together, in one transaction.

A commit costs an fsync, and on SQLite the turn of a writer, whether it writes one row or fifty.
What comes while nobody writes is written at once, by a thread of the group's own; what comes
meanwhile waits, and is the next group. So nobody waits for company, a request that is alone is a
group of one, and those that wait hold no thread. What only reads, such as a plan, can wait the same
way: a session, a statement and the interpreter's turn are paid once for all.

Where the items of one line go on to another, such as jobs that are planned and then queued, the
second waits for those that the first is at work on: a transaction for eight jobs costs little more
than one for three, and would share the interpreter with the next plans anyway.

What nobody looks at the clock for does wait for company: the messages of nodes. Many that come one
by one, none while another is written, would each be a transaction, which costs ten times as much as
one more message in it. So their writer rests for some times as long as it has written (`RESTS`),
or until a COMPANY waits. The busier the machine, the longer a transaction, and the larger the next
group.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from core.base.errors import ServiceError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
P = ParamSpec("P")
Write = Callable[[Sequence[Item]], Sequence[Answer]]

MOST = 64  # in one group, so that other writers get their turn
COMPANY = 8  # items for which a transaction is cheap


class Groups(Generic[Item, Answer]):
    """Line of items that wait to be written. Only its event loop touches it."""

    RESTS: ClassVar[float] = 0.0
    """Length of the rest after a group, as a multiple of the time that its writing took."""

    def __init__(self, feeder: "Groups[Any, Any] | None" = None) -> None:
        """Open the line; `feeder` is the one from which its items come."""
        self._feeder = feeder
        self._at_rest = asyncio.Event()
        """Set while no group is written."""
        self._at_rest.set()
        self._line: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._company: asyncio.Future[None] | None = None
        """What a rest waits for."""
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
        if len(self._line) == COMPANY and self._company is not None:
            self._company.set_result(None)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(write))
        return await answer

    async def _write_all(self, write: Write[Item, Answer]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._line:
                if self._feeder is not None:
                    await self._feeder._at_rest.wait()
                group, self._line = self._line[:MOST], self._line[MOST:]
                items = [item for item, _ in group]
                begun = loop.time()
                self._at_rest.clear()
                outcomes = await loop.run_in_executor(self._thread, _written, items, write)
                for (_, answer), (found, error) in zip(group, outcomes, strict=True):
                    if answer.cancelled():
                        continue
                    if error is None:
                        answer.set_result(*found)
                    else:
                        answer.set_exception(error)
                self._at_rest.set()  # after the answers, so that those who got one go first
                await self._rest(self.RESTS * (loop.time() - begun))
        finally:
            self._at_rest.set()
            self._writing = None

    async def _rest(self, longest_s: float) -> None:
        """Wait for company."""
        if not longest_s or len(self._line) >= COMPANY:
            return
        self._company = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._company}, timeout=longest_s)
        finally:
            self._company = None


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
