"""Processors of the worker's own work: uploads, hashes and preparations slow no owner's share.

The agent's thread is left out. It does little, and processes that it starts, whose attempts may
have the whole node, would inherit its processors.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable

from worker.node.attempts import Share


def left_by(shares: Iterable[Share], usable: Collection[int]) -> set[int]:
    """Return the processors of `usable` that belong to no share; all if none is left."""
    left = set(usable).difference(*(share.cpus for share in shares))
    return left or set(usable)


class OwnCores:
    """Processors that the threads of this worker may use now."""

    def __init__(self, usable: Collection[int]) -> None:
        self._usable = set(usable)
        self._now = set(usable)

    def leave(self, shares: Iterable[Share]) -> None:
        """Keep all threads but the calling one off the processors of these shares."""
        cpus = left_by(shares, self._usable)
        if cpus == self._now:
            return
        self._now = cpus
        for name in os.listdir("/proc/self/task"):
            if int(name) != threading.get_native_id():
                self.hold(int(name))

    def hold(self, thread: int | None) -> None:
        """Keep a thread, by its native id, where the others are."""
        if thread is not None:
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(thread, self._now)
