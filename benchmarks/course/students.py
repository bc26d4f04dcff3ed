"""Simulated student: looks at the calendar, chooses, asks for the verdict, books, tries again.

The course allows one block of three hours on the long node, or one of two hours on a single-GPU
node and one on another node, all by day. A student who finds no long block takes two short ones.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks.course.calendar_page import Block, CalendarPage, moment
from benchmarks.course.cohort import Person
from core.courses.population import FIRST_SHARE, NEAR_DAYS, TRIES
from core.policy.document import Policy
from core.policy.grid import HOUR, hour_ceiling
from core.policy.verdict import NodeRef

HOURS = {"long": 3, "single": 2, "second": 2}
THINKS_S = (0.3, 1.5)  # between the verdict and the click on "Book", and before another choice
NO_MORE = ("quota_main", "too_many_open")


@dataclass(frozen=True)
class Plan:
    """Every block that could be booked by day, in the order of time."""

    blocks: Mapping[str, Sequence[Block]]
    """Map pool -> blocks, in order of time."""

    @classmethod
    def of(cls, policy: Policy, names: Sequence[str], now: datetime) -> "Plan":
        """Return all blocks of the windows from now on, on the nodes with these names."""
        blocks: dict[str, list[Block]] = {pool: [] for pool in HOURS}
        refs = [
            NodeRef(name, name, class_name)
            for class_name, hardware in policy.classes.items()
            for name in hardware.nodes
            if name in names
        ]
        start, last = hour_ceiling(now) + HOUR, policy.whole[1]
        while start < last:
            for pool, hours in HOURS.items():
                end = start + hours * HOUR
                if end <= last and policy.clock.place(start, end).band != "overnight":
                    blocks[pool] += [(r.name, start) for r in refs if policy.covers(pool, r)]
            start += HOUR
        return cls(blocks)

    def choose(self, pool: str, page: CalendarPage, chance: random.Random) -> Block | None:
        """Choose a free block as people do, soon rather than late; None if none is left."""
        blocks = self.blocks[pool]
        near = [one for one in blocks if one[1] < blocks[0][1] + NEAR_DAYS * 24 * HOUR]
        for block in chance.choices(near, k=TRIES) if near else []:
            if page.is_free(*block, HOURS[pool]):
                return block
        free = [block for block in blocks if page.is_free(*block, HOURS[pool])]
        return chance.choice(free) if free else None


@dataclass
class Booking:
    """A block that a student has booked."""

    block: Block
    lease: str
    answered_at: float
    """Time of time.perf_counter() at which the API answered."""


@dataclass
class Student:
    """A student of the course with an open calendar."""

    person: Person
    page: CalendarPage
    plan: Plan
    chance: random.Random
    booked: list[Booking] = field(default_factory=list)
    state: str = "waiting"
    """State: `waiting`, `trying`, `done`, or `left` if no block was to be had."""

    async def book(self) -> None:
        """Try until all blocks of the quota are booked, or nothing is left."""
        self.state = "trying"
        wants_long = self.chance.random() < FIRST_SHARE
        got = await self._take("long") if wants_long else False
        if not got:
            got = all([await self._take("single"), await self._take("second")])
        self.state = "done" if got else "left"

    async def _take(self, pool: str) -> bool:
        while (block := self.plan.choose(pool, self.page, self.chance)) is not None:
            body = asked(block, HOURS[pool])
            await self.page.show_day(block[1])
            verdict = await self.page.click("verdict", "POST", "/v1/leases/verdict", body)
            await self._think()
            if verdict.status != 200 or not verdict.json()["ok"]:
                if is_final(verdict.json()):
                    return False
                continue
            if await self._book(body, block):
                return True
            await self._think()
        return False

    async def _book(self, body: dict[str, object], block: Block) -> bool:
        answer = await self.page.act("booking", "POST", "/v1/leases", body, once=True)
        if answer.status != 201:
            return False
        lease = answer.json()
        assert (lease["node"], moment(lease["hold_start"])) == block
        self.booked.append(Booking(block, lease["id"], time.perf_counter()))
        return True

    async def _think(self) -> None:
        await asyncio.sleep(self.chance.uniform(*THINKS_S))


def asked(block: Block, hours: int) -> dict[str, object]:
    """Return the body of a request for a block."""
    node, start = block
    return {"node": node, "start": start.isoformat(), "hours": hours}


def is_final(verdict: dict[str, Any]) -> bool:
    """Return True if the refusal holds for every other block of this kind too."""
    reasons = [one["code"] for node in verdict.get("nodes", ()) for one in node["reasons"]]
    return any(code in NO_MORE for code in reasons)
