"""The parts of `make bench-course`: simulated calendars, nodes and clicks on a real API."""

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.course import storm as storms
from benchmarks.course.browsers import Browser
from benchmarks.course.houses import House
from benchmarks.course.job_pages import JobList
from benchmarks.course.looks import Looks
from benchmarks.course.opening import num_seen_by_all
from benchmarks.course.outcomes import Outcome
from benchmarks.course.records import Records
from benchmarks.course.storm import Scale, Storm
from core.base.clock import utc_now
from tests.dashboard import stage as stages

PEOPLE, DEADLINE_S = 3, 60


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    """Three students and two nodes of the course; booking is open."""
    with stages.raised(tmp_path) as stage:
        house = House(
            kind="sqlite",
            url=stage.url,
            token=stage.secrets["ada"],
            database_url=stage.database.url.render_as_string(hide_password=False),
            roots={},
        )
        scale = Scale(students=PEOPLE, nodes=2, seconds=10)
        yield storms.begin(house, scale, utc_now() - timedelta(hours=1))


@pytest.mark.parametrize("turns", range(5))
def test_a_tab_closes_though_its_page_was_just_rung(turns: int) -> None:
    async def read(_: bool) -> None:
        raise AssertionError("nothing is due within the test")

    async def play() -> None:
        browser = Browser("127.0.0.1", 9, "", Records(), random.Random(0))
        looks = Looks(browser)
        looks.reads("own", read)
        looks.ring("own", after_s=DEADLINE_S)
        browser.start(looks.live())
        for _ in range(5):
            await asyncio.sleep(0)
        looks.ring("own", after_s=DEADLINE_S)
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await browser.close()

    asyncio.run(play())


def test_what_simulated_students_book_is_seen_on_every_simulated_page(storm: Storm) -> None:
    async def play() -> int:
        plan = storm.plan()
        async with asyncio.timeout(DEADLINE_S), storm.alive():
            while not storm.records.waits["node's heartbeat"]:
                await asyncio.sleep(0.05)
            await JobList(storm.browser(storm.course.students[0]), storm.list_assets).open()
            students = [await storm.student(person, plan) for person in storm.course.students]
            await asyncio.gather(*(student.book() for student in students))
            while (num := num_seen_by_all(storm, students)) < sum(len(s.booked) for s in students):
                await asyncio.sleep(0.05)
            assert {student.state for student in students} <= {"done", "left"}
        return num

    num_booked = asyncio.run(play())
    assert num_booked >= 1
    assert storm.told_by_database() == (0, 0, num_booked)
    assert not storm.records.errors
    outcome = Outcome("Test", "sqlite", 0.0, [], storm.records, {}, {})
    assert "| booking (" in outcome.as_markdown()
    assert "Errors: none." in outcome.as_markdown()
