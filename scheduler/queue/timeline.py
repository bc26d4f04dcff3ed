"""Free time of the nodes from now on, as lanes, with the blocker before each start. Pure.

A node is held by the job that runs on it, for its whole wall time; by the lease that it is in; and
by later leases. A walk-in job holds its nodes to a full hour, which must not be past the next
booked one, so a lease takes its node from the full hour (UTC) at its start less the grace.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, count, groupby, islice
from operator import itemgetter, or_
from typing import NamedTuple

from core.states import LeaseState
from core.tables.kinds import LeaseKind
from scheduler.queue.backfill import SoftNodes
from scheduler.queue.masks import ClassLane, bits
from scheduler.snapshot import AttemptSnapshot, NodeHold, NodeSnapshot, Snapshot

CLEANING_S = 60.0  # between the end of a job and the next on the same node: saving and clean check
HOUR_S = 3600.0


class Blocker(NamedTuple):
    """Job, lease or cleaning that occupies a node until a moment."""

    job_id: str | None = None
    lease_id: str | None = None
    waiting: bool = False
    """True if the job has not started itself."""
    cleaning: bool = False
    """True if nobody has the node, but it has not reported yet that it is clean."""


@dataclass(frozen=True)
class PossibleStart:
    """Start time and nodes at which a job can start."""

    start: datetime
    nodes: tuple[NodeSnapshot, ...]
    after: Blocker | None = None
    """Blocker that must end before; None if the nodes are free now."""


class Timeline:
    """Free times of every node that may be given work."""

    def __init__(
        self,
        now: float,
        nodes: Mapping[str, Sequence[NodeSnapshot]],
        num_slots: Mapping[str, int] | None = None,
    ) -> None:
        """Create a timeline in which all nodes are free.

        `nodes` maps class name -> nodes, `num_slots` class name -> slots of each of them.

        Bit n of a class's masks stands for its n-th node.
        """
        self.now = now
        self.nodes = nodes
        self._num_slots = num_slots or {}
        self._unfit = {
            name: {number: node.unfit for number, node in enumerate(of) if node.unfit}
            for name, of in nodes.items()
        }
        self.lanes = {name: ClassLane((1 << len(of)) - 1, now) for name, of in nodes.items()}
        self._present: dict[str, list[tuple[float, float]]] = {
            name: [(now, math.inf)] * len(of) for name, of in nodes.items()
        }
        """Times per node, by class, at which its occupant leaves and its next lease begins."""
        self._until: dict[str, list[dict[float, Blocker]]] = {
            name: [{} for _ in of] for name, of in nodes.items()
        }

    def block(self, class_name: str, number: int, end: float, by: Blocker) -> None:
        """Record the blocker that has a node until `end`."""
        self._until[class_name][number][end] = by

    def occupied(self, class_name: str, number: int, until: float, next_start: float) -> None:
        """Record the time at which a node's present occupant leaves, and its next lease begins."""
        self._present[class_name][number] = (until, next_start)

    def clearable(self, class_name: str, end: float) -> int:
        """Return the mask of the nodes that would be free until `end` without the occupants that
        they have now."""
        lane, found = self.lanes[class_name], 0
        free_from: dict[float, int] = {}  # for many nodes it is the same: now
        for number, (until, next_start) in enumerate(self._present[class_name]):
            if until not in free_from:
                free_from[until] = lane.free(until, end) if until < end else -1
            if next_start >= end:
                found |= free_from[until] & 1 << number
        return found

    def gap_ends(self, class_name: str) -> list[float]:
        """Return the times at which the next leases take nodes of a class, latest first."""
        starts = {next_start for _, next_start in self._present[class_name]}
        return sorted(starts - {math.inf}, reverse=True)

    def planned(self, class_name: str, nodes: int, end: float, job_id: str) -> None:
        """Record that these nodes are kept until `end` for a waiting job."""
        by = Blocker(job_id=job_id, waiting=True)
        for number in bits(nodes):
            self._until[class_name][number][end] = by

    def is_unpromised(self, node: NodeSnapshot, start: datetime, end: datetime) -> bool:
        """Return True if the node is free from `start` to `end`, each plus the cleaning time, or
        if `end` is not after `start`."""
        free = self.lanes[node.class_name].free(
            start.timestamp() + CLEANING_S, end.timestamp() + CLEANING_S
        )
        return end <= start or bool(free & self._bit_of(node))

    def lasts(self, node: NodeSnapshot, until: datetime, job_id: str) -> None:
        """Extend the occupation of a node to `until` plus cleaning, for a job that joins it."""
        end = until.timestamp() + CLEANING_S
        self.lanes[node.class_name].take(self._bit_of(node), -math.inf, end)
        self.planned(node.class_name, self._bit_of(node), end, job_id)

    def _bit_of(self, node: NodeSnapshot) -> int:
        return 1 << [each.id for each in self.nodes[node.class_name]].index(node.id)

    def slot(self, class_name: str, nodes: int, start: float) -> PossibleStart:
        """Return a slot at `start` on the nodes of a mask, with its last blocker before then."""
        numbers = bits(nodes)
        after = self._last_before(class_name, numbers, start)
        seen = tuple(self.nodes[class_name][number] for number in numbers)
        return PossibleStart(datetime.fromtimestamp(start, UTC), seen, after)

    def _last_before(self, class_name: str, numbers: Sequence[int], start: float) -> Blocker | None:
        """Return the blocker that leaves these nodes last, at or before `start`."""
        until = [self._until[class_name][number] for number in numbers]
        exact = next((ends[start] for ends in until if start in ends), None)
        if exact is not None or start <= self.now:
            return exact
        past = ((end, by) for ends in until for end, by in ends.items() if end < start)
        return max(past, default=(0.0, None), key=itemgetter(0))[1]

    def short(self, ranks: int) -> dict[str, int]:
        """Map class -> mask of the nodes that have fewer than `ranks` slots fit for jobs."""
        found = {}
        for name, unfit in self._unfit.items():
            most = self._num_slots.get(name, 0) - ranks
            mask = sum(1 << number for number, slots in unfit.items() if len(slots) > most)
            if mask:
                found[name] = mask
        return found

    def fit_slots(self, class_name: str, nodes: int, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return the `ranks` lowest slots that are fit for jobs, for each node of a mask."""
        unfit = self._unfit[class_name]
        return tuple(
            tuple(islice((slot for slot in count() if slot not in unfit.get(number, ())), ranks))
            for number in bits(nodes)
        )

    def node_ids(self, class_name: str, nodes: int) -> tuple[str, ...]:
        """Return the ids of the nodes in a mask."""
        return tuple(self.nodes[class_name][number].id for number in bits(nodes))


def build_timeline(world: Snapshot, grace_s: float) -> Timeline:
    """Return the timeline, from now on, of every node that is ready and heard."""
    holds: dict[str, list[NodeHold]] = {
        node_id: list(group) for node_id, group in groupby(world.holds, key=lambda h: h.node_id)
    }
    running: dict[str, list[AttemptSnapshot]] = {}
    for attempt in world.attempts:
        running.setdefault(attempt.node_id, []).append(attempt)
    nodes: dict[str, list[NodeSnapshot]] = {}
    for node in sorted(world.nodes.values(), key=lambda node: node.name):
        if node.usable:
            nodes.setdefault(node.class_name, []).append(node)
    now = world.now.timestamp()
    num_slots = {name: hardware.slots for name, hardware in world.classes.items()}
    timeline = Timeline(now, nodes, num_slots)
    taken: dict[tuple[str, float, float], int] = {}  # many leases share their hours
    for class_name, of_class in nodes.items():
        for number, node in enumerate(of_class):
            held, ran = holds.get(node.id, []), running.get(node.id, [])
            free_from, by, later = _first_free(world, node, held, ran)
            spans = [(now, free_from, by)] if by else []
            booked = list(_booked(later, grace_s))
            next_start = booked[0][0] if booked else math.inf
            timeline.occupied(class_name, number, free_from, next_start)
            for start, end, blocker in [*spans, *booked]:
                key = (class_name, start, end)
                taken[key] = taken.get(key, 0) | 1 << number
                timeline.block(class_name, number, end, blocker)
    for (class_name, start, end), mask in taken.items():
        timeline.lanes[class_name].take(mask, start, end)
    return timeline


def _first_free(
    world: Snapshot,
    node: NodeSnapshot,
    holds: Sequence[NodeHold],
    running: Sequence[AttemptSnapshot],
) -> tuple[float, Blocker | None, Sequence[NodeHold]]:
    """Return the first time at which a node is free, its blocker until then, and later holds."""
    now = world.now.timestamp()
    current = holds[0] if holds and holds[0].start <= world.now else None
    later = holds[1:] if current else holds
    busy_until = max((attempt.ends_at.timestamp() for attempt in running), default=0.0)
    if current is None:
        if running:  # an attempt outlives its lease
            return max(busy_until, now) + CLEANING_S, Blocker(job_id=running[0].job_id), later
        if not node.clean:
            return now + CLEANING_S, Blocker(cleaning=True), later
        return now, None, later
    lease = world.leases.get(current.lease_id or "")
    hold_end = current.end.timestamp()
    if lease is None or (lease.kind is LeaseKind.BOOKED and lease.state is not LeaseState.ENDING):
        return hold_end, Blocker(lease_id=current.lease_id), later
    # A walk-in shrinks to the end of its last job, and so does a lease that was given back.
    job_id = running[0].job_id if running else None
    free_from = max(busy_until, now) + CLEANING_S
    return min(free_from, hold_end), Blocker(job_id=job_id, lease_id=current.lease_id), later


def _booked(holds: Sequence[NodeHold], grace_s: float) -> Iterator[tuple[float, float, Blocker]]:
    """Yield (start, end, blocker) for later holds of a node.

    A job before such a hold is cleaned up within the grace of its own lease.
    """
    for hold in holds:
        start = hold.start.timestamp()
        start -= start % HOUR_S + grace_s - CLEANING_S
        yield start, hold.end.timestamp(), Blocker(lease_id=hold.lease_id)


def soft_nodes(world: Snapshot, timeline: Timeline) -> dict[str, SoftNodes]:
    """Map class name -> nodes on which jobs may be cut, by the shortest gap that their policies
    allow."""
    found: dict[str, SoftNodes] = {}
    for class_name, nodes in timeline.nodes.items():
        by_gap: dict[float, int] = {}
        for number, node in enumerate(nodes):
            rules = world.scheduling_of(node.id)
            if rules.soft_fit == "on":
                least_s = rules.min_useful_min * 60.0
                by_gap[least_s] = by_gap.get(least_s, 0) | 1 << number
        below = accumulate((by_gap[least_s] for least_s in sorted(by_gap)), or_)
        found[class_name] = dict(zip(sorted(by_gap), below, strict=True))
    return found


def wall_room_s(timeline: Timeline, classes: Sequence[str], num_nodes: int) -> float:
    """Return the longest wall time, in seconds, with which a job could start at once.

    0 if no lane has `num_nodes` free nodes now, or if nothing limits their free time.
    """
    rooms = [timeline.lanes[name].room_now(num_nodes) for name in classes if name in timeline.lanes]
    return max((r.end - r.start - CLEANING_S for r in rooms if r and r.end < math.inf), default=0.0)
