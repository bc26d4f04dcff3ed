"""Share of 191 students who get their quota on seven nodes, with gaps off, soft and hard.

Simulated students under the course's own rules: `python -m benchmarks.term` calls evaluate() for
every block. They come late (Beta 5, 2 over the windows); 60 % want the long block, 40 % two short
ones. Each takes the first of twelve daytime starts within five days that the rules allow, else
tries all hours to the deadline, else the other alternative. 15 % cancel in time and come again
later; 3 % of blocks are lost to a fault. A student who finds a block that leaves no gap takes it.
"""

import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import mean

from core.policy.document import Policy, load
from core.policy.evaluate import evaluate
from core.policy.grid import HOUR, hour_ceiling
from core.policy.verdict import BookingRequest, LeaseFact, Member, NodeRef, Situation, Span
from core.states import LeaseState

COURSE = Path(__file__).parents[1] / "examples" / "policies" / "course.yaml"
STUDENTS, SEEDS = 191, 5
TRIES, TRIED_DAYS = 12, 5
LONG_SHARE, CANCEL_SHARE, FAULT_SHARE = 0.6, 0.15, 0.03
ARRIVAL = (5.0, 2.0)  # of a Beta distribution: most come in the last third
MODES = ("off", "soft", "hard")
Spans = dict[str, list[Span]]


@dataclass
class Student:
    """A student and the leases that the student has."""

    member: Member
    wants_long: bool
    leases: list[LeaseFact] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Results of one term, as shares from 0 to 1."""

    whole: float
    """Share of students with the whole quota."""
    half: float
    """Share of students with a part of it."""
    long_booked: float
    """Share of the daytime hours of the long node that were booked."""


def simulate(policy: Policy, seed: int) -> Outcome:
    """Simulate one term."""
    chance = random.Random(seed)
    first, last = policy.whole
    nodes = nodes_of(policy)
    taken: Spans = defaultdict(list)
    students = [
        Student(
            Member(f"user_{number}", groups=frozenset(policy.who.group or ())),
            chance.random() < LONG_SHARE,
        )
        for number in range(STUDENTS)
    ]
    visits = [(first + (last - first) * chance.betavariate(*ARRIVAL), s) for s in students]
    visits.sort(key=lambda visit: visit[0])
    while visits:
        now, student = visits.pop(0)
        for pools in plans_of(student):
            if all(take(policy, student, pool, nodes, taken, now, chance) for pool in pools):
                break
        for lease in list(student.leases):
            lost = chance.random() < FAULT_SHARE
            if lost or chance.random() < CANCEL_SHARE / len(student.leases):
                student.leases.remove(lease)
                if not lost:
                    held = taken[lease.node.name]
                    held[:] = [span for span in held if span.lease_id != lease.id]
                again = lease.end if lost else now + (lease.start - now) * chance.random()
                visits.append((again, student))
        visits.sort(key=lambda visit: visit[0])
    whole = [s for s in students if len(s.leases) == 2 or any(hours(x) == 3 for x in s.leases)]
    half = [s for s in students if s.leases and s not in whole]
    long_hours = sum((span.end - span.start) / HOUR for span in taken["307G3Q3"])
    by_day = 18 * ((last - first) / timedelta(days=1))
    return Outcome(len(whole) / STUDENTS, len(half) / STUDENTS, long_hours / by_day)


def plans_of(student: Student) -> list[tuple[str, ...]]:
    """Return the pools of each alternative, the preferred one first, without blocks already
    held."""
    if any(hours(lease) == 3 for lease in student.leases):
        return []
    have = {"single" if "compute" in lease.node.name else "second" for lease in student.leases}
    short = tuple(pool for pool in ("single", "second") if pool not in have)
    if have:
        return [short]
    return [("long",), short] if student.wants_long else [short, ("long",)]


def take(
    policy: Policy,
    student: Student,
    pool: str,
    nodes: dict[str, list[NodeRef]],
    taken: Spans,
    now: datetime,
    chance: random.Random,
) -> bool:
    """Book a block in the pool if the rules allow one; return False if none was found."""
    last = policy.whole[1]
    span = int((last - now) / HOUR)
    near = [chance.randrange(min(span, TRIED_DAYS * 24)) for _ in range(TRIES)] if span > 0 else []
    second_best: tuple[NodeRef, datetime] | None = None
    for more in (*near, *range(max(0, span))):
        start = hour_ceiling(now) + more * HOUR
        if policy.clock.place(start, start + HOUR).band == "overnight":
            continue
        for node in chance.sample(nodes[pool], len(nodes[pool])):
            warned = judge(policy, student, pool, node, start, taken, now)
            if warned is False:
                book(student, pool, node, start, taken)
                return True
            if warned and second_best is None:
                second_best = node, start
        if second_best is not None and more in near[-1:]:
            break  # a gap is no reason to look through weeks of hours
    if second_best is None:
        return False
    book(student, pool, *second_best, taken)
    return True


def judge(
    policy: Policy,
    student: Student,
    pool: str,
    node: NodeRef,
    start: datetime,
    taken: Spans,
    now: datetime,
) -> bool | None:
    """Return True if the gap rule warns about the block; None if the block is refused."""
    end = start + block_hours(pool) * HOUR
    held = taken[node.name]
    if any(span.start < end and span.end > start for span in held):
        return None  # evaluate() would refuse it too, but takes longer
    situation = Situation(now, own=tuple(student.leases), holds=tuple(held))
    verdict = evaluate(
        BookingRequest(student.member, node, start, end), situation, policy, offers=0
    )
    if not verdict.ok or verdict.charge.quota != "main":
        return None
    return any(reason.code == "leaves_gap" for reason in verdict.warnings)


def book(student: Student, pool: str, node: NodeRef, start: datetime, taken: Spans) -> None:
    """Give the block to the student."""
    end = start + block_hours(pool) * HOUR
    lease = LeaseFact(
        id=f"{node.name} {start.isoformat()}",
        user_id=student.member.id,
        lab_id=None,
        node=node,
        start=start,
        end=end,
        kind="booked",
        state=LeaseState.BOOKED,
        counts=True,
        created_at=start,
    )
    student.leases.append(lease)
    taken[node.name].append(Span(start, end, lease.id))


def nodes_of(policy: Policy) -> dict[str, list[NodeRef]]:
    """Map pool -> nodes."""
    refs = [
        NodeRef(name, name, class_name)
        for class_name, hardware in policy.classes.items()
        for name in hardware.nodes
    ]
    return {pool: [ref for ref in refs if policy.covers(pool, ref)] for pool in policy.pools}


def block_hours(pool: str) -> int:
    """Return the length, in hours, of a daytime block of a pool."""
    return 3 if pool == "long" else 2


def hours(lease: LeaseFact) -> float:
    """Return the length, in hours, of a lease's hold."""
    return (lease.end - lease.start) / HOUR


def table(seeds: int = SEEDS) -> str:
    """Return the results as the Markdown table of the docs."""
    text = COURSE.read_text(encoding="utf-8")
    lines = [
        "| gaps | whole quota | half of it | nothing | daytime of 307G3Q3 booked |",
        "|---|---|---|---|---|",
    ]
    for mode in MODES:
        policy = load(
            text.replace("gaps: {mode: soft, never_leave_hours: [1]}", f"gaps: {{mode: {mode}}}")
        )
        found = [simulate(policy, seed) for seed in range(seeds)]
        whole, half = mean(o.whole for o in found), mean(o.half for o in found)
        long_booked = mean(o.long_booked for o in found)
        lines.append(
            f"| {mode} | {whole:.1%} | {half:.1%} | {1 - whole - half:.1%} | {long_booked:.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
