"""The opening minute: every calendar is open, and at T0 all students ask for a verdict and book."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import timedelta

from benchmarks.course.chromium import Tabs
from benchmarks.course.cohort import Person
from benchmarks.course.gauges import HouseUse
from benchmarks.course.houses import House
from benchmarks.course.outcomes import Fact, Outcome, below, health_facts, none_of
from benchmarks.course.records import spread
from benchmarks.course.storm import Scale, Storm, begin, spread_over
from benchmarks.course.students import HOURS, Student, asked
from core.base.clock import utc_now

ARRIVING_S = 45.0  # everybody has opened their calendar by then
SETUP_S, QUIET_S = 15.0, 5.0
OPENING_S = 1.5  # of a Chromium page
RUSH_S = 20.0  # within it everybody clicks for the first time, half of them in the first 3 s
GREEDY, AT_ONCE = 19, 6  # each 19th books in six tabs at the same moment
SEEN_BY_ALL_S = 2.0


async def run(house: House, scale: Scale) -> Outcome:
    """Play the scenario and return its figures."""
    arriving_s = ARRIVING_S * min(1.0, scale.students / 191)
    chromium_s = OPENING_S * scale.chromium
    opens_at = utc_now() + timedelta(seconds=SETUP_S + arriving_s + chromium_s + QUIET_S)
    storm = begin(house, scale, opens_at)
    async with storm.alive():
        students = await _arrive(storm, arriving_s)
        watched = [one.secret for one in storm.course.students[-scale.chromium :]]
        tabs = await Tabs.open(house.url, watched) if scale.chromium else None
        await asyncio.sleep(max(0.0, (opens_at - utc_now()).total_seconds()))
        calm = storm.records.begin_anew()
        use = HouseUse(house)
        num_greedy = len(students) // GREEDY
        rush = [asyncio.create_task(_grab(one, storm)) for one in students[:num_greedy]]
        rush += [asyncio.create_task(_rush(one)) for one in students[num_greedy:]]
        await asyncio.wait(rush, timeout=scale.seconds)
        backlog = sum(browser.line.backlog - 1 for browser in storm.browsers)
        cpu, memory = use.cpu(), use.memory()
        unanswered = [one for one in students if one.state in ("waiting", "trying")]
        for task in rush:
            task.cancel()
        await asyncio.gather(*rush, return_exceptions=True)
        await asyncio.sleep(3)  # the last bookings are seen by then
        seen = _seen(storm, students)
        bookings = [one for student in students for one in student.booked]
        drawn = await tabs.close(students[0].page, bookings) if tabs else []
        once_more = await _book_one_more(storm, students[0])
    overlaps, over_quota, leases = storm.told_by_database()
    got = [one.state for one in students]
    waits = storm.records
    return Outcome(
        title="Opening minute",
        kind=house.kind,
        load_before=storm.load_before,
        facts=[
            below("verdict p99", waits.of("verdict"), 1.0),
            below("booking p99", waits.of("booking"), 1.0),
            Fact(
                "students answered (everything booked, or told that nothing is left)",
                f"{len(students) - len(unanswered)} of {len(students)} "
                f"({got.count('done')} have all, {leases} leases)",
                "all",
                not unanswered,
            ),
            none_of("errors (5xx, time-outs, lost connections)", waits.errors),
            below("a booking is on all pages, p99 of all bookings", seen, SEEN_BY_ALL_S),
            Fact("the same, of one more when all is quiet", once_more, "", None),
            *drawn,
            *health_facts(waits),
            Fact("hours sold twice", str(overlaps), "0", overlaps == 0),
            Fact("students over their quota", str(over_quota), "0", over_quota == 0),
            Fact("requests under way at the end", str(backlog), "", None),
            Fact("page before the rush", spread(calm["page"]), "", None),
        ],
        records=waits,
        cpu=cpu,
        memory=memory,
    )


async def _arrive(storm: Storm, seconds: float) -> list[Student]:
    plan = storm.plan()
    arriving: list[asyncio.Task[Student]] = []
    people: list[Person] = list(storm.course.students)
    async for number in spread_over(seconds, len(people), storm.chance):
        arriving.append(asyncio.create_task(storm.student(people[number], plan)))
    return list(await asyncio.gather(*arriving))


async def _rush(student: Student) -> None:
    await asyncio.sleep(min(RUSH_S, student.chance.expovariate(1 / 4)))
    await student.book()


async def _grab(student: Student, storm: Storm) -> None:
    """Book as one person in six tabs at once; no more than the quota may be granted."""
    blocks = [b for b in student.plan.blocks["second"] if student.page.is_free(*b, 2)]
    chosen = storm.chance.sample(blocks, min(AT_ONCE, len(blocks)))
    clicks = [
        student.page.click("booking, greedy", "POST", "/v1/leases", asked(block, 2), once=True)
        for block in chosen
    ]
    await asyncio.gather(*clicks)
    student.state = "done"


def num_seen_by_all(storm: Storm, students: Sequence[Student]) -> int:
    """Return the number of bookings that every page knows of."""
    return sum(
        len(storm.sightings.seen.get(one.block, [])) >= len(students)
        for student in students
        for one in student.booked
    )


def _seen(storm: Storm, students: Sequence[Student]) -> list[float]:
    """Return, for each booking, the seconds until the last page had it.

    The duration of the run, if a page never had it.
    """
    last = []
    for student in students:
        for one in student.booked:
            delays = storm.sightings.delays(one.block, one.answered_at)
            last.append(max(delays) if len(delays) >= len(students) else storm.scale.seconds)
    return last


async def _book_one_more(storm: Storm, student: Student) -> str:
    """Book once more, as staff, who may always book; return the delays of all pages in words."""
    page = await storm.calendar(storm.course.assistants[0], is_staff=True)
    block = student.plan.choose("second", page, storm.chance)
    if block is None:
        return "nothing was left"
    pages = sum(browser.is_streaming for browser in storm.browsers)
    body = asked(block, HOURS["second"])
    answer = await page.click("booking, quiet", "POST", "/v1/leases", body, once=True)
    answered_at = time.perf_counter()
    assert answer.status == 201, answer.body
    for _ in range(100):
        await asyncio.sleep(0.1)
        if len(storm.sightings.seen.get(block, [])) >= pages:
            break
    delays = storm.sightings.delays(block, answered_at)
    median = statistics.median(delays) if delays else float("nan")
    last = max(delays, default=float("nan"))
    return f"{len(delays)} of {pages} pages, median {median:.2f} s, last {last:.2f} s"
