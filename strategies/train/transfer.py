"""Copies between the host and a device that the host does not wait for."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on a device; on a GPU without waiting for the copy.

    From pinned memory a copy takes its turn in the GPU's queue. torch hands pinned memory out again
    only after the copies from it have ended, so a few buffers take turns.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """Small tensor on its way to the host; the copy does not keep the device from computing."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.to("cpu", non_blocking=True)  # from a GPU to pinned memory
        self.arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self.arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.arrived.record()

    def read(self) -> list[float]:
        """Wait for the copy, but not for what the device was given after it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        numbers: list[float] = self.values.tolist()
        return numbers
