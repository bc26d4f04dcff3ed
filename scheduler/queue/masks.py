"""Free nodes of a class over time, as bit masks between the moments of change. Pure.

Bit n of a mask stands for node n. Leases begin and end on full hours, so most moments are hours;
running and planned jobs add their own ends. The nodes that are free during a whole interval are the
AND of its masks, and `bit_count` tells if they are enough for a gang.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class FreeNodes(NamedTuple):
    """Nodes that are free together from `start` until at least `end`, in seconds."""

    start: float
    end: float
    nodes: int
    """Mask of all nodes that are free all the time; may be more than were asked for."""


class ClassLane:
    """Free nodes of one class from a moment on. Times are in seconds since a common origin."""

    def __init__(self, nodes: int, now: float) -> None:
        """Create a lane in which all nodes of the mask `nodes` are free from `now` on, for ever."""
        self.times = [now]
        self.masks = [nodes]

    def copy(self) -> "ClassLane":
        """Return an independent copy of the lane."""
        other = ClassLane(0, 0.0)
        other.times, other.masks = self.times.copy(), self.masks.copy()
        return other

    def coarse(self, step: float) -> "ClassLane":
        """Return a copy in even steps of `step` seconds; a node is free in a step only if it is
        free in the whole of it.

        Otherwise every planned job adds a moment, and a plan of thousands of them takes 25 s
        instead of 0.3 s (10,000 jobs on 1,000 nodes over 14 days).
        """
        first = self.now - self.now % step + step
        steps = max(0, math.ceil((self.times[-1] - first) / step))
        edges = [self.now, *(first + step * number for number in range(steps + 1))]
        other = ClassLane(0, self.now)
        other.times = edges
        ends = [*edges[1:], math.inf]
        other.masks = [self.free(start, end) for start, end in zip(edges, ends, strict=True)]
        return other

    @property
    def now(self) -> float:
        """Beginning of the lane, in seconds."""
        return self.times[0]

    def pass_to(self, now: float) -> None:
        """Forget all masks that end before `now`, and let the lane begin there."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past], self.masks[:past]
        self.times[0] = max(self.times[0], now)

    def take(self, nodes: int, start: float, end: float) -> None:
        """Mark the nodes as taken in [start, end)."""
        start = max(start, self.now)
        if end > start:
            first, last = self._cut(start), self._cut(end)
            self.masks[first:last] = [mask & ~nodes for mask in self.masks[first:last]]

    def give(self, nodes: int, start: float, end: float) -> None:
        """Mark the nodes as free in [start, end)."""
        start = max(start, self.now)
        if end > start:
            first, last = self._cut(start), self._cut(end)
            self.masks[first:last] = [mask | nodes for mask in self.masks[first:last]]

    def at(self, moment: float) -> int:
        """Return the mask of the nodes that are free at a moment."""
        return self.masks[max(0, bisect_right(self.times, moment) - 1)]

    def free(self, start: float, end: float) -> int:
        """Return the mask of the nodes that are free in all of [start, end)."""
        first = max(0, bisect_right(self.times, start) - 1)
        nodes = self.masks[first]
        for mask in self.masks[first + 1 : bisect_left(self.times, end)]:
            nodes &= mask
        return nodes

    def earliest(
        self, num_nodes: int, seconds: float, *, not_before: float = -math.inf, among: int = -1
    ) -> FreeNodes | None:
        """Return the first room with `num_nodes` of the nodes `among` (a mask; default: all) free
        together for `seconds`; None if there is none."""
        times, masks = self.times, self.masks
        if among != -1:
            masks = [mask & among for mask in masks]
        first = max(0, bisect_right(times, not_before) - 1)
        last = len(times) - 1
        while first <= last:
            nodes, index = masks[first], first
            if nodes.bit_count() < num_nodes:
                first += 1
                continue
            while index < last and times[index + 1] < times[first] + seconds:
                index += 1
                both = nodes & masks[index]
                if both.bit_count() >= num_nodes:
                    nodes = both
                    continue
                # Too few from `first` to here: go back from here to where there are still enough.
                nodes, first = masks[index], index
                if nodes.bit_count() < num_nodes:
                    break
                while (both := nodes & masks[first - 1]).bit_count() >= num_nodes:
                    nodes, first = both, first - 1
            else:
                return FreeNodes(times[first], times[first] + seconds, nodes)
            first += 1
        return None

    def room_now(self, num_nodes: int, *, among: int = -1) -> FreeNodes | None:
        """Return the longest room from now on with `num_nodes` of the nodes `among` (a mask;
        default: all) free together; None if so many are not free now."""
        nodes = self.masks[0] & among
        if nodes.bit_count() < num_nodes:
            return None
        for time, mask in zip(self.times[1:], self.masks[1:], strict=True):
            if (nodes & mask).bit_count() < num_nodes:
                return FreeNodes(self.now, time, nodes)
            nodes &= mask
        return FreeNodes(self.now, math.inf, nodes)

    def snuggest(self, room: FreeNodes, num_nodes: int) -> int:
        """Return `num_nodes` nodes of `room`, those that are taken soonest after it.

        This leaves the longest free times whole.
        """
        after = self.masks[bisect_left(self.times, room.end) :]
        return pick(room.nodes, num_nodes, after)

    def last_freed(self, room: FreeNodes, num_nodes: int) -> int:
        """Return `num_nodes` nodes of `room`, those that become free latest before it.

        This keeps the nodes that are free now for jobs that start in between.
        """
        before = self.masks[: bisect_left(self.times, room.start)]
        return pick(room.nodes, num_nodes, reversed(before))

    def _cut(self, moment: float) -> int:
        """Return the index of the mask that begins at `moment`, after splitting one if needed."""
        index = bisect_left(self.times, moment)
        if index == len(self.times) or self.times[index] != moment:
            self.times.insert(index, moment)
            self.masks.insert(index, self.masks[index - 1])
        return index


def pick(nodes: int, count: int, masks: Iterable[int]) -> int:
    """Return `count` of `nodes`: first those missing in the first mask, then in the next, ...

    Of equal ones those with the lowest bits.
    """
    chosen = 0
    for mask in masks:
        if count <= 0 or nodes == chosen:
            break
        missing = nodes & ~mask & ~chosen
        if missing:
            found = lowest(missing, count)
            chosen |= found
            count -= found.bit_count()
    return chosen | lowest(nodes & ~chosen, count)


def lowest(nodes: int, count: int) -> int:
    """Return the `count` lowest set bits of `nodes`, or all if there are fewer."""
    chosen = 0
    while nodes and count > 0:
        bit = nodes & -nodes
        chosen |= bit
        nodes ^= bit
        count -= 1
    return chosen


def bits(nodes: int) -> list[int]:
    """Return the numbers of the set bits, ascending."""
    found = []
    while nodes:
        bit = nodes & -nodes
        found.append(bit.bit_length() - 1)
        nodes ^= bit
    return found
