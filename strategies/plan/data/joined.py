"""Arrays one after the other, as one. Nothing is copied: each may be a map of a file, or an
index (`indexed.py`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class JoinedArrays:
    """Numbers of one type, of several arrays laid end to end; read by their places."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays
        self.starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the numbers at some places, in the shape of `places`."""
        found = np.empty(places.shape, self.arrays[0].dtype)
        owners = np.searchsorted(self.starts, places, "right") - 1
        for owner in np.unique(owners):
            here = owners == owner
            found[here] = self.arrays[owner][places[here] - self.starts[owner]]
        return found


def joined(arrays: Sequence[Any]) -> Any:
    """Return arrays as one, which is the array itself if there is only one."""
    return arrays[0] if len(arrays) == 1 else JoinedArrays(arrays)
