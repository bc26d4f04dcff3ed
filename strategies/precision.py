"""Precisions as torch sees them."""

import torch

from strategies.spec import Precision

DTYPES = {Precision.FLOAT32: torch.float32, Precision.FLOAT64: torch.float64}


def dtype_of(precision: Precision) -> torch.dtype:
    """The type of weights, gradients and optimizer state; ValueError for one not built yet."""
    if precision not in DTYPES:
        raise ValueError(f"precision {precision} cannot run yet; there is: {', '.join(DTYPES)}")
    return DTYPES[precision]
