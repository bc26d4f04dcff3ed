"""Copy of the state in the host's memory, from which a thread writes while training goes on.

Its memory is allocated at the first checkpoint and used for every later one. For a GPU it is
pinned, so that the copies run at the speed of the bus, beside the host and without a buffer of the
driver's in between.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from strategies.train.checkpoints.fragment import Fragment
from strategies.train.engine import State


class HostCopy:
    """One copy of the state of this rank, taken again and again."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_pinned = device, device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        if self.is_pinned:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.copied: torch.cuda.Event | None = None
        self.state: State = {}
        self.being_read: State = {}
        """State that a GPU still copies: parts of it may be held by nothing else."""

    @torch.no_grad()
    def take(self, state: State) -> State:
        """Begin to copy `state`; return the copy, to be read after `wait`.

        Only one may be in use, and all must have the same tensors. On a GPU the copy is made beside
        whatever comes next: call `before_update` before the state changes.
        """
        if not self.state:
            self.state = {part: self._twins(tensors) for part, tensors in state.items()}
        if self.stream is None:
            self._copy(state)
            return self.state
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._copy(state)
            self.copied = self.stream.record_event()
        self.being_read = state
        return self.state

    def before_update(self) -> None:
        """Let the GPU wait for the copy before it does what it is told from now on; this thread
        does not wait."""
        if self.being_read:
            assert self.copied is not None
            torch.cuda.current_stream(self.device).wait_event(self.copied)
            self.being_read = {}

    def _twins(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: host_twin(t, pinned=self.is_pinned) for name, t in tensors.items()}

    def _copy(self, state: State) -> None:
        for part, tensors in state.items():
            for name, tensor in tensors.items():
                twin = self.state[part][name]
                numbers_of(twin).copy_(numbers_of(tensor), non_blocking=self.is_pinned)

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self.copied is not None:
            self.copied.synchronize()

    @property
    def num_bytes(self) -> int:
        """Bytes of the host's memory that the copy takes."""
        return sum(
            numbers_of(twin).nbytes for tensors in self.state.values() for twin in tensors.values()
        )


def numbers_of(tensor: Tensor) -> Tensor:
    """Return the numbers that this rank holds, as a plain tensor on the same storage."""
    if isinstance(tensor, Fragment):
        return tensor.numbers
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def host_twin(tensor: Tensor, *, pinned: bool) -> Tensor:
    """Return a copy of a tensor in the host's memory, with the same place in the whole."""
    twin = tensor.detach().to("cpu", copy=True)
    if not pinned:
        return twin
    if isinstance(twin, Fragment):
        twin.numbers = twin.numbers.pin_memory()
    elif isinstance(twin, DTensor):
        twin._local_tensor = twin._local_tensor.pin_memory()
    else:
        twin = twin.pin_memory()
    return twin
