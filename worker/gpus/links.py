"""Groups of GPUs that NVLink bridges join. GPUs behind an NVSwitch are of no group: all are equal.

Source of the calls: NVML API reference, "NvLink Methods".
"""

from collections.abc import Sequence
from typing import NamedTuple


class Ends(NamedTuple):
    """PCI addresses of a GPU and of the devices at the other ends of its active NVLinks."""

    address: str
    peers: frozenset[str]


def link_groups(gpus: Sequence[Ends | None]) -> list[int | None]:
    """Return for each slot the lowest slot of the GPUs that it is linked with, over others too.

    None for a slot without a GPU now, or one that is linked with no GPU of another slot. Pure.
    """
    slot_at = {gpu.address.lower(): slot for slot, gpu in enumerate(gpus) if gpu is not None}
    group = list(range(len(gpus)))
    for slot, gpu in enumerate(gpus):
        for peer in gpu.peers if gpu is not None else ():
            other = slot_at.get(peer.lower())
            if other is not None:
                first, last = sorted((group[slot], group[other]))
                group = [first if one == last else one for one in group]
    return [one if group.count(one) > 1 else None for one in group]
