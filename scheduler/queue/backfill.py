"""Starts and reservations of the waiting jobs: backfilling. Pure.

One walk over the jobs in order of priority. A job that can start on nodes that no job before it
needs starts. Of the others, the first R get a *reservation*: the earliest time at which all their
nodes are free together, around the leases. A later job may pass only if it delays none of these: so
a wide job is never starved, and backfilling never moves a reservation.

R = 1 is EASY, and the rule here: docs/decisions/2026-11-25-one-reservation.md. R = all is
conservative backfilling, and without passing it is first come, first served. (Lifka 1995; Mu'alem
and Feitelson 2001.)

A lease is a reservation that never moves. A job that saves checkpoints may start in front of a
lease even if it will not end before that lease begins, provided the gap is long enough (*soft
fit*): it is stopped with a checkpoint in time and goes on later.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from scheduler.queue.masks import ClassLane, FreeNodes, lowest

STEP_S = 900.0  # step of a forecast


@dataclass(frozen=True)
class QueueRules:
    """Rules by which the queue is served."""

    reservations: int | None = 1
    """Number of waiting jobs that get a reservation, the first ones; None: all."""
    passing: bool = True
    """True if a job may start before one that waits and comes earlier in the order."""
    soft_fit: bool = True
    """True if a job that saves checkpoints may start before a lease that will stop it."""
    least_gap_s: float = 1800.0
    """Shortest gap for a soft fit: a start and a checkpoint should not take a third of it."""


SoftNodes = Mapping[float, int]
"""Map shortest gap, in seconds -> mask of the nodes on which a job may be cut in such a gap."""
ALL_NODES = -1


class Part(NamedTuple):
    """A way to take nodes of a class: so many slots of each, of the nodes in a mask."""

    slots: int | None = None
    """Slots of a node; None: the whole node."""
    nodes: int = ALL_NODES
    unfit: int = 0
    """Most slots that any of these nodes has out of service: they look free, and are not."""

    @property
    def free(self) -> int | None:
        """Slots of a node that must be free; None: all of them."""
        return None if self.slots is None else self.slots + self.unfit


WHOLE_NODES = (Part(),)

FIRST_COME = QueueRules(passing=False, soft_fit=False)
EASY = QueueRules(soft_fit=False)
CONSERVATIVE = QueueRules(reservations=None, soft_fit=False)


class Want(NamedTuple):
    """Nodes and time that a waiting job needs."""

    id: str
    num_nodes: int
    seconds: float
    """Wall time plus the time in which its nodes are cleaned afterwards."""
    classes: Sequence[str]
    """Names of the node classes that it fits, best first."""
    may_be_cut: bool = False
    """True if it saves checkpoints and may be stopped before it has ended."""
    parts: Mapping[str, Sequence[Part]] = {}
    """Map class -> ways to take its nodes, where they are not all of the whole nodes. All nodes of
    a job have equally many slots."""

    def ways(self, class_name: str) -> Sequence[Part]:
        """Return the ways to take nodes of a class, each with the nodes that it is open to."""
        return self.parts.get(class_name, WHOLE_NODES)


class BackfillStart(NamedTuple):
    """A start now on the nodes of a mask."""

    class_name: str
    nodes: int
    end: float
    """Latest time, in seconds, at which its nodes are free again."""
    is_cut: bool = False
    """True if it will be stopped at `end`, before its wall time is over."""
    slots: int | None = None
    """Slots of each node; None: whole nodes."""


class Reservation(NamedTuple):
    """Latest start of a job on the nodes of a mask, and its end, in seconds."""

    class_name: str
    nodes: int
    start: float
    end: float
    slots: int | None = None
    """Slots of each node; None: whole nodes."""


class Backfill:
    """One walk over the waiting jobs. Every start and reservation takes nodes from later jobs."""

    def __init__(
        self,
        lanes: Mapping[str, ClassLane],
        rules: QueueRules,
        soft: Mapping[str, SoftNodes] | None = None,
    ) -> None:
        """Begin a walk.

        `lanes` are the times at which nodes are free of running jobs and leases; they are changed.
        `soft` gives by class the nodes on which jobs may be cut; None: all nodes, in gaps of
        `rules.least_gap_s`.
        """
        self.lanes = lanes
        everywhere = {rules.least_gap_s: ALL_NODES}
        self._soft = dict.fromkeys(lanes, everywhere) if soft is None else soft
        self._leases = {name: lane.copy() for name, lane in lanes.items() if rules.soft_fit}
        self._rules = rules
        self._left = math.inf if rules.reservations is None else rules.reservations
        self._someone_waits = False
        self._too_long: dict[tuple[str, int, Part], float] = {}
        """Map (class, number of nodes, part) -> shortest time, in seconds, without a start.

        Free time only shrinks during the walk, so longer jobs need not be tried.
        """
        self._gaps: dict[tuple[str, int, Part], tuple[int, FreeNodes | None]] = {}
        """Map (class, number of nodes, part) -> number of changes of the lane, and its gap then."""

    @property
    def is_over(self) -> bool:
        """True if no other job can start or get a reservation."""
        if self._left >= 1:
            return False
        none_passes = self._someone_waits and not self._rules.passing
        return none_passes or not any(lane.masks[0] for lane in self.lanes.values())

    def place(self, want: Want) -> BackfillStart | Reservation | None:
        """Start the next job or reserve nodes for it; None if it gets no reservation or fits
        nowhere."""
        return self.start(want) or self.reserve(want)

    def start(self, want: Want) -> BackfillStart | None:
        """Start the next job now if that delays no earlier one; return None if it has to wait."""
        start = None
        if self._rules.passing or not self._someone_waits:
            start = self._start(want)
        if start is None:
            self._someone_waits = True
        else:
            self.lanes[start.class_name].take(start.nodes, -math.inf, start.end, start.slots)
        return start

    def could_be_cut(self, want: Want) -> bool:
        """Return True if the job could start now if it were allowed to be stopped for a lease."""
        return self._rules.soft_fit and self._start_cut(want) is not None

    def gap_now(self, want: Want) -> tuple[str, int] | None:
        """Return class and node mask of the longest present gap in front of a lease.

        All nodes count, also those on which jobs may not be cut. None if there is no gap or soft
        fit is off.
        """
        if not self._rules.soft_fit:
            return None
        found = (
            (name, self._gap(name, want.num_nodes, part))
            for name in want.classes
            for part in want.ways(name)
        )
        rooms = [(room.end, name, room.nodes) for name, room in found if room]
        return max(rooms)[1:] if rooms else None

    def reserve(self, want: Want) -> Reservation | None:
        """Reserve the earliest time for a job that could not start.

        Returns None if no reservations are left, or if its nodes are never free together.
        """
        if self._left < 1:
            return None
        reservation = self.plan(want)
        if reservation is not None:
            self._left -= 1
        return reservation

    def plan(self, want: Want) -> Reservation | None:
        """Take the earliest time for a job that could not start, whether or not reservations are
        left: after the walk, where nothing starts any more that it could hold up.

        Returns None if its nodes are never free together.
        """
        planned = earliest(self.lanes, want)
        if planned is not None:
            lane = self.lanes[planned.class_name]
            lane.take(planned.nodes, planned.start, planned.end, planned.slots)
        return planned

    def _start(self, want: Want) -> BackfillStart | None:
        for name in want.classes:
            lane = self.lanes.get(name)
            if lane is None:
                continue
            for part in want.ways(name):
                known = (name, want.num_nodes, part)
                if want.seconds >= self._too_long.get(known, math.inf):
                    continue
                start = self._start_in(lane, name, want, part)
                if start is not None:
                    return start
                self._too_long[known] = want.seconds
        return self._start_cut(want) if self._rules.soft_fit and want.may_be_cut else None

    def _start_in(self, lane: ClassLane, name: str, want: Want, part: Part) -> BackfillStart | None:
        """Return a start now for all of the job's time; None if too few nodes are free so long."""
        end = lane.now + want.seconds
        room = FreeNodes(lane.now, end, lane.free(lane.now, end, part.free) & part.nodes)
        if room.nodes.bit_count() < want.num_nodes:
            return None
        chosen = lane.snuggest(room, want.num_nodes, part.free)
        return BackfillStart(name, chosen, end, slots=part.slots)

    def _start_cut(self, want: Want) -> BackfillStart | None:
        """Return a start in the longest present gap that is as long as its nodes require."""
        best: BackfillStart | None = None
        for name in want.classes:
            soft = self._soft.get(name, {})
            for (least_s, nodes), part in product(soft.items(), want.ways(name)):
                room = self._gap(name, want.num_nodes, part._replace(nodes=nodes & part.nodes))
                if room is None or room.end - room.start < least_s:
                    continue
                if best is None or best.end < room.end:
                    chosen = self.lanes[name].snuggest(room, want.num_nodes, part.free)
                    best = BackfillStart(name, chosen, room.end, is_cut=True, slots=part.slots)
        return best

    def _gap(self, name: str, num_nodes: int, part: Part) -> FreeNodes | None:
        """Return the longest room from now on with the part of `num_nodes` nodes; None if there
        is none, or if not a lease but a job or a reservation ends it."""
        lane = self.lanes.get(name)
        if lane is None:
            return None
        key = (name, num_nodes, part)
        changes, gap = self._gaps.get(key, (-1, None))
        if changes != lane.changes:
            gap = lane.room_now(num_nodes, slots=part.free, among=part.nodes)
            if gap is not None:
                left = gap.nodes & self._leases[name].at(gap.end, part.free)
                gap = gap if left.bit_count() < num_nodes else None
            self._gaps[key] = lane.changes, gap
        return gap


def earliest(lanes: Mapping[str, ClassLane], want: Want) -> Reservation | None:
    """Return the earliest time at which a job's nodes are free together for as long as it needs.

    Of equally early times, the one in the class named first. None if there is none.
    """
    best: tuple[str, Part, FreeNodes] | None = None
    for name in want.classes:
        lane = lanes.get(name)
        if lane is None:
            continue
        for part in want.ways(name):
            room = lane.earliest(
                want.num_nodes,
                want.seconds,
                slots=part.free,
                before=math.inf if best is None else best[2].start,
                among=part.nodes,
            )
            if room is not None:
                best = name, part, room
    if best is None:
        return None
    name, part, room = best
    chosen = lanes[name].last_freed(room, want.num_nodes, part.free)
    return Reservation(name, chosen, room.start, room.end, part.slots)


class StartBounds:
    """Lower bounds of starts in a lane from which only is taken.

    A job starts no earlier than an earlier one could that wanted as many of the same nodes or
    fewer, for as long or shorter.
    """

    def __init__(self) -> None:
        self._stairs: dict[int, tuple[list[float], list[float]]] = {}
        """By number of nodes: times wanted, and the bounds from each on; both ascend."""

    def of(self, num_nodes: int, seconds: float) -> float:
        """Return the bound for a job that wants so many nodes for so long."""
        bound = -math.inf
        for fewer, (times, bounds) in self._stairs.items():
            if fewer <= num_nodes and (place := bisect_right(times, seconds)):
                bound = max(bound, bounds[place - 1])
        return bound

    def note(self, num_nodes: int, seconds: float, start: float) -> None:
        """Note the earliest start of such a job."""
        times, bounds = self._stairs.setdefault(num_nodes, ([], []))
        place = bisect_left(times, seconds)
        if place and bounds[place - 1] >= start:
            return
        passed = bisect_right(bounds, start, place)
        times[place:passed], bounds[place:passed] = [seconds], [start]


class StartForecast:
    """Latest starts of the jobs without a reservation, if all are served in order.

    Calculated in even steps, so a start is too late by at most one step for each earlier job.
    """

    def __init__(self, lanes: Mapping[str, ClassLane]) -> None:
        """Begin a forecast from `lanes` as a finished walk has left them."""
        self._lanes = {name: lane.coarse(STEP_S) for name, lane in lanes.items()}
        self._bounds: dict[tuple[str, Part], StartBounds] = {}

    def place(self, want: Want) -> Reservation | None:
        """Return the next job's forecast; None if its nodes are never free together."""
        seconds = math.ceil(want.seconds / STEP_S) * STEP_S
        best: tuple[str, int | None, FreeNodes] | None = None
        for name in want.classes:
            lane = self._lanes.get(name)
            if lane is None:
                continue
            for part in want.ways(name):
                bounds = self._bounds.setdefault((name, part), StartBounds())
                before = math.inf if best is None else best[2].start
                room = lane.earliest(
                    want.num_nodes,
                    seconds,
                    slots=part.free,
                    not_before=bounds.of(want.num_nodes, seconds),
                    before=before,
                    among=part.nodes,
                )
                bounds.note(want.num_nodes, seconds, before if room is None else room.start)
                if room is not None:
                    best = name, part.slots, room
        if best is None:
            return None
        name, slots, room = best
        lane = self._lanes[name]
        nodes = lowest(room.nodes, want.num_nodes)
        # All starts but the first, which is now, lie on a step.
        end = room.end - room.end % STEP_S + (STEP_S if room.end % STEP_S else 0)
        lane.take(nodes, room.start, end, slots)
        return Reservation(name, nodes, room.start, end, slots)
