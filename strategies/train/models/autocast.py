"""Types by torch's autocast, and code that it must leave alone."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def as_autocast_wants(x: Tensor) -> Tensor:
    """Return a tensor in the type that autocast gives matrix products; without it, unchanged."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast changes no type on the tensor's device."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
