"""A course's week on seven nodes, with leases of whole nodes and with leases of GPUs.

Simulated students: `python -m benchmarks.packing`. Four nodes have four GPUs, three have one. 191
students come late (Beta 5, 2 over the days to the deadline) and want a block of three hours. Each
takes the first of twelve daytime starts within five days at which a node has room, else the first
hour to the deadline. 15 % cancel in time and come again later; 3 % of blocks are lost to a fault.
"""

import argparse
import heapq
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from statistics import mean

from core.courses.population import ARRIVAL, CANCEL_SHARE, FAULT_SHARE, NEAR_DAYS, TRIES
from core.policy.grid import HOUR
from core.policy.slots import breakage
from core.policy.verdict import Span

SLOTS = (4, 4, 4, 4, 1, 1, 1)
LARGE = 4
STUDENTS, SEEDS, HOURS = 191, 20, 3
TRIED_H, DAY_BEGINS_H = NEAR_DAYS * 24, 7
START = datetime(2026, 2, 2, tzinfo=UTC)


class Packing(StrEnum):
    """Way in which a lease gets its node."""

    WHOLE_NODES = "whole nodes"
    SPREAD = "slots, emptiest node"
    RANDOM = "slots, random node"
    FIRST = "slots, first node"
    RULE = "slots, the rule"


ALONE = (Packing.WHOLE_NODES, Packing.RULE)
"""Compared where nobody wants a whole node: all rules for slots then serve equally many."""


@dataclass(frozen=True)
class Demand:
    """Students before one deadline."""

    days: int
    large_share: float = 0.0
    """Share of students who want a node of four GPUs; the others want one GPU."""


@dataclass
class Node:
    """A node with the number of its slots that are held in each hour."""

    name: str
    slots: int
    held: list[int]
    spans: list[Span] = field(default_factory=list)

    def free(self, start: int, hours: int = HOURS) -> int:
        """Return the slots that are free during all of a block."""
        return self.slots - max(self.held[start : start + hours])

    def take(self, start: int, size: int) -> None:
        """Hold slots for a block."""
        for hour in range(start, start + HOURS):
            self.held[hour] += size
        assert self.free(start) >= 0, "more slots held than the node has"
        self.spans.append(_span(start, size))

    def give_back(self, start: int, size: int) -> None:
        """Free the slots of a block."""
        for hour in range(start, start + HOURS):
            self.held[hour] -= size
        self.spans.remove(_span(start, size))


@dataclass
class Student:
    """A student, the GPUs wanted, and the block held."""

    came_h: float
    gpus: int
    chance: random.Random
    """The student's own: a student behaves alike under all rules."""
    start: int | None = None
    """Hour at which the student's block begins."""


@dataclass(frozen=True)
class WeekResult:
    """Results of one week."""

    small: float
    """Students who wanted one GPU and got a block."""
    large: float
    """Students who wanted four GPUs and got a block."""
    large_refused: float
    fragmented: float
    """Refused ones of these for whom four GPUs were free at one time, on several nodes."""
    wait_h: float
    """Mean hours from coming to the start of the block, of those who got one."""
    gpu_hours: float
    """GPU-hours wanted and booked."""
    whole_blocks: float
    """Blocks of four GPUs that were still free, counted over the whole week."""


class Week:
    """One random week before a deadline."""

    def __init__(self, demand: Demand, packing: Packing, seed: int) -> None:
        self._chance = random.Random(seed)
        self._demand, self._packing, self._seed = demand, packing, seed
        self._end = demand.days * 24
        self._nodes = [
            Node(f"node-{number}", slots, [0] * self._end) for number, slots in enumerate(SLOTS)
        ]
        self._fragmented = 0

    def run(self) -> WeekResult:
        """Let all students book in the order in which they come."""
        students = [
            Student(
                self._end * self._chance.betavariate(*ARRIVAL),
                LARGE if self._chance.random() < self._demand.large_share else 1,
                random.Random(f"{self._seed} {number}"),
            )
            for number in range(STUDENTS)
        ]
        visits = [(student.came_h, number) for number, student in enumerate(students)]
        heapq.heapify(visits)
        while visits:
            now_h, number = heapq.heappop(visits)
            again_h = self._visit(students[number], now_h)
            if again_h is not None:
                heapq.heappush(visits, (again_h, number))
        served = [student for student in students if student.start is not None]
        small = sum(student.gpus == 1 for student in served)
        large = len(served) - small
        wanted_large = sum(student.gpus == LARGE for student in students)
        waits = [s.start - s.came_h for s in served if s.start is not None]
        return WeekResult(
            small=small,
            large=large,
            large_refused=wanted_large - large,
            fragmented=self._fragmented,
            wait_h=mean(waits),
            gpu_hours=HOURS * (small + LARGE * large),
            whole_blocks=sum(_whole_blocks(node) for node in self._nodes if node.slots == LARGE),
        )

    def _visit(self, student: Student, now_h: float) -> float | None:
        """Book for a student; return the hour of the next visit, None if there is none."""
        chance = student.chance
        tried = self._starts(now_h, chance)
        start = student.start = next((at for at in tried if self._fitting(student, at)), None)
        if start is None:
            free = (self._free_of_large(at) for at in self._all_starts(now_h))
            self._fragmented += student.gpus == LARGE and max(free, default=0) >= LARGE
            return None
        node = self._chosen(self._fitting(student, start), start, student.gpus)
        size = node.slots if self._packing is Packing.WHOLE_NODES else student.gpus
        node.take(start, size)
        luck = chance.random()
        if luck < FAULT_SHARE:
            return start + HOURS
        if luck < FAULT_SHARE + CANCEL_SHARE:
            node.give_back(start, size)
            return now_h + (start - now_h) * chance.random()
        return None

    def _starts(self, now_h: float, chance: random.Random) -> list[int]:
        """Return the starts in the order in which a student tries them."""
        every = self._all_starts(now_h)
        near = [at for at in every if at < now_h + TRIED_H and at % 24 >= DAY_BEGINS_H]
        return [*(chance.choice(near) for _ in range(TRIES if near else 0)), *every]

    def _all_starts(self, now_h: float) -> range:
        return range(int(now_h) + 1, self._end - HOURS + 1)

    def _fitting(self, student: Student, start: int) -> list[Node]:
        wholly = self._packing is Packing.WHOLE_NODES
        return [
            node
            for node in self._nodes
            if student.gpus <= node.slots
            and node.free(start) >= (node.slots if wholly else student.gpus)
        ]

    def _chosen(self, nodes: Sequence[Node], start: int, size: int) -> Node:
        if self._packing is Packing.FIRST:
            return nodes[0]
        if self._packing is Packing.RANDOM:
            return self._chance.choice(nodes)
        if self._packing is Packing.SPREAD:
            return max(nodes, key=lambda node: node.free(start))
        begins = START + start * HOUR
        return min(
            nodes,
            key=lambda node: breakage(
                node.spans, of=node.slots, size=size, start=begins, end=begins + HOURS * HOUR
            ),
        )

    def _free_of_large(self, start: int) -> int:
        return sum(node.free(start) for node in self._nodes if node.slots == LARGE)


def _span(start: int, size: int) -> Span:
    begins = START + start * HOUR
    return Span(begins, begins + HOURS * HOUR, None, size)


def _whole_blocks(node: Node) -> int:
    """Return the number of blocks of the whole node that still fit, one after the other."""
    found = run = 0
    for held in node.held:
        run = 0 if held else run + 1
        if run == HOURS:
            found, run = found + 1, 0
    return found


def measure(demand: Demand, packing: Packing, seeds: Sequence[int]) -> WeekResult:
    """Return the mean results over the seeds."""
    runs = [Week(demand, packing, seed).run() for seed in seeds]
    fields = WeekResult.__dataclass_fields__
    return WeekResult(**{name: mean(getattr(run, name) for run in runs) for name in fields})


def table(demands: Sequence[Demand], seeds: Sequence[int]) -> str:
    """Return the results as the Markdown table of the docs."""
    lines = [
        "| students | leases | got 1 GPU | got 4 GPUs | 4 GPUs refused | of these, enough free on "
        "several nodes | wait | GPU-hours | whole blocks left |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for demand in demands:
        who = f"{1 - demand.large_share:.0%} want 1 GPU, {demand.days} days"
        for packing in Packing if demand.large_share else ALONE:
            found = measure(demand, packing, seeds)
            lines.append(
                f"| {who} | {packing} | {found.small:.0f} | {found.large:.0f} "
                f"| {found.large_refused:.1f} | {found.fragmented:.1f} | {found.wait_h:.0f} h "
                f"| {found.gpu_hours:.0f} | {found.whole_blocks:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"weeks; default: {SEEDS}")
    seeds = range(1, parser.parse_args().seeds + 1)
    alone = [Demand(days) for days in (2, 3, 4, 8)]
    mixed = [Demand(days, large_share=0.25) for days in (3, 8)]
    sys.stdout.write(f"{table([*alone, *mixed], seeds)}\n")


if __name__ == "__main__":
    main()
