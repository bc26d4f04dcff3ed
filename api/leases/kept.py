"""What is the same for everybody who asks: worked out once, until something of it changes."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Kept(Generic[Answer]):
    """The last answer, and the word that it was given for. From any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[Hashable, Answer] | None = None

    def read(self, word: Hashable, work: Callable[[], Answer]) -> Answer:
        """Return the answer for this word; `work` gives it if the last one was for another.

        Who asks meanwhile waits for it, instead of doing the same work beside.
        """
        with self._lock:
            if self._last is None or self._last[0] != word:
                self._last = word, work()
            return self._last[1]
