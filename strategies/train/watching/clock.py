"""Clock of a rank's device: on a GPU marks in its queue of kernels, which wait for nothing."""

import time

import torch

Mark = float | torch.cuda.Event
Interval = tuple[Mark, Mark]


class Clock:
    """Clock that tells when the device came to a point of the program."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start = self.mark()

    def mark(self) -> Mark:
        """Return a mark of this moment; on a GPU of the work that it has been given so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device has come to all marks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, mark: Mark) -> float:
        """Return the time from the clock's start to a mark; `settle` comes first."""
        if isinstance(mark, float):
            assert isinstance(self.start, float)
            return mark - self.start
        return float(self.start.elapsed_time(mark)) / 1e3  # type: ignore[union-attr]
