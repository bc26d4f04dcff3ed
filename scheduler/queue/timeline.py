"""Free time of the nodes from now on, as lanes, with the blocker before each start. Pure.

A node, or some of its slots, is held by the job that runs on it, for its whole wall time; by the
lease that it is in; and by later leases. A walk-in job holds its nodes to a full hour, which must
not be past the next booked one, so a lease takes its node from the full hour (UTC) at its start
less the grace.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, count, groupby, islice
from operator import or_
from typing import NamedTuple

from core.states import LeaseState
from core.tables.kinds import LeaseKind
from scheduler.queue.backfill import ALL_NODES, Part, SoftNodes, Want
from scheduler.queue.masks import ClassLane, bits
from scheduler.queue.parts import sizes_sold, smallest
from scheduler.snapshot import AttemptSnapshot, LeaseSnapshot, NodeHold, NodeSnapshot, Snapshot

CLEANING_S = 60.0  # between the end of a job and the next on the same node: saving and clean check
HOUR_S = 3600.0
Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes of walk-ins on a node, ascending: of recipes, and of programs."""


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
        divided: Mapping[str, int] | None = None,
        sizes: Mapping[str, Mapping[Sizes, int]] | None = None,
    ) -> None:
        """Create a timeline in which all nodes are free.

        `nodes` maps class name -> nodes, `num_slots` class name -> slots of each of them. `divided`
        maps the classes of which parts are leased to their slots, and `sizes` each of these classes
        to the sizes of walk-ins, of recipes and of programs, with the nodes that have them.

        Bit n of a class's masks stands for its n-th node.
        """
        self.now = now
        self.nodes = nodes
        self._num_slots = num_slots or {}
        self._sizes = sizes or {}
        self._ways: dict[Hashable, dict[str, tuple[Part, ...]]] = {}
        self._unfit = {
            name: {number: node.unfit for number, node in enumerate(of) if node.unfit}
            for name, of in nodes.items()
        }
        levels = divided or {}
        self.lanes = {
            name: ClassLane((1 << len(of)) - 1, now, levels.get(name, 1))
            for name, of in nodes.items()
        }
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
        ended = [max(filter(start.__gt__, ends), default=0.0) for ends in until]
        latest = max(ended)
        return until[ended.index(latest)].get(latest)

    def ways(
        self, ranks: int, *, is_script: bool = False, memory_slots: Mapping[str, int] | None = None
    ) -> Mapping[str, Sequence[Part]]:
        """Map class -> ways in which a job of so many ranks on each node may take its nodes, where
        they are not simply all of the whole nodes.

        `memory_slots` maps class -> slots whose memory it needs, where they are more than its
        ranks.
        """
        more = memory_slots or {}
        asked = (ranks, is_script, tuple(sorted(more.items())))
        if asked not in self._ways:
            named = self._sizes.keys() | {name for name, unfit in self._unfit.items() if unfit}
            self._ways[asked] = {
                name: tuple(self._ways_in(name, ranks, more.get(name, 0), is_script))
                for name in named
            }
        return self._ways[asked]

    def _ways_in(
        self, class_name: str, ranks: int, memory_slots: int, is_script: bool
    ) -> Iterator[Part]:
        slots = self._num_slots.get(class_name, 0)
        by_size: dict[int | None, int] = {}
        for sold, nodes in self._sizes.get(class_name, {((), ()): ALL_NODES}).items():
            size = smallest(sold[is_script], max(ranks, memory_slots), slots)
            by_size[size] = by_size.get(size, 0) | nodes
        counts = {len(out) for out in self._unfit[class_name].values()}
        for size, nodes in by_size.items():
            fit = nodes & ~self.short(class_name, size or ranks)
            if size is None:
                if fit:
                    yield Part(None, fit)
                continue
            reached = 0  # nodes with fewer slots out of service have a way that asks for less
            for unfit in sorted({0, *counts}):
                most = fit & ~self.short(class_name, slots - unfit)
                if most & ~reached:
                    yield Part(size, most, unfit)
                reached |= most

    def short(self, class_name: str, slots: int) -> int:
        """Return the mask of the nodes that have fewer than so many slots fit for jobs."""
        most = self._num_slots.get(class_name, 0) - slots
        unfit = self._unfit[class_name]
        return sum(1 << number for number, out in unfit.items() if len(out) > most)

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


class Hold(NamedTuple):
    """Slots of a node that are taken from `start` to `end`, in seconds; None: all of them."""

    start: float
    end: float
    by: Blocker
    slots: int | None = None


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
    sizes = _sizes(world, nodes)
    in_parts = {hold.node_id for hold in world.holds if hold.num_slots is not None}
    divided = {
        name: max(node.slots for node in of)
        for name, of in nodes.items()
        if name in sizes or any(node.id in in_parts for node in of)
    }
    timeline = Timeline(now, nodes, num_slots, divided, sizes)
    taken: dict[tuple[str, float, float, int | None], int] = {}  # many leases share their hours
    for class_name, of_class in nodes.items():
        for number, node in enumerate(of_class):
            held, ran = holds.get(node.id, []), running.get(node.id, [])
            present = list(_present(world, node, held, ran))
            booked = [_booked(hold, grace_s) for hold in held if hold.start > world.now]
            until = max((hold.end for hold in present), default=now)
            timeline.occupied(class_name, number, until, booked[0].start if booked else math.inf)
            for (start, end), slots in _summed([*present, *booked]).items():
                key = (class_name, start, end, slots)
                taken[key] = taken.get(key, 0) | 1 << number
            for hold in (*present, *booked):
                timeline.block(class_name, number, hold.end, hold.by)
    for (class_name, start, end, slots), mask in taken.items():
        timeline.lanes[class_name].take(mask, start, end, slots)
    return timeline


def _sizes(
    world: Snapshot, nodes: Mapping[str, Sequence[NodeSnapshot]]
) -> dict[str, dict[Sizes, int]]:
    """Map class -> sizes of walk-ins on its nodes -> mask of these nodes, for the classes of which
    parts are sold."""
    found: dict[str, dict[Sizes, int]] = {}
    for class_name, of_class in nodes.items():
        sold: dict[Sizes, int] = {}
        for number, node in enumerate(of_class):
            sizes = (
                sizes_sold(world, node, is_script=False),
                sizes_sold(world, node, is_script=True),
            )
            sold[sizes] = sold.get(sizes, 0) | 1 << number
        if any(min(recipes, default=node.slots) < node.slots for recipes, _ in sold):
            found[class_name] = sold
    return found


def _summed(holds: Sequence[Hold]) -> dict[tuple[float, float], int | None]:
    """Map (start, end) -> slots that holds of one node take then; None: all of them."""
    found: dict[tuple[float, float], int | None] = {}
    for start, end, _, slots in holds:
        before = found.get((start, end), 0)
        found[start, end] = None if slots is None or before is None else before + slots
    return found


def _present(
    world: Snapshot,
    node: NodeSnapshot,
    holds: Sequence[NodeHold],
    running: Sequence[AttemptSnapshot],
) -> Iterator[Hold]:
    """Yield what takes slots of a node now: leases, attempts that outlive theirs, cleaning."""
    now = world.now.timestamp()
    current = [hold for hold in holds if hold.start <= world.now]
    in_leases: set[int] = set()
    outside = list(running)
    for hold in current:
        lease = world.leases.get(hold.lease_id or "")
        there = [] if lease is None else [one for one in running if _is_at(lease, one)]
        yield Hold(
            now, _held_until(hold, lease, there, now), _blocker(hold, lease, there), hold.num_slots
        )
        outside = [one for one in outside if one not in there]
        in_leases |= lease.slots if lease is not None else set()
    if any(hold.num_slots is None for hold in current):
        return
    for attempt in outside:  # it outlives its lease
        end = max(attempt.ends_at.timestamp(), now) + CLEANING_S
        yield Hold(
            now, end, Blocker(job_id=attempt.job_id), len(attempt.slots) if current else None
        )
        in_leases |= set(attempt.slots)
    dirty = node.dirty - in_leases
    if not node.clean and (dirty or not (current or running)):
        yield Hold(now, now + CLEANING_S, Blocker(cleaning=True), len(dirty) or None)


def _is_at(lease: LeaseSnapshot, attempt: AttemptSnapshot) -> bool:
    """Return True if an attempt on its node is on a lease's slots."""
    return lease.num_slots is None or not lease.slots.isdisjoint(attempt.slots)


def _held_until(
    hold: NodeHold, lease: LeaseSnapshot | None, there: Sequence[AttemptSnapshot], now: float
) -> float:
    """Return the time at which a present hold is over."""
    end = hold.end.timestamp()
    if lease is None or not _shrinks(lease):
        return end
    busy_until = max((attempt.ends_at.timestamp() for attempt in there), default=0.0)
    return min(max(busy_until, now) + CLEANING_S, end)


def _blocker(
    hold: NodeHold, lease: LeaseSnapshot | None, there: Sequence[AttemptSnapshot]
) -> Blocker:
    job_id = there[0].job_id if there and lease is not None and _shrinks(lease) else None
    return Blocker(job_id=job_id, lease_id=hold.lease_id)


def _shrinks(lease: LeaseSnapshot) -> bool:
    """Return True if a lease ends with its last job: a walk-in, or one that was given back."""
    return lease.kind is not LeaseKind.BOOKED or lease.state is LeaseState.ENDING


def _booked(hold: NodeHold, grace_s: float) -> Hold:
    """Return a later hold of a node.

    A job before it is cleaned up within the grace of its own lease.
    """
    start = hold.start.timestamp()
    start -= start % HOUR_S + grace_s - CLEANING_S
    return Hold(start, hold.end.timestamp(), Blocker(lease_id=hold.lease_id), hold.num_slots)


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


def wall_room_s(timeline: Timeline, want: Want) -> float:
    """Return the longest wall time, in seconds, with which a job could start at once.

    0 if no lane has enough nodes free now, or if nothing limits their free time.
    """
    rooms = [
        timeline.lanes[name].room_now(want.num_nodes, slots=part.free, among=part.nodes)
        for name in want.classes
        if name in timeline.lanes
        for part in want.ways(name)
    ]
    return max((r.end - r.start - CLEANING_S for r in rooms if r and r.end < math.inf), default=0.0)
