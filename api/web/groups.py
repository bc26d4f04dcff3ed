"""Group commit: what waits to be written is written together, in one transaction.

A commit costs an fsync, and on SQLite the turn of a writer, whether it writes one row or fifty.
Whoever finds nobody writing leads: they write what waits at this moment, their own first. Whoever
comes meanwhile waits, and the first of them leads the next group. So nobody waits for company, and
a request that is alone is a group of one.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST = 64  # in one group, so that other writers get their turn


class _Waiting(Generic[Item, Answer]):
    """An item in line; `woken` is released when it leads, or when it has its answer or error."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.woken = threading.Lock()
        self.woken.acquire()
        self.answers: list[Answer] = []
        self.error: BaseException | None = None


class Groups(Generic[Item, Answer]):
    """Line of items that wait to be written."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._line: list[_Waiting[Item, Answer]] = []
        self._is_led = False

    def __len__(self) -> int:
        """Return the number of items that wait to be written."""
        return len(self._line)

    def write(self, item: Item, write: Callable[[Sequence[Item]], Sequence[Answer]]) -> Answer:
        """Have an item written, by this thread or by one that leads; return its answer.

        `write` writes items in one transaction, and returns an answer for each. If it raises, the
        items of its group are written one by one: an error meets only the item that causes it.
        """
        mine: _Waiting[Item, Answer] = _Waiting(item)
        with self._guard:
            self._line.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.woken.acquire()
        if not (mine.answers or mine.error):
            self._lead(write)
        if mine.error is not None:
            raise mine.error
        return mine.answers[0]

    def _lead(self, write: Callable[[Sequence[Item]], Sequence[Answer]]) -> None:
        with self._guard:
            group, self._line = self._line[:MOST], self._line[MOST:]
        try:
            _write(group, write)
        finally:
            with self._guard:
                self._is_led = bool(self._line)
                if self._line:
                    self._line[0].woken.release()
            for one in group[1:]:
                one.woken.release()


def _write(
    group: Sequence[_Waiting[Item, Answer]],
    write: Callable[[Sequence[Item]], Sequence[Answer]],
) -> None:
    try:
        answers = write([one.item for one in group])
    except BaseException as error:
        if len(group) == 1:
            group[0].error = error
            return
    else:
        for one, answer in zip(group, answers, strict=True):
            one.answers.append(answer)
        return
    for one in group:
        _write([one], write)
