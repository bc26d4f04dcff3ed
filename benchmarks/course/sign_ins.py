"""A lecture hall signs in: everybody from one address, within a minute."""

import asyncio
import time
from datetime import timedelta
from urllib.parse import urlencode

from benchmarks.course.cohort import PASSWORD, Person
from benchmarks.course.gauges import HouseUse
from benchmarks.course.houses import House
from benchmarks.course.outcomes import Fact, Outcome, health_facts, none_of
from benchmarks.course.records import spread
from benchmarks.course.storm import Scale, Storm, begin, spread_over
from core.base.clock import utc_now

ARRIVING_S = 40.0
MINUTE_S = 60.0
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def run(house: House, scale: Scale) -> Outcome:
    """Play the scenario and return its figures."""
    storm = begin(house, scale, utc_now() - timedelta(hours=1))
    async with storm.alive():
        use, begun = HouseUse(house), time.monotonic()
        people = list(storm.course.students)
        tasks = []
        async for number in spread_over(ARRIVING_S, len(people), storm.chance):
            tasks.append(asyncio.create_task(_sign_in(storm, people[number])))
        left_s = begun + max(MINUTE_S, scale.seconds) - time.monotonic()
        await asyncio.wait(tasks, timeout=max(0.0, left_s))
        cpu, memory = use.cpu(), use.memory()
        for task in tasks:
            task.cancel()
        got = await asyncio.gather(*tasks, return_exceptions=True)
    in_time = sum(isinstance(at, float) and at - begun <= MINUTE_S for at in got)
    records = storm.records
    return Outcome(
        title="Sign-ins from one address",
        kind=house.kind,
        load_before=storm.load_before,
        facts=[
            Fact(
                f"signed in within {MINUTE_S:.0f} s",
                f"{in_time} of {len(people)}",
                "all",
                in_time == len(people),
            ),
            Fact(
                "from the first try until they are in",
                f"{spread(records.of('signing in, tries included'))} ms",
                "",
                None,
            ),
            Fact("refused tries", str(records.counts["sign-in: 429"]), "0", None),
            none_of("errors (5xx, time-outs, lost connections)", records.errors),
            *health_facts(records),
        ],
        records=records,
        cpu=cpu,
        memory=memory,
    )


async def _sign_in(storm: Storm, person: Person) -> float:
    """Sign in by the form; after a refusal wait as long as it says and try again.

    Returns the time of time.monotonic() at which the person was signed in.
    """
    browser = storm.browser(Person(person.name, ""))
    begun = time.perf_counter()
    await browser.ask("form", "GET", "/login")
    form = urlencode({"name": person.name, "password": PASSWORD, "next": "/calendar"}).encode()
    while True:
        answer = await browser.ask("sign-in", "POST", "/login", form, headers=FORM)
        if answer is not None and answer.status in (302, 303):
            storm.records.wait("signing in, tries included", time.perf_counter() - begun)
            return time.monotonic()
        told = "1" if answer is None else answer.headers.get("retry-after", "1")
        await asyncio.sleep(float(told) + browser.chance.random())
