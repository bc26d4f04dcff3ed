"""Products of the same features with several matrices, as a part of a layer begins."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn


class Products(Protocol):
    """Function that multiplies features (B, T, C) with each matrix of a part of a layer."""

    def __call__(self, x_BTC: Tensor, /, *matrices: nn.Linear) -> Sequence[Tensor]: ...


def one_by_one(x_BTC: Tensor, *matrices: nn.Linear) -> Sequence[Tensor]:
    """Return the product with each matrix."""
    return [matrix(x_BTC) for matrix in matrices]
