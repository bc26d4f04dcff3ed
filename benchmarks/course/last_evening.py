"""The last evening: wishes, blocks given back and swapped, offers, a clean-up, an API killed."""

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.course.browsers import Browser
from benchmarks.course.calendar_page import Block, CalendarPage, moment
from benchmarks.course.cohort import Person
from benchmarks.course.gauges import HouseUse
from benchmarks.course.houses import House
from benchmarks.course.outcomes import Fact, Outcome, below, health_facts
from benchmarks.course.records import spread
from benchmarks.course.storm import Scale, Storm, begin, spread_over
from benchmarks.course.students import HOURS, Plan, asked
from core.base.clock import utc_now
from core.leases.waitlist import OFFER_LASTS

BOOKERS, WISHERS, WISHES = 100, 91, 150
GIVE_BACK, SWAP = 40, 20  # of the bookers who look at their calendars
ARRIVING_S, HESITATES_S = 20.0, (0.5, 3.0)
KILL_AT = 0.6  # of the time
ACCEPTED_S, RECOVERED_S = 2.0, 5.0
LOOK_EVERY_S, QUIET_S, GIVEN_UP_S = 0.02, 2.0, 30.0


@dataclass(frozen=True)
class HeldBlock:
    """A block that a student has booked beforehand."""

    person: Person
    pool: str
    block: Block
    lease: str


async def run(house: House, scale: Scale) -> Outcome:
    """Play the scenario and return its figures."""
    storm = begin(house, scale, utc_now() - timedelta(hours=1))
    share = scale.students / 191
    bookers = storm.course.students[: round(BOOKERS * share)]
    wishers = storm.course.students[len(bookers) :]
    async with storm.alive():
        plan = storm.plan()
        held = await _book_all(storm, plan, bookers)
        actors = held[: round((GIVE_BACK + SWAP) * share)]
        viewers = [one.person for one in actors] + list(wishers[: round(90 * share)])
        pages: list[CalendarPage] = []
        opening: list[asyncio.Task[CalendarPage]] = []
        async for number in spread_over(ARRIVING_S * share, len(viewers), storm.chance):
            opening.append(asyncio.create_task(storm.calendar(viewers[number])))
        pages = await asyncio.gather(*opening)
        staff = await storm.calendar(storm.course.assistants[0], is_staff=True)
        storm.records.begin_anew()
        use, seconds = HouseUse(house), scale.seconds
        works: list[Awaitable[None]] = []
        leaving = actors[: round(GIVE_BACK * share)]
        for one, page in zip(actors, pages, strict=False):
            act = _give_back(page, one) if one in leaving else _swap(page, one, plan)
            works.append(_later(storm.chance.uniform(0.2, 0.9) * seconds, act))
        wished = [_Wisher(page, held) for page in pages[len(actors) :]]
        for number in range(round(WISHES * share)):
            at = storm.chance.uniform(0, 0.4) * seconds
            works.append(_later(at, wished[number % len(wished)].wish()))
        works += [one.accept_offers() for one in wished]
        works.append(_later(0.45 * seconds, _clean_up(staff, held[-1].person.name)))
        recovering = asyncio.create_task(_kill(storm, staff, KILL_AT * seconds))
        tasks = [asyncio.ensure_future(work) for work in works]
        await asyncio.sleep(seconds)
        recovered = await recovering
        cpu, memory = use.cpu(), use.memory()
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for one_error in (each for each in found if isinstance(each, Exception)):
            storm.records.errors[f"in the simulation: {one_error!r}"] += 1
    overlaps, over_quota, _ = storm.told_by_database()
    records = storm.records
    accepted = records.of("accepting an offer")
    return Outcome(
        title="Last evening",
        kind=house.kind,
        load_before=storm.load_before,
        facts=[
            below("accepting an offer", accepted, ACCEPTED_S),
            Fact("offers accepted", str(sum(one.num_accepted for one in wished)), "", None),
            Fact("from an offer to its page", f"{spread(records.of(TOLD))} ms", "", None),
            Fact("API killed with -9: all streams and staff's next answer", *recovered),
            _errors_but_of_the_kill(records.errors),
            *health_facts(records),
            Fact("hours sold twice", str(overlaps), "0", overlaps == 0),
            Fact("students over their quota", str(over_quota), "0", over_quota == 0),
        ],
        records=records,
        cpu=cpu,
        memory=memory,
    )


TOLD = "offer until its page knows"


class _Wisher:
    """Person who waits for blocks that others have, and takes the block that is offered."""

    def __init__(self, page: CalendarPage, held: Sequence[HeldBlock]) -> None:
        self._page, self._held = page, held
        self.num_accepted = 0

    async def wish(self) -> None:
        """Join the waitlist for exactly the block of another student."""
        one = self._chance.choice(self._held)
        node, start = one.block
        wish = {
            "node": node,
            "first_start": start.isoformat(),
            "last_start": start.isoformat(),
            "hours": HOURS[one.pool],
        }
        await self._page.act("wish", "POST", "/v1/waitlist", wish, once=True)

    async def accept_offers(self) -> None:
        """Take the first offer, and leave the other wishes."""
        while True:
            await self._page.has_read_own.wait()
            self._page.has_read_own.clear()
            offered = [one for one in self._page.waits if one["state"] == "offered"]
            if not offered:
                continue
            made_at = moment(offered[0]["offer"]["expires_at"]) - OFFER_LASTS
            told = self._page.browser.records.wait
            told(TOLD, max(0.0, (utc_now() - made_at).total_seconds()))
            await asyncio.sleep(self._chance.uniform(*HESITATES_S))
            path = f"/v1/waitlist/{offered[0]['id']}"
            answer = await self._page.act("accepting an offer", "POST", f"{path}/accept")
            if answer.status == 201:
                self.num_accepted += 1
            for wait in self._page.waits:
                if wait["state"] in ("waiting", "offered") and wait is not offered[0]:
                    await self._page.act("leaving", "DELETE", f"/v1/waitlist/{wait['id']}")
            return

    @property
    def _chance(self) -> random.Random:
        return self._page.browser.chance


async def _book_all(storm: Storm, plan: Plan, bookers: Sequence[Person]) -> list[HeldBlock]:
    """Let each person book one block in turn, the soonest that is left; return the bookings."""
    held: list[HeldBlock] = []
    blocks = {pool: list(found) for pool, found in plan.blocks.items()}
    for number, person in enumerate(bookers):
        browser: Browser = storm.browser(person)
        pool = ("long", "single", "second")[number % 3]
        while blocks[pool]:
            block = blocks[pool].pop(0)
            body = asked(block, HOURS[pool])
            answer = await browser.click("booking, calm", "POST", "/v1/leases", body, once=True)
            if answer.status == 201:
                held.append(HeldBlock(person, pool, block, answer.json()["id"]))
                break
        await browser.close()
    storm.browsers.clear()
    storm.chance.shuffle(held)
    return held


async def _later(seconds: float, work: Awaitable[None]) -> None:
    await asyncio.sleep(seconds)
    await work


async def _give_back(page: CalendarPage, held: HeldBlock) -> None:
    await page.act("giving back", "POST", f"/v1/leases/{held.lease}/release")


async def _swap(page: CalendarPage, held: HeldBlock, plan: Plan) -> None:
    block = plan.choose(held.pool, page, page.browser.chance)
    if block is not None:
        body = asked(block, HOURS[held.pool])
        await page.show_day(block[1])
        await page.act("swap", "POST", f"/v1/leases/{held.lease}/swap", body)


async def _clean_up(staff: CalendarPage, owner: str) -> None:
    """Preview a clean-up of a user's leases and apply it."""
    body = {"selector": {"user": owner}, "reason": "The course is over for them."}
    preview = await staff.click("clean-up, preview", "POST", "/v1/admin/cleanups", body)
    if preview.status == 201:
        found: dict[str, Any] = preview.json()
        path = f"/v1/admin/cleanups/{found['id']}/apply"
        await staff.click("clean-up, apply", "POST", path, {"hash": found["hash"]})


async def _kill(storm: Storm, staff: CalendarPage, after_s: float) -> tuple[str, str, bool]:
    """Kill an API; measure the time until every stream is back and staff are answered again.

    Returns the figure, the goal, and True if the goal is met.
    """
    await asyncio.sleep(after_s)
    watching = [browser for browser in storm.browsers if browser.is_streaming]
    begun = time.perf_counter()
    storm.house.kill_an_api()
    await asyncio.sleep(LOOK_EVERY_S)
    (streams_s, lost), answered_s = await asyncio.gather(
        _streams_back(watching, begun), _answered(staff, begun)
    )
    return (
        f"{streams_s:.1f} s ({lost} of {len(watching)} were lost); {answered_s:.1f} s",
        f"< {RECOVERED_S:.0f} s",
        max(streams_s, answered_s) < RECOVERED_S,
    )


async def _streams_back(watching: Sequence[Browser], begun: float) -> tuple[float, int]:
    """Return the seconds until all browsers have a stream again, and how many had lost theirs."""
    most, back_s = 0, 0.0
    while True:
        lost = sum(not browser.is_streaming for browser in watching)
        most = max(most, lost)
        elapsed = time.perf_counter() - begun
        if lost:
            back_s = elapsed
        if elapsed > GIVEN_UP_S or elapsed > back_s + QUIET_S:
            return back_s, most
        await asyncio.sleep(LOOK_EVERY_S)


async def _answered(staff: CalendarPage, begun: float) -> float:
    """Return the seconds until staff have their list."""
    path = "/v1/leases?user=all&limit=200"
    await staff.click("staff's answer after the kill", "GET", path)
    return time.perf_counter() - begun


def _errors_but_of_the_kill(errors: Any) -> Fact:
    """Return the fact about errors, without the connections that the kill broke."""
    others = sum(number for what, number in errors.items() if not what.endswith(": Lost"))
    broken = sum(errors.values()) - others
    return Fact(
        "errors (5xx, time-outs), without what the kill broke off",
        f"{others} ({broken} broken off, asked again)",
        "0",
        others == 0,
    )
