"""A simulated course before its deadline: the share of students who get the hours that the policy
grants them. Pure.

Every booking is judged by `core.policy`. Students come in the last ten days, most of them late;
six in ten want one long block, the others two short ones, by day and on any node of the pool. Each
student tries the remaining free starts in a random order and takes the first that is granted; if
gaps give a warning (soft), the first without a warning, if there is one. Of the bookings 15 % are
cancelled in time, 3 % fail with their node, and both are booked again; 8 % of the students do not
show up, and their hours count as used.
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from core.policy.document import Policy
from core.policy.evaluate import evaluate
from core.policy.grid import HOUR, hour_ceiling
from core.policy.sections import GapMode
from core.policy.verdict import BookingRequest, LeaseFact, Member, NodeRef, Situation, Span
from core.states import LeaseState

STUDENTS = 191
RUSH = timedelta(days=10)
LATE = (3.0, 1.2)  # of a Beta distribution over these days: half come in the last two and a half
LONG_SHARE, CANCELLED, NOT_SHOWN, FAILED = 0.6, 0.15, 0.08, 0.03
MAIN, ONE_LONG = "main", "one-long"


@dataclass(frozen=True)
class CourseResult:
    """Results for the students: shares from 0 to 1, and times in hours."""

    got_quota: float
    not_shown: float
    p95_notice_h: float
    lost_to_gaps: float
    """Share of the free hours by day that lie in pieces too short for a block."""


@dataclass
class _Node:
    ref: NodeRef
    pool: str
    hours: int
    """Length of a block by day, in hours."""
    holds: list[Span] = field(default_factory=list)

    def is_free(self, start: datetime, end: datetime) -> bool:
        return all(hold.end <= start or end <= hold.start for hold in self.holds)


@dataclass
class _Student:
    member: Member
    comes: datetime
    pools: tuple[str, ...]
    """Pool of each block that the student wants."""
    leases: list[LeaseFact] = field(default_factory=list)


class Course:
    """One deadline, with one random course of events."""

    def __init__(self, policy: Policy, seed: int) -> None:
        """Create a course; `policy` has one long and two short pools, like
        examples/policies/course.yaml."""
        self._policy, self._random = policy, random.Random(seed)
        self._nodes = list(_nodes_of(policy))
        self._notices_h: list[float] = []
        self._not_shown = 0

    def run(self) -> CourseResult:
        """Let all students book, in the order in which they come; return the results."""
        students = sorted(self._students(), key=lambda student: student.comes)
        got = sum(self._book_all(student) for student in students)
        notices = statistics.quantiles(self._notices_h, n=20) if len(self._notices_h) > 1 else [0.0]
        return CourseResult(
            got_quota=got / len(students),
            not_shown=self._not_shown / len(students),
            p95_notice_h=notices[-1],
            lost_to_gaps=self._lost(),
        )

    def _students(self) -> Iterator[_Student]:
        _, deadline = self._policy.whole
        main = {one.name: one for one in self._policy.quotas[MAIN].one_of}
        group = (self._policy.who.group or ["course"])[0]
        for number in range(STUDENTS):
            late = self._random.betavariate(*LATE)
            is_long = self._random.random() < LONG_SHARE
            wanted = (
                main[ONE_LONG] if is_long else next(m for m in main.values() if m.name != ONE_LONG)
            )
            yield _Student(
                Member(f"user_{number}", groups=frozenset({group})),
                deadline - RUSH + late * RUSH,
                tuple(slot.pool[0] for slot in wanted.slots),
            )

    def _book_all(self, student: _Student) -> bool:
        """Book for a student; return True if the student gets every block that is wanted."""
        for pool in student.pools:
            lease = self._book(student, pool, student.comes)
            if lease is None:
                return False
            chance = self._random.random()
            if chance < CANCELLED + FAILED:
                self._give_back(student, lease)
                again = lease.start if chance >= CANCELLED else student.comes + HOUR
                if self._book(student, pool, again) is None:
                    return False
        if self._random.random() < NOT_SHOWN:
            self._not_shown += 1
        return True

    def _book(self, student: _Student, pool: str, now: datetime) -> LeaseFact | None:
        warned: LeaseFact | None = None
        for node, start in self._free_starts(pool, now):
            hold_end = start + node.hours * HOUR
            situation = Situation(now, own=tuple(student.leases), holds=tuple(node.holds))
            verdict = evaluate(
                BookingRequest(student.member, node.ref, start, hold_end),
                situation,
                self._policy,
                offers=0,
            )
            if not verdict.ok or verdict.charge.quota != MAIN:
                continue
            lease = _fact(student, node, start, hold_end, now)
            if any(reason.code == "leaves_gap" for reason in verdict.warnings):
                warned = warned or lease
                continue
            return self._take(student, lease)
        return self._take(student, warned) if warned else None

    def _free_starts(self, pool: str, now: datetime) -> list[tuple[_Node, datetime]]:
        """Return the free starts in a pool, in random order."""
        first, deadline = hour_ceiling(now), self._policy.whole[1]
        found = []
        for node in self._nodes:
            if node.pool != pool:
                continue
            for hour in range(int((deadline - first) / HOUR)):
                start = first + hour * HOUR
                if node.is_free(start, start + node.hours * HOUR):
                    found.append((node, start))
        self._random.shuffle(found)
        return found

    def _take(self, student: _Student, lease: LeaseFact) -> LeaseFact:
        node = next(node for node in self._nodes if node.ref == lease.node)
        node.holds.append(Span(lease.start, lease.end, lease.id))
        student.leases.append(lease)
        self._notices_h.append((lease.start - lease.created_at) / HOUR)
        return lease

    def _give_back(self, student: _Student, lease: LeaseFact) -> None:
        student.leases.remove(lease)
        for node in self._nodes:
            node.holds = [hold for hold in node.holds if hold.lease_id != lease.id]

    def _lost(self) -> float:
        """Return the free hours by day that blocks can't fill, as a share of all free hours by day.

        Only the last ten days count.
        """
        _, deadline = self._policy.whole
        free_h = lost_h = 0
        for node in self._nodes:
            run = 0
            for hour in range(int(RUSH / HOUR) + 1):
                start = deadline - RUSH + hour * HOUR
                by_day = "overnight" not in self._policy.clock.touched(start, start + HOUR)
                if start < deadline and by_day and node.is_free(start, start + HOUR):
                    run += 1
                    continue
                free_h += run
                lost_h += run % node.hours
                run = 0
        return lost_h / free_h if free_h else 0.0


def compare_gap_rules(policy: Policy, seeds: Sequence[int]) -> dict[str, CourseResult]:
    """Return the mean results over the seeds, by gap mode: off, soft and hard."""
    found = {}
    for mode in GapMode:
        rules = policy.model_copy(update={"gaps": policy.gaps.model_copy(update={"mode": mode})})
        runs = [Course(rules, seed).run() for seed in seeds]
        found[str(mode)] = CourseResult(
            *(
                statistics.fmean(getattr(run, name) for run in runs)
                for name in CourseResult.__dataclass_fields__
            )
        )
    return found


def _nodes_of(policy: Policy) -> Iterator[_Node]:
    for slot in (slot for option in policy.quotas[MAIN].one_of for slot in option.slots):
        pool = policy.pools[slot.pool[0]]
        of_class = policy.classes[pool.class_name].nodes if pool.class_name else ()
        for name in pool.nodes or of_class:
            yield _Node(
                NodeRef(f"node_{name}", name, pool.class_name or name), slot.pool[0], slot.hours
            )


def _fact(
    student: _Student, node: _Node, start: datetime, end: datetime, now: datetime
) -> LeaseFact:
    return LeaseFact(
        id=f"lease_{student.member.id}_{len(student.leases)}_{start:%d%H}",
        user_id=student.member.id,
        lab_id=None,
        node=node.ref,
        start=start,
        end=end,
        kind="booked",
        state=LeaseState.BOOKED,
        counts=True,
        created_at=now,
    )
