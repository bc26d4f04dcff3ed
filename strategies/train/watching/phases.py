"""Phases of a step: engines announce them; a probe listens during the steps that it measures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


Listener = Callable[[Phase, bool], None]  # True at a phase's begin, False at its end
listeners: list[Listener] = []


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Announce the start and end of a stretch of a phase; takes 1 us without listeners."""
    for listener in listeners:
        listener(name, True)
    yield
    for listener in listeners:
        listener(name, False)
