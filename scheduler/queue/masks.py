"""When which nodes of a class are free: bit masks between the moments of change. Pure.

Bit n of a mask stands for node n. Leases begin and end on full hours, so most moments are hours;
running and planned jobs add their own ends. The nodes that are free for the whole of a time are the
AND of its masks, and `bit_count` says whether they are enough for a gang.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Room(NamedTuple):
    """Nodes that are free together from `start` until `end` at least, in seconds."""

    start: float
    end: float
    nodes: int
    """A mask: all that are free all the time, more than asked for perhaps."""


class Lane:
    """The free nodes of one class from a moment on. Times are in seconds since any one origin."""

    def __init__(self, nodes: int, now: float) -> None:
        """`nodes` is a mask: all of them are free from `now` on, for ever."""
        self.times = [now]
        self.masks = [nodes]

    def copy(self) -> "Lane":
        """Another lane with the same future."""
        other = Lane(0, 0.0)
        other.times, other.masks = self.times.copy(), self.masks.copy()
        return other

    def coarse(self, step: float) -> "Lane":
        """The same future in even steps; a node that is taken for a part of one is not free in it.

        Without this every planned job adds a moment, and a plan of thousands of them takes 25 s
        instead of 0.3 s (10,000 jobs on 1,000 nodes over 14 days).
        """
        first = self.now - self.now % step + step
        steps = max(0, math.ceil((self.times[-1] - first) / step))
        edges = [self.now, *(first + step * number for number in range(steps + 1))]
        other = Lane(0, self.now)
        other.times = edges
        ends = [*edges[1:], math.inf]
        other.masks = [self.free(start, end) for start, end in zip(edges, ends, strict=True)]
        return other

    @property
    def now(self) -> float:
        """Where it begins."""
        return self.times[0]

    def pass_to(self, now: float) -> None:
        """Forget what is before `now`."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past], self.masks[:past]
        self.times[0] = max(self.times[0], now)

    def take(self, nodes: int, start: float, end: float) -> None:
        """The nodes are not free in [start, end)."""
        start = max(start, self.now)
        if end > start:
            first, last = self._cut(start), self._cut(end)
            self.masks[first:last] = [mask & ~nodes for mask in self.masks[first:last]]

    def give(self, nodes: int, start: float, end: float) -> None:
        """The nodes are free in [start, end) after all."""
        start = max(start, self.now)
        if end > start:
            first, last = self._cut(start), self._cut(end)
            self.masks[first:last] = [mask | nodes for mask in self.masks[first:last]]

    def at(self, moment: float) -> int:
        """The nodes that are free at a moment."""
        return self.masks[max(0, bisect_right(self.times, moment) - 1)]

    def free(self, start: float, end: float) -> int:
        """The nodes that are free in all of [start, end)."""
        first = max(0, bisect_right(self.times, start) - 1)
        nodes = self.masks[first]
        for mask in self.masks[first + 1 : bisect_left(self.times, end)]:
            nodes &= mask
        return nodes

    def earliest(
        self, num_nodes: int, seconds: float, *, not_before: float = -math.inf
    ) -> Room | None:
        """The first time at which so many nodes are free together for so long; None if never."""
        times, masks = self.times, self.masks
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
                return Room(times[first], times[first] + seconds, nodes)
            first += 1
        return None

    def room_now(self, num_nodes: int, *, among: int = -1) -> Room | None:
        """The longest time from now on in which so many of the nodes `among` (a mask; default: all)
        are free together; None if none."""
        nodes = self.masks[0] & among
        if nodes.bit_count() < num_nodes:
            return None
        for time, mask in zip(self.times[1:], self.masks[1:], strict=True):
            if (nodes & mask).bit_count() < num_nodes:
                return Room(self.now, time, nodes)
            nodes &= mask
        return Room(self.now, math.inf, nodes)

    def snuggest(self, room: Room, num_nodes: int) -> int:
        """Of the nodes of `room` those that are taken soonest after it: least is cut to pieces."""
        after = self.masks[bisect_left(self.times, room.end) :]
        return pick(room.nodes, num_nodes, after)

    def last_freed(self, room: Room, num_nodes: int) -> int:
        """Of the nodes of `room` those that are free only just before it: who comes in between
        keeps those that are free now."""
        before = self.masks[: bisect_left(self.times, room.start)]
        return pick(room.nodes, num_nodes, reversed(before))

    def _cut(self, moment: float) -> int:
        """The index of the mask that begins at `moment`."""
        index = bisect_left(self.times, moment)
        if index == len(self.times) or self.times[index] != moment:
            self.times.insert(index, moment)
            self.masks.insert(index, self.masks[index - 1])
        return index


def pick(nodes: int, count: int, masks: Iterable[int]) -> int:
    """So many of `nodes`: first those that are missing in the first mask, then in the next ...

    Among equals those with the lowest bits.
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
    """The `count` lowest bits of `nodes`, or all if there are fewer."""
    chosen = 0
    while nodes and count > 0:
        bit = nodes & -nodes
        chosen |= bit
        nodes ^= bit
        count -= 1
    return chosen


def bits(nodes: int) -> list[int]:
    """The numbers of the set bits, ascending."""
    found = []
    while nodes:
        bit = nodes & -nodes
        found.append(bit.bit_length() - 1)
        nodes ^= bit
    return found
