"""Where in a step this rank is: engines say so; a probe listens on the few steps it looks at."""

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
    """One stretch of a phase; costs a microsecond where nobody listens."""
    for listener in listeners:
        listener(name, True)
    yield
    for listener in listeners:
        listener(name, False)
