"""Answers that are the same for everybody: computed once, until their key changes."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class AnswerCache(Generic[Answer]):
    """The last answer, and the key that it was computed for. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[Hashable, Answer] | None = None

    def read(self, key: Hashable, work: Callable[[], Answer]) -> Answer:
        """Return the answer for this key; `work` computes it if the last one was for another.

        Other callers wait for it meanwhile, instead of doing the same work in parallel.
        """
        with self._lock:
            if self._last is None or self._last[0] != key:
                self._last = key, work()
            return self._last[1]
