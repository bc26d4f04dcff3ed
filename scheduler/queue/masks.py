"""Free nodes of a class over time, as bit masks between the moments of change. Pure.

Bit n of a mask stands for node n. Leases begin and end on full hours, so most moments are hours;
running and planned jobs add their own ends. The nodes that are free during a whole interval are the
AND of its masks, and `bit_count` tells if they are enough for a gang.

Where parts of nodes are leased, one integer of L x N bits per moment holds L levels for N nodes:
bit c*N + n is set if node n has more than c slots free. So taking slots lowers a node's column, as
in a thermometer, and the nodes with k slots free are the bits of level k - 1. A class of which no
parts are leased has one level: a node is free or taken.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class FreeNodes(NamedTuple):
    """Nodes that are free together from `start` until at least `end`, in seconds."""

    start: float
    end: float
    nodes: int
    """Mask of all nodes that are free all the time; may be more than were asked for."""


class ClassLane:
    """Free nodes of one class from a moment on. Times are in seconds since a common origin.

    Everywhere `slots` is a number of each node's slots; None stands for all of them.
    """

    def __init__(self, nodes: int, now: float, levels: int = 1) -> None:
        """Create a lane in which all nodes of the mask `nodes` are free from `now` on, for ever.

        `levels` is the number of their slots if parts of nodes are leased, else 1.
        """
        self._nodes, self._width, self.levels = nodes, nodes.bit_length(), levels
        self._repeat = [
            sum(1 << each * self._width for each in range(n)) for n in range(levels + 1)
        ]
        self._all = self._on_levels(nodes, levels)
        self.times = [now]
        self.masks = [self._all]
        self.changes = 0
        """Number of times that nodes were taken or given."""

    def copy(self) -> "ClassLane":
        """Return an independent copy of the lane."""
        other = ClassLane(self._nodes, 0.0, self.levels)
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
        other = ClassLane(self._nodes, self.now, self.levels)
        other.times = edges
        ends = [*edges[1:], math.inf]
        other.masks = [self._all_of(start, end) for start, end in zip(edges, ends, strict=True)]
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

    def take(self, nodes: int, start: float, end: float, slots: int | None = None) -> None:
        """Mark `slots` of each of the nodes as taken in [start, end)."""
        start = max(start, self.now)
        if end <= start:
            return
        self.changes += 1
        first, last = self._cut(start), self._cut(end)
        column = self._on_levels(nodes, self.levels)
        others = self._all ^ column
        if slots is None or slots >= self.levels:
            left = [mask & others for mask in self.masks[first:last]]
        else:
            down = slots * self._width
            left = [mask & (mask >> down | others) for mask in self.masks[first:last]]
        self.masks[first:last] = left

    def give(self, nodes: int, start: float, end: float, slots: int | None = None) -> None:
        """Mark `slots` of each of the nodes as free in [start, end)."""
        start = max(start, self.now)
        if end <= start:
            return
        self.changes += 1
        first, last = self._cut(start), self._cut(end)
        column = self._on_levels(nodes, self.levels)
        if slots is None or slots >= self.levels:
            now_free = [mask | column for mask in self.masks[first:last]]
        else:
            up, lowest_levels = slots * self._width, self._on_levels(nodes, slots)
            others = self._all ^ column
            now_free = [
                mask & others | (mask << up | lowest_levels) & column
                for mask in self.masks[first:last]
            ]
        self.masks[first:last] = now_free

    def at(self, moment: float, slots: int | None = None) -> int:
        """Return the mask of the nodes that have `slots` free at a moment."""
        mask = self.masks[max(0, bisect_right(self.times, moment) - 1)]
        return mask >> self._level(slots) & self._nodes

    def free(self, start: float, end: float, slots: int | None = None) -> int:
        """Return the mask of the nodes that have `slots` free in all of [start, end)."""
        return self._all_of(start, end) >> self._level(slots) & self._nodes

    def earliest(
        self,
        num_nodes: int,
        seconds: float,
        *,
        slots: int | None = None,
        not_before: float = -math.inf,
        before: float = math.inf,
        among: int = -1,
    ) -> FreeNodes | None:
        """Return the first room with `num_nodes` of the nodes `among` (a mask; default: all) free
        together for `seconds`; None if none begins in [`not_before`, `before`)."""
        times, masks = self.times, self.masks
        level = self._level(slots)
        window = (among & self._nodes) << level  # read in place: shifting each mask takes longer
        first = max(0, bisect_right(times, not_before) - 1)
        last = len(times) - 1
        while first <= last and times[first] < before:
            nodes, index = masks[first] & window, first
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
                nodes, first = masks[index] & window, index
                if nodes.bit_count() < num_nodes:
                    break
                while (both := nodes & masks[first - 1]).bit_count() >= num_nodes:
                    nodes, first = both, first - 1
            else:
                if times[first] >= before:
                    return None
                return FreeNodes(times[first], times[first] + seconds, nodes >> level)
            first += 1
        return None

    def room_now(
        self, num_nodes: int, *, slots: int | None = None, among: int = -1
    ) -> FreeNodes | None:
        """Return the longest room from now on with `num_nodes` of the nodes `among` (a mask;
        default: all) free together; None if so many are not free now."""
        level = self._level(slots)
        nodes = self.masks[0] & (among & self._nodes) << level
        if nodes.bit_count() < num_nodes:
            return None
        for time, mask in zip(self.times[1:], self.masks[1:], strict=True):
            if (nodes & mask).bit_count() < num_nodes:
                return FreeNodes(self.now, time, nodes >> level)
            nodes &= mask
        return FreeNodes(self.now, math.inf, nodes >> level)

    def snuggest(self, room: FreeNodes, num_nodes: int, slots: int | None = None) -> int:
        """Return `num_nodes` nodes of `room`: those with the fewest slots free in it, and of these
        those that are taken soonest after it.

        This leaves whole nodes and the longest free times whole.
        """
        chosen = 0
        packed = self._all_of(room.start, room.end) if slots is not None else 0
        after = self._read(self.masks[bisect_left(self.times, room.end) :], slots)
        for more in range((slots or self.levels) + 1, self.levels + 1):
            fuller = room.nodes & ~chosen & ~(packed >> self._level(more))
            chosen |= pick(fuller, num_nodes - chosen.bit_count(), after)
        return chosen | pick(room.nodes & ~chosen, num_nodes - chosen.bit_count(), after)

    def last_freed(self, room: FreeNodes, num_nodes: int, slots: int | None = None) -> int:
        """Return `num_nodes` nodes of `room`, those that become free latest before it.

        This keeps the nodes that are free now for jobs that start in between.
        """
        before = self.masks[: bisect_left(self.times, room.start)]
        return pick(room.nodes, num_nodes, self._read(list(reversed(before)), slots))

    def _level(self, slots: int | None) -> int:
        """Return the number of bits below those of the nodes with `slots` free."""
        return self._width * (min(slots or self.levels, self.levels) - 1)

    def _on_levels(self, nodes: int, levels: int) -> int:
        """Return the nodes' bits on each of the lowest levels."""
        return (nodes & self._nodes) * self._repeat[levels]

    def _all_of(self, start: float, end: float) -> int:
        """Return what is free in all of [start, end), on all levels."""
        first = max(0, bisect_right(self.times, start) - 1)
        packed = self.masks[first]
        for mask in self.masks[first + 1 : bisect_left(self.times, end)]:
            packed &= mask
        return packed

    def _read(self, masks: Sequence[int], slots: int | None) -> Iterable[int]:
        """Return the masks of the nodes that have `slots` free, shifted as they are read."""
        level = self._level(slots)
        return Level(masks, level) if level else masks

    def _cut(self, moment: float) -> int:
        """Return the index of the mask that begins at `moment`, after splitting one if needed."""
        index = bisect_left(self.times, moment)
        if index == len(self.times) or self.times[index] != moment:
            self.times.insert(index, moment)
            self.masks.insert(index, self.masks[index - 1])
        return index


class Level:
    """One level of packed masks: an iterable that shifts a mask when it is read."""

    def __init__(self, masks: Sequence[int], bits_below: int) -> None:
        self._masks, self._below = masks, bits_below

    def __iter__(self) -> Iterator[int]:
        return (mask >> self._below for mask in self._masks)


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
