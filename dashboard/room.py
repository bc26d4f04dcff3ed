"""Room on nodes of which parts are leased: who has them, and the largest free block. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard.views import Availability, Node

HOURS = 24
"""Hours from now on that are looked at."""


@dataclass(frozen=True)
class FreeBlock:
    """GPUs of a node that are free together for some hours from a start on."""

    gpus: int
    hours: int
    start: datetime


@dataclass(frozen=True)
class NodeRoom:
    """A node of which parts are leased."""

    node: str
    slots: int
    free_now: int
    users: tuple[str, ...]
    """Names of the people who hold slots of it now."""
    largest: FreeBlock | None
    """The largest block of the shortest allowed length; the earliest of several."""


def sizes_sold(nodes: Sequence[Node], available: Availability) -> list[int | None]:
    """Return the sizes that a person may book, ascending; None, the whole node, comes last.

    Empty if no parts are sold.
    """
    slots = {node.name: node.hardware.slots for node in nodes}
    sold = [(size, slots.get(one.node, size)) for one in available.lengths for size in one.sizes]
    parts = sorted({size for size, of in sold if size < of})
    has_whole = any(size == of for size, of in sold)
    return [*parts, None] if parts and has_whole else list(parts)


def rooms(nodes: Sequence[Node], available: Availability) -> Iterator[NodeRoom]:
    """Yield the room on each node of which parts may be booked, as far as `available` goes."""
    allowed = {one.node: one for one in available.lengths}
    for node in nodes:
        mine, slots = allowed.get(node.name), node.hardware.slots
        if mine is None or not available.hours or min(mine.sizes, default=slots) >= slots:
            continue
        free = [hour.free_gpus.get(node.name, 0) for hour in available.hours]
        length = min(mine.hours, default=1)
        blocks = [
            (min(free[first : first + length]), -first) for first in range(len(free) - length + 1)
        ]
        gpus, first = max(blocks, default=(0, 0))
        largest = FreeBlock(gpus, length, available.hours[-first].start) if gpus else None
        yield NodeRoom(node.name, slots, free[0], node.users, largest)
