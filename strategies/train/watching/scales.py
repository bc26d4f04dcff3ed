"""Peak memory of a rank's training, to compare with the plan.

On a GPU the caching allocator keeps count. On a CPU glibc's malloc does, but it only knows the
current amount, so during one step it is read after every operation. Resident memory would include
memory that was freed long ago, and torch's own memory events miss tensors freed on a communication
thread.
"""

import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.plan.estimates.memory import GIB

WEIGHED_STEP = 3  # the first step at whose start everything that step 2 allocated exists


class MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Malloc:
    """Bytes that this process has allocated from glibc's malloc, on all its threads."""

    def __init__(self) -> None:
        """Raise AttributeError if the C library keeps no such count (before glibc 2.33)."""
        self.count = ctypes.CDLL(None).mallinfo2
        self.count.restype = MallInfo

    def in_use(self) -> int:
        """Return the bytes allocated at this moment."""
        info = self.count()
        return int(info.uordblks + info.hblkhd)


class Highest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that reads malloc's count after every operation and keeps the maximum."""

    def __init__(self, malloc: Malloc) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.malloc = malloc
        self.num_bytes = malloc.in_use()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.num_bytes = max(self.num_bytes, self.malloc.in_use())
        return result


class Scales:
    """Memory measurement of the training that is set up after it is created.

    Memory of Python, torch and libraries is not counted.
    """

    def __init__(self, device: torch.device, *, is_compiled: bool) -> None:
        """Start the measurement; a CPU run with compiled layers is not measured.

        Operations inside compiled layers are not dispatched one by one, so no reading is possible
        there.
        """
        self.device, self.steps = device, 0
        self.num_bytes: int | None = None
        self.malloc = None if is_compiled or device.type != "cpu" else malloc_of_this_process()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if self.malloc is not None:
            gc.collect()
            self.before = self.malloc.in_use()

    def after_setup(self) -> None:
        """Take a reading once weights, gradients and optimizer state have been allocated."""
        if self.malloc is not None:
            self.held = self.malloc.in_use() - self.before

    @contextmanager
    def next_step(self) -> Iterator[None]:
        """Wrap every step; measure step WEIGHED_STEP."""
        self.steps += 1
        if self.malloc is None or self.steps != WEIGHED_STEP:
            yield
            return
        at_begin, highest = self.malloc.in_use(), Highest(self.malloc)
        with highest:
            yield
        # Libraries allocate memory of their own in the first steps, so the set-up part is the one
        # measured before them.
        self.num_bytes = self.held + highest.num_bytes - at_begin

    @property
    def peak_gib(self) -> float | None:
        """Peak memory of this rank's training in GiB; None if it was not measured."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / GIB
        return None if self.num_bytes is None else self.num_bytes / GIB


def malloc_of_this_process() -> Malloc | None:
    """Return glibc's malloc count, or None with another C library."""
    try:
        return Malloc()
    except AttributeError:
        return None
