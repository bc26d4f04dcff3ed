"""Time for which a rank's device stands still until a collective ends, during one step.

Communication that overlaps computation costs nothing. What costs is the wait for its end, of the
thread on a CPU, of the stream of kernels on a GPU. A profiler finds it too, but on GPUs slows the
steps after it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed import _functional_collectives

from strategies.train.watching.clock import Clock, Interval, Mark
from strategies.train.watching.phases import Phase


class Waits:
    """Waits between `watching`'s begin and end, marked where torch makes them.

    These are `Work.wait`, `wait_tensor`, a stream's `wait_event`, and what
    DistributedDataParallel does in C++ after the last node of a backward pass.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.intervals: list[Interval] = []
        self.is_queued = False
        self.passes_ended: Mark | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Mark each wait while this runs."""
        with ExitStack() as stack:
            if dist.is_available() and dist.is_initialized():
                stack.enter_context(self.marked(dist.Work, "wait"))
                stack.enter_context(self.marked(_functional_collectives, "wait_tensor"))
            if self.clock.device.type == "cuda":
                compute = torch.cuda.current_stream(self.clock.device)
                stack.enter_context(self.marked(torch.cuda.Stream, "wait_event", only=compute))
            yield

    @contextmanager
    def marked(self, owner: Any, name: str, only: object = None) -> Iterator[None]:
        """Mark the calls of a function; those of a method for the object `only`, if one is
        given."""
        wait: Callable[..., object] = getattr(owner, name)

        def wait_and_mark(*arguments: object, **options: object) -> object:
            if only is not None and arguments[0] != only:
                return wait(*arguments, **options)
            begin = self.clock.mark()
            result = wait(*arguments, **options)
            self.intervals.append((begin, self.clock.mark()))
            return result

        setattr(owner, name, wait_and_mark)
        try:
            yield
        finally:
            setattr(owner, name, wait)

    def in_backward(self) -> None:
        """Called by a backward pass: mark the end of its last node."""
        if not self.is_queued and dist.is_available() and dist.is_initialized():
            self.is_queued = True
            # Callbacks run in order, and DistributedDataParallel's comes with its last gradient.
            Variable._execution_engine.queue_callback(self.mark_end_of_passes)

    def mark_end_of_passes(self) -> None:
        self.passes_ended = self.clock.mark()

    def __call__(self, phase: Phase, begins: bool) -> None:
        """Count as a wait what a backward pass does after its last node."""
        if begins or phase is not Phase.BACKWARD:
            return
        if self.passes_ended is not None:
            self.intervals.append((self.passes_ended, self.clock.mark()))
        self.passes_ended, self.is_queued = None, False

    def seconds(self) -> float:
        """Return the time of all waits, that of waits within waits once; `settle` comes first."""
        at = self.clock.seconds
        return covered((at(begin), at(end)) for begin, end in self.intervals)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, -float("inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
