"""Common parts of all scenarios: a platform, the course in it, live nodes, and browsers."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.course import gauges, truth
from benchmarks.course.browsers import Browser
from benchmarks.course.calendar_page import Assets, CalendarPage, Sightings
from benchmarks.course.cohort import Course, Person, gather
from benchmarks.course.houses import House
from benchmarks.course.records import Records
from benchmarks.course.students import Plan, Student
from core.base.clock import utc_now
from core.database.database import Database

STUDENTS = 191


@dataclass(frozen=True)
class Scale:
    """Size and duration of a scenario; smaller in a test."""

    students: int = STUDENTS
    nodes: int | None = None
    """Number of nodes; None: all of the course."""
    seconds: float = 100.0
    """Duration of the clicking."""
    chromium: int = 0
    """Number of real Chromium pages in the same storm."""


@dataclass
class Storm:
    """A course on a platform, with the records of its users' waits."""

    house: House
    course: Course
    scale: Scale
    records: Records
    chance: random.Random = field(default_factory=lambda: random.Random(191))
    sightings: Sightings = field(default_factory=Sightings)
    assets: Assets = field(default_factory=Assets)
    """Cached files of the calendar; `job_assets` and `list_assets` are those of other pages."""
    job_assets: Assets = field(default_factory=Assets)
    list_assets: Assets = field(default_factory=Assets)
    browsers: list[Browser] = field(default_factory=list)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def browser(self, person: Person) -> Browser:
        """Open a browser in which this person is signed in."""
        own = random.Random(self.chance.random())
        made = Browser(self.house.host, self.house.port, person.secret, self.records, own)
        self.browsers.append(made)
        return made

    async def calendar(self, person: Person, *, is_staff: bool = False) -> CalendarPage:
        """Open a calendar in a browser in which this person is signed in."""
        page = CalendarPage(
            self.browser(person),
            is_staff=is_staff,
            sightings=self.sightings,
            assets=self.assets,
        )
        await page.open()
        return page

    async def student(self, person: Person, plan: Plan) -> Student:
        """Let a student open their calendar."""
        page = await self.calendar(person)
        return Student(person, page, plan, page.browser.chance)

    def plan(self) -> Plan:
        """Return the blocks that can be booked from now on."""
        names = [node.name for node in self.course.nodes]
        return Plan.of(self.course.policy, names, utc_now())

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Let nodes report, ask for health and restart ended processes; close all tabs at the
        end."""
        works = [node.live() for node in self.course.nodes]
        works += [gauges.ask_health(self.house, self.records), self.house.keep_running()]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            await asyncio.gather(*(browser.close() for browser in self.browsers))
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self.records.errors[f"in the simulation: {task.exception()!r}"] += 1
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def told_by_database(self) -> tuple[int, int, int]:
        """Return the numbers of overlapping holds, of students over their quota, and of leases."""
        with self.database() as database:
            return (
                truth.num_overlaps(database),
                truth.num_over_quota(database, self.course.policy),
                truth.num_leases(database),
            )

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Open the platform's own database."""
        database = Database(self.house.database_url)
        try:
            yield database
        finally:
            database.close()


def begin(house: House, scale: Scale, opens_at: datetime) -> Storm:
    """Create the course on a platform, before the first click."""
    load_before = os.getloadavg()[0]
    records = Records()
    course = gather(house, records, students=scale.students, nodes=scale.nodes, opens_at=opens_at)
    return Storm(house, course, scale, records, load_before=load_before)


async def spread_over(seconds: float, count: int, chance: random.Random) -> AsyncIterator[int]:
    """Yield 0 to `count` - 1, each at a random moment within `seconds`."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number, at in enumerate(sorted(chance.uniform(0, seconds) for _ in range(count))):
        await asyncio.sleep(max(0.0, begun + at - loop.time()))
        yield number
