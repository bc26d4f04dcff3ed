"""When every waiting job will start at the latest, and where: a conservative plan. Pure.

A node's time is a row of *gaps* between what holds it. Starting at the beginning of a gap is always
best, so a gap is its start and its *room*, the longest wall time that fits it: jobs that walk in
hold their node to a full hour, and that hour must not be past the next booked one. The waiting jobs
take their slots in order, each the earliest there is; none can delay an earlier one. A slot
shortens its gap in place, so their number never grows: 10,000 jobs on 1,000 nodes take a fraction
of a second.
"""

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from core.states import LeaseState
from core.tables import LeaseKind
from scheduler.snapshot import AttemptSeen, Hold, Snapshot

ROOM_OF = attrgetter("room")
CLEANING_S = 60.0  # between the end of a job and the next on the same node: saving and clean check
HOUR_S = 3600.0
BLOCK = 96  # gaps in one searched block; measured best between 64 and 128 for 20,000 gaps


class Blocker(NamedTuple):
    """What has a node until a gap begins."""

    job_id: str | None = None
    lease_id: str | None = None
    waiting: bool = False
    """True if the job has not started itself."""


class Gap(NamedTuple):
    """A time in which a node is free. `start` and `room` are in seconds, `start` since 1970.

    Ordered by start, then node: no two gaps have both in common.
    """

    start: float
    node_name: str
    room: float
    node_id: str
    after: Blocker | None = None
    cleaning: bool = False
    """The node has no holder, but has not said yet that it is clean."""


@dataclass(frozen=True)
class Slot:
    """Where and when a job can start."""

    class_name: str
    gap: Gap

    @property
    def is_free_now(self) -> bool:
        """Whether nothing stands between now and the start."""
        return self.gap.after is None and not self.gap.cleaning

    @property
    def start(self) -> datetime:
        """The moment."""
        return datetime.fromtimestamp(self.gap.start, UTC)


class Timeline:
    """The gaps of every node that may be given work."""

    def __init__(self, gaps: Mapping[str, Iterable[Gap]]) -> None:
        """`gaps` by node class."""
        self._lanes = {class_name: _Lane(sorted(found)) for class_name, found in gaps.items()}

    def earliest(self, classes: Sequence[str], wall_s: float) -> Slot | None:
        """The earliest slot for a job of this length on any of these classes, None if never.

        Of equally early ones that of the first class, then of the first node by name.
        """
        best: Slot | None = None
        for class_name in classes:
            lane = self._lanes.get(class_name)
            gap = lane.earliest(wall_s) if lane else None
            if gap is not None and (best is None or gap.start < best.gap.start):
                best = Slot(class_name, gap)
        return best

    def reserve(self, slot: Slot, wall_s: float, *, job_id: str) -> None:
        """Take a slot for a job, so that nobody after it gets that time."""
        taken_s = wall_s + CLEANING_S
        rest = Gap(
            start=slot.gap.start + taken_s,
            node_name=slot.gap.node_name,
            room=slot.gap.room - taken_s,
            node_id=slot.gap.node_id,
            after=Blocker(job_id=job_id, waiting=True),
        )
        self._lanes[slot.class_name].replace(slot.gap, rest)

    def room_now(self, classes: Sequence[str], now: datetime) -> float:
        """The longest wall time, in seconds, with which a job could start at once; 0 if none."""
        lanes = [self._lanes[name] for name in classes if name in self._lanes]
        return max((lane.room_until(now.timestamp()) for lane in lanes), default=0.0)


def build_timeline(world: Snapshot, grace_s: float) -> Timeline:
    """The gaps of every node that is ready and heard, from now on."""
    holds: dict[str, list[Hold]] = {
        node_id: list(group) for node_id, group in groupby(world.holds, key=lambda h: h.node_id)
    }
    running: dict[str, list[AttemptSeen]] = {}
    for attempt in world.attempts:
        running.setdefault(attempt.node_id, []).append(attempt)
    gaps: dict[str, list[Gap]] = {}
    for node in world.nodes.values():
        if not node.usable:
            continue
        free_from, after, later = _first_free(
            world, holds.get(node.id, []), running.get(node.id, [])
        )
        cleaning = after is None and not node.clean
        if cleaning:
            free_from += CLEANING_S
        first = Gap(free_from, node.name, math.inf, node.id, after, cleaning)
        gaps.setdefault(node.class_name, []).extend(_cut(first, later, grace_s))
    return Timeline(gaps)


def _first_free(
    world: Snapshot, holds: list[Hold], running: list[AttemptSeen]
) -> tuple[float, Blocker | None, list[Hold]]:
    """When a node is free for the first time, what has it until then, and what comes later."""
    now = world.now.timestamp()
    current = holds[0] if holds and holds[0].start <= world.now else None
    later = holds[1:] if current else holds
    busy_until = max((attempt.ends_at.timestamp() for attempt in running), default=0.0)
    if current is None:
        if not running:
            return now, None, later
        blocker = Blocker(job_id=running[0].job_id)  # left over from a lease that is over
        return max(busy_until, now) + CLEANING_S, blocker, later
    lease = world.leases.get(current.lease_id or "")
    hold_end = current.end.timestamp()
    if lease is None or (lease.kind is LeaseKind.BOOKED and lease.state is not LeaseState.ENDING):
        return hold_end, Blocker(lease_id=current.lease_id), later
    # A walk-in shrinks to the end of its last job, and so does a lease that was given back.
    job_id = running[0].job_id if running else None
    free_from = max(busy_until, now) + CLEANING_S
    return min(free_from, hold_end), Blocker(job_id=job_id, lease_id=current.lease_id), later


def _cut(gap: Gap, holds: Iterable[Hold], grace_s: float) -> Iterator[Gap]:
    """What is left of an open-ended gap between later holds."""
    start, node_name, _, node_id, after, cleaning = gap
    for hold in holds:
        hold_start = hold.start.timestamp()
        room = hold_start - hold_start % HOUR_S - grace_s - start  # full hours of UTC
        if room >= 1:
            yield Gap(start, node_name, room, node_id, after, cleaning)
        end = hold.end.timestamp()
        if end > start:
            start, after, cleaning = end, Blocker(lease_id=hold.lease_id), False
    yield Gap(start, node_name, math.inf, node_id, after, cleaning)


class _Lane:
    """The gaps of one class by start, in blocks that know their largest room."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._blocks = [list(gaps[i : i + BLOCK]) for i in range(0, len(gaps), BLOCK)] or [[]]
        self._rooms = [_largest(block) for block in self._blocks]

    def earliest(self, wall_s: float) -> Gap | None:
        for number, room in enumerate(self._rooms):
            if room >= wall_s:
                return next(gap for gap in self._blocks[number] if gap.room >= wall_s)
        return None

    def room_until(self, moment: float) -> float:
        largest = 0.0
        for block, room in zip(self._blocks, self._rooms, strict=True):
            if not block or block[0].start > moment:
                break
            if block[-1].start <= moment:
                largest = max(largest, room)
            else:
                largest = max([largest] + [gap.room for gap in block if gap.start <= moment])
        return largest

    def replace(self, old: Gap, new: Gap) -> None:
        number = self._block_of(old)
        self._blocks[number].remove(old)
        if old.room >= self._rooms[number]:
            self._rooms[number] = _largest(self._blocks[number])
        if new.room < 1:
            return
        number = self._block_of(new)
        block = self._blocks[number]
        insort(block, new)
        self._rooms[number] = max(self._rooms[number], new.room)
        if len(block) > 2 * BLOCK:
            self._blocks[number : number + 1] = [block[:BLOCK], block[BLOCK:]]
            self._rooms[number : number + 1] = [_largest(block[:BLOCK]), _largest(block[BLOCK:])]

    def _block_of(self, gap: Gap) -> int:
        """The first block that does not end before `gap`, or the last one."""
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            # An emptied block has no end: step over it to the right.
            if not self._blocks[middle]:
                del self._blocks[middle], self._rooms[middle]
                high = min(high, len(self._blocks) - 1)
            elif self._blocks[middle][-1] < gap:
                low = middle + 1
            else:
                high = middle
        return low


def _largest(block: Sequence[Gap]) -> float:
    return max(map(ROOM_OF, block), default=0.0)
