"""People of a large cluster: they submit, plan, book, look at pages and watch jobs."""

import asyncio
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks.course.browsers import Browser
from benchmarks.course.cohort import Person
from benchmarks.course.houses import House
from benchmarks.course.lab_hour import job_spec
from benchmarks.course.records import Records
from benchmarks.nodes import FakeNode
from benchmarks.scale.cluster import CLASSES, GPUS, STEP_S
from core.base.clock import utc_now
from core.policy.grid import hour_ceiling

SIZES = (1,) * 16 + (2, 2, 2, 4)  # nodes of a job
SHORTEST_S, LONGEST_S = 120.0, 1200.0
PAGES = ("/jobs", "/calendar", "/nodes")
EVERY_S = 1.0  # between two clicks of one kind, by all people together
AGAIN_S = 1.0  # after a submission that could not be taken
FILLERS = 16  # people who submit at once while the queue is filled


@dataclass
class Crowd:
    """Browsers of the people, and what they have been promised."""

    house: House
    records: Records
    people: Sequence[Person]
    nodes: Sequence[FakeNode]
    chance: random.Random
    share: float = 1.0
    """Length of jobs, as a share of those of the whole cluster: on fewer nodes as many start."""
    submitted: dict[str, Browser] = field(default_factory=dict)
    """Map id of a job whose submission was acknowledged -> browser of its owner."""

    def __post_init__(self) -> None:
        self._browsers = [
            Browser(
                self.house.host,
                self.house.port,
                person.secret,
                self.records,
                random.Random(self.chance.random()),
            )
            for person in self.people
        ]
        self._turn = 0

    def anybody(self) -> Browser:
        """Return the next person's browser, in turn."""
        self._turn += 1
        return self._browsers[self._turn % len(self._browsers)]

    async def fill(self, jobs: int, done: Callable[[], object]) -> None:
        """Submit so many jobs as fast as the API takes them from FILLERS people."""
        left = iter(range(jobs))

        async def submit() -> None:
            for _ in left:
                await self.submit()
                done()

        await asyncio.gather(*(submit() for _ in range(FILLERS)))

    async def submit(self) -> None:
        """Submit a job, again with the same key until it is acknowledged."""
        browser, spec, key = self.anybody(), self.spec(), uuid.uuid4().hex
        begun = time.perf_counter()
        while True:
            answer = await browser.ask(
                "submit",
                "POST",
                "/v1/jobs",
                spec,
                headers={"Idempotency-Key": key},
                since=begun,
            )
            if answer is not None and answer.status == 201:
                self.submitted[str(answer.json()["id"])] = browser
                return
            assert answer is None or answer.status == 503, answer.body[:500]
            await asyncio.sleep(AGAIN_S)

    def spec(self) -> dict[str, object]:
        """Return the spec of a job of random size and duration."""
        nodes = self.chance.choice(SIZES)
        spread = LONGEST_S / SHORTEST_S
        duration = self.share * SHORTEST_S * spread ** self.chance.random()
        spec = job_spec("cluster", self.chance.choice(CLASSES), ranks=GPUS)
        spec["resources"] |= {  # type: ignore[operator]
            "nodes": nodes,
            "wall_time": f"{int(duration / 40) + 2}min",
        }
        spec["training"] |= {  # type: ignore[operator]
            "steps": math.ceil(duration / STEP_S),
            "global_batch_size": 64,
            "warmup_steps": 0,
        }
        return spec

    async def submit_as_many_as_end(self, every_s: float) -> None:
        """Submit a job every so many seconds on average, until cancelled."""
        await self._again_and_again(every_s, self.submit)

    async def plan(self) -> None:
        """Ask for the plans of jobs, until cancelled."""
        await self._again_and_again(
            EVERY_S,
            lambda: self.anybody().click("plan", "POST", "/v1/jobs/plan", self.spec()),
        )

    async def book(self) -> None:
        """Book an hour of the next days, and cancel it, until cancelled."""
        await self._again_and_again(EVERY_S, self._book)

    async def look(self, path: str) -> None:
        """Open a page, until cancelled."""
        await self._again_and_again(
            EVERY_S, lambda: self.anybody().ask(f"page {path}", "GET", path)
        )

    async def look_at_jobs(self) -> None:
        """Open pages of jobs that people have submitted, until cancelled."""
        await self._again_and_again(EVERY_S, self._look_at_job)

    async def close(self) -> None:
        """Close all tabs."""
        await asyncio.gather(*(browser.close() for browser in self._browsers))

    def watch(self, streams: int) -> None:
        """Hold streams of the newest running jobs open."""
        running = [job_id for node in self.nodes for job_id, _ in node.running]
        for job_id in running[:streams]:
            self.submitted[job_id].listen(f"/v1/jobs/{job_id}/stream", lambda *_: None)

    async def _look_at_job(self) -> None:
        job_id, browser = self.chance.choice(list(self.submitted.items()))
        await browser.ask("page of a job", "GET", f"/v1/jobs/{job_id}")

    async def _book(self) -> None:
        start = hour_ceiling(utc_now()) + timedelta(hours=self.chance.randrange(24, 13 * 24))
        browser = self.anybody()
        block = {
            "node": self.chance.choice(self.nodes).name,
            "start": start.isoformat(),
            "hours": 1,
        }
        answer = await browser.click("book", "POST", "/v1/leases", block, once=True)
        if answer.status == 201:
            lease = answer.json()["id"]
            await browser.click("cancel a booking", "DELETE", f"/v1/leases/{lease}")

    async def _again_and_again(self, every_s: float, act: Callable[[], Awaitable[object]]) -> None:
        """Do something every so many seconds on average, each time for itself."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(_awaited(act()))
                await asyncio.sleep(self.chance.expovariate(1 / every_s))


async def _awaited(work: Awaitable[object]) -> None:
    await work
