"""Simulation of a course's bookings: will the hours be enough, and who gets some? Pure.

Students come as `population` says, and every block that they take is judged by `core.policy`, on
the nodes, beside the leases and under the rules that are given.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean

from core.courses.population import (
    CANCEL_SHARE,
    FAULT_SHARE,
    FIRST_SHARE,
    NEAR_DAYS,
    TRIES,
    arrival,
)
from core.policy.bands import whole_hours
from core.policy.document import Policy
from core.policy.evaluate import leaves_gap
from core.policy.grid import HOUR, hour_ceiling
from core.policy.matching import ALL, CountedLease, Room, rooms_left
from core.policy.sections import Quota, QuotaScope
from core.policy.verdict import BookingRequest, LeaseFact, Member, NodeRef, Situation, Span
from core.states import LeaseState

SEEDS = 5
BESIDE = timedelta(days=2)  # holds so far around a block matter to the gap rule
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Booker:
    """A student and the leases of the student that count."""

    member: Member
    leases: tuple[LeaseFact, ...] = ()


@dataclass(frozen=True)
class Demand:
    """Students who need blocks before a deadline, and the nodes that they may book."""

    policy: Policy
    nodes: Mapping[NodeRef, Sequence[Span]]
    """Nodes with what is held on them."""
    students: Sequence[Booker]
    begins: datetime
    """Time from which leases are for this work, and students come."""
    now: datetime
    deadline: datetime
    hours: int
    """Length of the block that each needs, if the rules list no alternatives."""


@dataclass(frozen=True)
class Prospect:
    """Chances of one student, from 0 to 1."""

    user_id: str
    has_all: bool
    """True if all blocks are booked already."""
    whole: float
    part: float


@dataclass(frozen=True)
class DayOfArrival:
    """Students who come so many days before the deadline."""

    days_left: int
    students: float
    served: float
    """Share of them who get all blocks."""


@dataclass(frozen=True)
class NodeLoad:
    """Hours of a node by day until the deadline, on average."""

    node: str
    hours: float
    booked_hours: float


@dataclass(frozen=True)
class Outlook:
    """Means of several simulations."""

    whole: float
    """Share of the students who get all blocks of an alternative."""
    part: float
    prospects: tuple[Prospect, ...]
    arrivals: tuple[DayOfArrival, ...]
    loads: tuple[NodeLoad, ...]

    @property
    def nothing(self) -> float:
        return max(0.0, 1.0 - self.whole - self.part)


def outlook(demand: Demand, *, seeds: int = SEEDS) -> Outlook:
    """Simulate the bookings several times and return the means."""
    runs = [_Rush(demand, seed) for seed in range(seeds)]
    for run in runs:
        run.play()
    people = range(len(demand.students))
    prospects = tuple(
        Prospect(
            user_id=runs[0].students[at].member.id,
            has_all=runs[0].students[at].had_all,
            whole=fmean(run.is_whole(run.students[at]) for run in runs),
            part=fmean(run.is_part(run.students[at]) for run in runs),
        )
        for at in people
    )
    return Outlook(
        whole=fmean(one.whole for one in prospects) if prospects else 0.0,
        part=fmean(one.part for one in prospects) if prospects else 0.0,
        prospects=prospects,
        arrivals=tuple(_arrivals(demand, runs)),
        loads=tuple(_loads(demand, runs)),
    )


def alternatives(policy: Policy, hours: int) -> tuple[tuple[Room, ...], ...]:
    """Return the ways to use up the quota of the day, the first as its author lists them.

    A policy without alternatives leaves one block of `hours` on any node.
    """
    quota = day_quota(policy)
    if quota is None:
        return ((Room((ALL,), hours),),)
    choices = policy.quotas[quota].one_of
    return tuple(
        tuple(Room(slot.pool, slot.hours, slot.gpus) for slot in choice.slots) for choice in choices
    )


def day_quota(policy: Policy) -> str | None:
    """Return the quota with alternatives that blocks by day are charged to; None without one."""
    in_bands = {band.quota for band in policy.bands.values() if band.complement_of is None}
    found = [name for name, quota in policy.quotas.items() if _is_personal(quota)]
    return next((name for name in found if name not in in_bands), None)


def _is_personal(quota: Quota) -> bool:
    return bool(quota.one_of) and quota.scope is QuotaScope.USER


@dataclass
class _Student:
    member: Member
    choices: tuple[tuple[Room, ...], ...]
    """Alternatives, the preferred one first."""
    leases: list[LeaseFact]
    came: datetime
    had_all: bool = False


@dataclass
class _Node:
    ref: NodeRef
    held: list[int]
    """Slots that are held in each hour from the first one on."""
    spans: list[Span] = field(default_factory=list)


class _Rush:
    """One simulation, with a random course of events."""

    def __init__(self, demand: Demand, seed: int) -> None:
        self._demand, self._policy = demand, demand.policy
        self._chance = random.Random(seed)
        self._quota = day_quota(demand.policy)
        self._first = hour_ceiling(demand.now, demand.policy.grid.anchor)
        self._hours = max(0, int((demand.deadline - self._first) / HOUR))
        self._by_day = [self._is_by_day(self._first + at * HOUR, HOUR) for at in range(self._hours)]
        self.nodes = {ref.id: self._node(ref, holds) for ref, holds in demand.nodes.items()}
        self._labs: dict[str, list[LeaseFact]] = defaultdict(list)
        for lease in (lease for student in demand.students for lease in student.leases):
            self._labs[lease.lab_id or ""].append(lease)
        self._counts_labs = any(q.scope is QuotaScope.LAB for q in self._policy.quotas.values())
        choices = alternatives(demand.policy, demand.hours)
        self.students = [self._student(booker, choices) for booker in demand.students]

    def play(self) -> None:
        """Let all who lack blocks come, in the order of time; those who lose one come again."""
        for student in self.students:
            student.had_all = self.is_whole(student)
        visits = [
            (student.came, number)
            for number, student in enumerate(self.students)
            if not student.had_all
        ]
        heapq.heapify(visits)
        while visits:
            now, number = heapq.heappop(visits)
            for again in self._visit(self.students[number], now):
                heapq.heappush(visits, (again, number))

    def is_whole(self, student: _Student) -> bool:
        """Return True if a student has all blocks of an alternative."""
        if self._quota is None:
            return any(_length(one) >= self._demand.hours for one in self._counted(student))
        return any(not rooms for rooms in self._rooms(student))

    def is_part(self, student: _Student) -> bool:
        """Return True if a student has some blocks, not all."""
        return bool(self._counted(student)) and not self.is_whole(student)

    def by_day(self, node: _Node) -> list[int]:
        """Return the hours by day in which leases may lie on a node, counted from the first."""
        hours = ((at, self._first + at * HOUR) for at in range(self._hours))
        return [
            at
            for at, start in hours
            if self._by_day[at] and self._policy.is_usable(node.ref, start, start + HOUR)
        ]

    def _student(self, booker: Booker, choices: tuple[tuple[Room, ...], ...]) -> _Student:
        begins, now, deadline = self._demand.begins, self._demand.now, self._demand.deadline
        length = max(deadline - begins, HOUR)
        since = min(1.0, max(0.0, (now - begins) / length))
        came = begins + length * arrival(self._chance.random(), since=since)
        at = 0
        if len(choices) > 1 and self._chance.random() >= FIRST_SHARE:
            at = 1 + self._chance.randrange(len(choices) - 1)
        ordered = (choices[at], *choices[:at], *choices[at + 1 :])
        return _Student(booker.member, ordered, list(booker.leases), max(came, now))

    def _node(self, ref: NodeRef, holds: Sequence[Span]) -> _Node:
        node = _Node(ref, [0] * self._hours)
        for hold in holds:
            self._hold(node, hold, 1)
        return node

    def _visit(self, student: _Student, now: datetime) -> Iterator[datetime]:
        """Book what a student lacks; yield when the student comes again because of a loss."""
        booked: list[LeaseFact] = []
        for rooms in self._rooms(student):
            got = [self._take(student, room, now) for room in rooms]
            booked += [lease for lease in got if lease is not None]
            if booked:
                break
        for lease in booked:
            if self._chance.random() < FAULT_SHARE:
                student.leases.remove(lease)
                yield lease.end
            elif self._chance.random() < CANCEL_SHARE / len(booked):
                student.leases.remove(lease)
                self._give_back(lease)
                yield now + (lease.start - now) * self._chance.random()

    def _rooms(self, student: _Student) -> list[tuple[Room, ...]]:
        """Return the blocks that a student still lacks, by alternative, the preferred first."""
        counted = [self._as_counted(lease) for lease in self._counted(student)]
        if self._quota is None:
            return list(student.choices)
        left = (rooms_left(counted, rooms, distinct_times=False) for rooms in student.choices)
        return [rooms for rooms in left if rooms is not None]

    def _counted(self, student: _Student) -> list[LeaseFact]:
        """Return the booked leases by day that are for this work."""
        begins, deadline = self._demand.begins, self._demand.deadline
        return [
            lease
            for lease in student.leases
            if lease.kind == "booked"
            and lease.end > begins
            and lease.start < deadline
            and self._is_by_day(lease.start, lease.end - lease.start)
        ]

    def _as_counted(self, lease: LeaseFact) -> CountedLease:
        pools = self._policy.pools_for(lease.node, lease.num_slots)
        return CountedLease(pools, _length(lease), lease.start, lease.end, lease.size)

    def _take(self, student: _Student, room: Room, now: datetime) -> LeaseFact | None:
        """Book a block as people do: soon rather than late, and without a gap where possible."""
        first = max(0, int((hour_ceiling(now, self._policy.grid.anchor) - self._first) / HOUR))
        near = min(self._hours - first, NEAR_DAYS * 24)
        looks = [first + self._chance.randrange(near) for _ in range(TRIES)] if near > 0 else []
        warned: tuple[_Node, int, int | None] | None = None
        nodes = [
            (node, self._size(node, room))
            for node in self.nodes.values()
            if self._sells(node, room)
        ]
        for number, at in enumerate([*looks, *range(first, self._hours)]):
            if number == TRIES and warned is not None:
                break  # a gap is no reason to look through weeks of hours
            if not self._by_day[at]:
                continue
            for node, size in self._chance.sample(nodes, len(nodes)):
                if not self._is_free(node, at, room.hours, node.ref.size(size)):
                    continue
                warns = self._judge(student, node, at, room.hours, size, now)
                if warns is False:
                    return self._book(student, node, at, room.hours, size, now)
                if warns and warned is None:
                    warned = node, at, size
        if warned is None:
            return None
        node, at, size = warned
        return self._book(student, node, at, room.hours, size, now)

    def _sells(self, node: _Node, room: Room) -> bool:
        pools = self._policy.pools_for(node.ref, self._size(node, room))
        return ALL in room.pools or any(pool in room.pools for pool in pools)

    def _size(self, node: _Node, room: Room) -> int | None:
        """Return the number of slots of a block in this room; None for the whole node."""
        slots = node.ref.slots
        fitting = [n for n in self._policy.sizes(node.ref) if n <= (room.gpus or slots)]
        size = max(fitting, default=slots)
        return None if size == slots else size

    def _is_free(self, node: _Node, at: int, hours: int, size: int) -> bool:
        held = node.held[at : at + hours]
        return len(held) == hours and max(held) + size <= node.ref.slots

    def _judge(
        self,
        student: _Student,
        node: _Node,
        at: int,
        hours: int,
        size: int | None,
        now: datetime,
    ) -> bool | None:
        """Return True if the rules warn of a gap, False if all is well; None if they refuse."""
        start = self._first + at * HOUR
        end = start + hours * HOUR
        if not self._is_by_day(start, end - start):
            return None
        if not self._policy.is_usable(node.ref, start, end, num_slots=size):
            return None
        labs = student.member.lab_ids if self._counts_labs else ()
        situation = Situation(
            now,
            own=tuple(student.leases),
            lab=tuple(fact for lab_id in labs for fact in self._labs[lab_id]),
            holds=tuple(s for s in node.spans if s.start < end + BESIDE and s.end > start - BESIDE),
        )
        request = BookingRequest(student.member, node.ref, start, end, num_slots=size)
        return leaves_gap(request, situation, self._policy)

    def _book(
        self,
        student: _Student,
        node: _Node,
        at: int,
        hours: int,
        size: int | None,
        now: datetime,
    ) -> LeaseFact:
        start = self._first + at * HOUR
        lease = LeaseFact(
            id=f"{student.member.id} {node.ref.name} {at} {now.isoformat()}",
            user_id=student.member.id,
            lab_id=student.member.lab_id,
            node=node.ref,
            start=start,
            end=start + hours * HOUR,
            kind="booked",
            state=LeaseState.BOOKED,
            counts=True,
            created_at=now,
            num_slots=size,
        )
        self._hold(node, Span(lease.start, lease.end, lease.id, size), 1)
        student.leases.append(lease)
        self._labs[lease.lab_id or ""].append(lease)
        return lease

    def _give_back(self, lease: LeaseFact) -> None:
        node = self.nodes[lease.node.id]
        self._hold(node, Span(lease.start, lease.end, lease.id, lease.num_slots), -1)
        self._labs[lease.lab_id or ""].remove(lease)

    def _hold(self, node: _Node, span: Span, sign: int) -> None:
        """Hold the slots of a span on a node, or with -1 free them."""
        begin = int((span.start - self._first) // HOUR)
        end = -int((self._first - span.end) // HOUR)
        for hour in range(max(0, begin), min(self._hours, end)):
            node.held[hour] += sign * node.ref.size(span.num_slots)
        if sign > 0:
            node.spans.append(span)
        else:
            node.spans.remove(span)

    def _is_by_day(self, start: datetime, length: timedelta) -> bool:
        name = self._policy.clock.place(start, start + length).band
        if name is None:
            return True
        band = self._policy.bands[name]
        return band.complement_of is not None or band.quota == self._quota


def _length(lease: LeaseFact) -> int:
    return whole_hours(lease.end - lease.start)


def _arrivals(demand: Demand, runs: Sequence[_Rush]) -> Iterator[DayOfArrival]:
    """Yield the days on which students come, the first first."""
    served: dict[int, list[bool]] = defaultdict(list)
    for run in runs:
        for student in run.students:
            if not student.had_all:
                days_left = (demand.deadline - student.came) // DAY
                served[days_left].append(run.is_whole(student))
    for days_left in sorted(served, reverse=True):
        found = served[days_left]
        yield DayOfArrival(days_left, len(found) / len(runs), fmean(found))


def _loads(demand: Demand, runs: Sequence[_Rush]) -> Iterator[NodeLoad]:
    for ref in demand.nodes:
        hours = runs[0].by_day(runs[0].nodes[ref.id])
        booked = [sum(run.nodes[ref.id].held[at] for at in hours) / ref.slots for run in runs]
        yield NodeLoad(ref.name, len(hours), fmean(booked))
