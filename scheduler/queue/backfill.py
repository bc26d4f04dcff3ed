"""Who of the waiting jobs starts now, and who gets a reservation. Pure.

One walk over the jobs in order of priority. A job that can start on nodes that nobody before it
needs starts. Of those that can't, the first R get a *reservation*: the earliest time at which all
their nodes are free together, around the leases. Whoever comes later may pass only where it delays
none of these: so a wide job is never starved, and backfilling never moves a reservation.

R = 1 is EASY, R = all is conservative backfilling, and without passing it is first come, first
served. (Lifka 1995; Mu'alem and Feitelson 2001.)

A lease is a reservation that never moves. A job that saves checkpoints may start in front of one
that it will not have ended by, if the gap is worth it (*soft fit*): it is stopped with a checkpoint
in time and goes on later.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.queue.masks import Lane, Room, lowest

STEP_S = 900.0  # of a forecast


@dataclass(frozen=True)
class Rules:
    """How the queue is served."""

    reservations: int | None = 10
    """The first so many waiting jobs get one; None: all."""
    passing: bool = True
    """Whether anybody may start before one that waits and came earlier."""
    soft_fit: bool = True
    """Whether a job that saves checkpoints may start in front of a lease that it must give way."""
    least_gap_s: float = 1800.0
    """The shortest gap for that: a start and a checkpoint should not be a third of it."""


SoftNodes = Mapping[float, int]
"""By the shortest gap in seconds the nodes, a mask, on which a job may be cut in so long a gap."""
ALL_NODES = -1

FIRST_COME = Rules(reservations=1, passing=False, soft_fit=False)
EASY = Rules(reservations=1, soft_fit=False)
CONSERVATIVE = Rules(reservations=None, soft_fit=False)


class Want(NamedTuple):
    """What a waiting job needs."""

    id: str
    num_nodes: int
    seconds: float
    """With the time in which its nodes are cleaned afterwards."""
    classes: Sequence[str]
    """That it fits, best first."""
    may_be_cut: bool = False
    """It saves checkpoints, and may be stopped before it has ended."""


class Start(NamedTuple):
    """It starts now."""

    class_name: str
    nodes: int
    end: float
    """When its nodes are free again at the latest."""
    is_cut: bool = False
    """It will be stopped then, before its wall time is over."""


class Reservation(NamedTuple):
    """It starts then, or earlier."""

    class_name: str
    nodes: int
    start: float
    end: float


class Backfill:
    """One walk over the waiting jobs. Every answer changes what is free for those that follow."""

    def __init__(
        self, lanes: Mapping[str, Lane], rules: Rules, soft: Mapping[str, SoftNodes] | None = None
    ) -> None:
        """The lanes say when nodes are free of running jobs and leases; they are changed. `soft`
        says by class where jobs may be cut; None: on every node, as the rules say."""
        self.lanes = lanes
        everywhere = {rules.least_gap_s: ALL_NODES}
        self._soft = dict.fromkeys(lanes, everywhere) if soft is None else soft
        self._leases = {name: lane.copy() for name, lane in lanes.items() if rules.soft_fit}
        self._rules = rules
        self._left = math.inf if rules.reservations is None else rules.reservations
        self._someone_waits = False
        self._too_long: dict[tuple[str, int], float] = {}
        """By class and number of nodes the shortest job that could not start: free time only
        shrinks during the walk, so that longer ones need no look."""

    @property
    def is_over(self) -> bool:
        """Whether nobody else can start or get a reservation."""
        if self._left >= 1:
            return False
        none_passes = self._someone_waits and not self._rules.passing
        return none_passes or not any(lane.masks[0] for lane in self.lanes.values())

    @property
    def has_reservations(self) -> bool:
        """Whether the next that waits gets one."""
        return self._left >= 1

    def place(self, want: Want) -> Start | Reservation | None:
        """What becomes of the next job; None: it waits without a reservation, or fits nowhere."""
        return self.start(want) or self.reserve(want)

    def start(self, want: Want) -> Start | None:
        """Start the next job now, if that delays nobody before it. If not, it waits."""
        start = None
        if self._rules.passing or not self._someone_waits:
            start = self._start(want)
        if start is None:
            self._someone_waits = True
        else:
            self.lanes[start.class_name].take(start.nodes, -math.inf, start.end)
        return start

    def could_be_cut(self, want: Want) -> bool:
        """Whether it could start now, if it might be stopped for a lease."""
        return self._rules.soft_fit and self._start_cut(want) is not None

    def gap_now(self, want: Want) -> tuple[str, int] | None:
        """Class and nodes of the longest gap in front of a lease that there is now, wherever jobs
        may be cut; None if there is none."""
        if not self._rules.soft_fit:
            return None
        found = ((name, self._gap(name, want.num_nodes, ALL_NODES)) for name in want.classes)
        rooms = [(room.end, name, room.nodes) for name, room in found if room]
        return max(rooms)[1:] if rooms else None

    def reserve(self, want: Want) -> Reservation | None:
        """Keep the earliest time for the job that could not start, if there are reservations left.

        None also if its nodes are never free together.
        """
        if self._left < 1:
            return None
        reservation = earliest(self.lanes, want)
        if reservation is not None:
            self._left -= 1
            lane = self.lanes[reservation.class_name]
            lane.take(reservation.nodes, reservation.start, reservation.end)
        return reservation

    def _start(self, want: Want) -> Start | None:
        for name in want.classes:
            lane = self.lanes.get(name)
            known = (name, want.num_nodes)
            if lane is None or want.seconds >= self._too_long.get(known, math.inf):
                continue
            end = lane.now + want.seconds
            room = Room(lane.now, end, lane.free(lane.now, end))
            if room.nodes.bit_count() >= want.num_nodes:
                return Start(name, lane.snuggest(room, want.num_nodes), end)
            self._too_long[known] = want.seconds
        return self._start_cut(want) if self._rules.soft_fit and want.may_be_cut else None

    def _start_cut(self, want: Want) -> Start | None:
        """In the longest gap there is now, if it is worth a start."""
        best: Start | None = None
        for name in want.classes:
            for least_s, nodes in self._soft.get(name, {}).items():
                room = self._gap(name, want.num_nodes, nodes)
                if room is None or room.end - room.start < least_s:
                    continue
                if best is None or best.end < room.end:
                    chosen = self.lanes[name].snuggest(room, want.num_nodes)
                    best = Start(name, chosen, room.end, is_cut=True)
        return best

    def _gap(self, name: str, num_nodes: int, among: int) -> Room | None:
        """How long so many nodes of a class are free from now on, if a lease is what ends it."""
        lane = self.lanes.get(name)
        room = lane.room_now(num_nodes, among=among) if lane else None
        if room is None:
            return None
        left = room.nodes & self._leases[name].at(room.end)
        return room if left.bit_count() < num_nodes else None


def earliest(lanes: Mapping[str, Lane], want: Want) -> Reservation | None:
    """The earliest time at which a job's nodes are free together for so long; None if never.

    Of equally early ones that of the first class.
    """
    best: tuple[str, Room] | None = None
    for name in want.classes:
        lane = lanes.get(name)
        room = lane.earliest(want.num_nodes, want.seconds) if lane else None
        if room is not None and (best is None or room.start < best[1].start):
            best = name, room
    if best is None:
        return None
    name, room = best
    return Reservation(name, lanes[name].last_freed(room, want.num_nodes), room.start, room.end)


class Forecast:
    """When those without a reservation will start at the latest, if all are served in order.

    In even steps, which is later than the truth by a step at most for each that goes before.
    """

    def __init__(self, lanes: Mapping[str, Lane]) -> None:
        """`lanes` as a finished walk has left them."""
        self._lanes = {name: lane.coarse(STEP_S) for name, lane in lanes.items()}
        self._from: dict[tuple[str, int, float], float] = {}
        """What was found for equal jobs: the next one is no earlier."""

    def place(self, want: Want) -> Reservation | None:
        """The next job's time; None if its nodes are never free together."""
        seconds = math.ceil(want.seconds / STEP_S) * STEP_S
        best: tuple[str, Room] | None = None
        for name in want.classes:
            lane = self._lanes.get(name)
            key = (name, want.num_nodes, seconds)
            room = (
                lane.earliest(want.num_nodes, seconds, not_before=self._from.get(key, -math.inf))
                if lane
                else None
            )
            if room is None:
                continue
            self._from[key] = room.start
            if best is None or room.start < best[1].start:
                best = name, room
        if best is None:
            return None
        name, room = best
        lane = self._lanes[name]
        nodes = lowest(room.nodes, want.num_nodes)
        # Starts are on a step but the first, which is now.
        end = room.end - room.end % STEP_S + (STEP_S if room.end % STEP_S else 0)
        lane.take(nodes, room.start, end)
        return Reservation(name, nodes, room.start, end)
