"""How much memory a rank's training takes at its fullest, to hold against what was planned.

On a GPU the caching allocator keeps count. On a CPU glibc's malloc does, but it only knows what is
taken now: one step is looked at after every operation. Resident memory would count what was freed
long ago, torch's own memory events miss what is freed on a communication thread.
"""

import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.planning.memory import GIB

WEIGHED_STEP = 3  # the first one that finds everything there that the second has made


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
    """What this process has from glibc's malloc, on all its threads."""

    def __init__(self) -> None:
        """Raises AttributeError where the C library keeps no such count (before glibc 2.33)."""
        self.count = ctypes.CDLL(None).mallinfo2
        self.count.restype = MallInfo

    def in_use(self) -> int:
        """Bytes, now."""
        info = self.count()
        return int(info.uordblks + info.hblkhd)


class Highest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks after every operation."""

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
    """Weighs the training that is set up after it. Python, torch and libraries do not count."""

    def __init__(self, device: torch.device, *, is_compiled: bool) -> None:
        """Nothing is weighed on a CPU where layers are compiled: nobody sees their operations."""
        self.device, self.steps = device, 0
        self.num_bytes: int | None = None
        self.malloc = None if is_compiled or device.type != "cpu" else malloc_of_this_process()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if self.malloc is not None:
            gc.collect()
            self.before = self.malloc.in_use()

    def after_setup(self) -> None:
        """Weights, and room for gradients and the optimizer's state, are there."""
        if self.malloc is not None:
            self.held = self.malloc.in_use() - self.before

    @contextmanager
    def next_step(self) -> Iterator[None]:
        """Around every step."""
        self.steps += 1
        if self.malloc is None or self.steps != WEIGHED_STEP:
            yield
            return
        at_begin, highest = self.malloc.in_use(), Highest(self.malloc)
        with highest:
            yield
        # Libraries take memory of their own in the first steps; what was set up is held.
        self.num_bytes = self.held + highest.num_bytes - at_begin

    @property
    def peak_gib(self) -> float | None:
        """The most that this rank's training has held at a time; None where it was not weighed."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / GIB
        return None if self.num_bytes is None else self.num_bytes / GIB


def malloc_of_this_process() -> Malloc | None:
    """None with another C library."""
    try:
        return Malloc()
    except AttributeError:
        return None
