"""A lab hour: seven live jobs with watchers, job lists, calendars, people who submit jobs."""

import asyncio
import json
import random
from datetime import timedelta
from itertools import cycle

from benchmarks.course.browsers import Browser
from benchmarks.course.cohort import Person
from benchmarks.course.gauges import HouseUse
from benchmarks.course.houses import House
from benchmarks.course.job_pages import BETWEEN, JobList, JobPage
from benchmarks.course.outcomes import Fact, Outcome, below, health_facts, none_of
from benchmarks.course.storm import Scale, Storm, begin, spread_over
from benchmarks.course.students import HOURS
from core.base.clock import utc_now
from core.policy.grid import hour_floor
from core.policy.verdict import NodeRef

WATCHERS, CALENDARS, LISTS, SUBMITTERS = 60, 35, 69, 20
ARRIVING_S, SETTLING_S = 20.0, 10.0  # loads on arrival are not measured
RELOADS_S = (20.0, 50.0)  # time for which a person looks at a page before opening it again
TYPES_S = (2.0, 6.0)
PAGE_S, CURVE_S = 0.5, 1.0
PAGES = (
    *("page", "job page", "job's logs", "job's metrics", "job list", "job list, rows"),
    *("new job", "plan", "submit", "cancel"),
)


async def run(house: House, scale: Scale) -> Outcome:
    """Play the scenario and return its figures."""
    storm = begin(house, scale, utc_now() - timedelta(hours=1))
    share = scale.students / 191
    async with storm.alive():
        jobs = await _start_jobs(storm)
        crowd = _crowd(storm, jobs, share)
        storm.chance.shuffle(crowd)
        async for number in spread_over(ARRIVING_S * share, len(crowd), storm.chance):
            crowd[number].start()
        await asyncio.sleep(SETTLING_S)
        storm.records.begin_anew()
        use = HouseUse(house)
        await asyncio.sleep(scale.seconds)
        cpu, memory = use.cpu(), use.memory()
        waits = storm.records.begin_anew()
        for visitor in crowd:
            await visitor.leave()
        storm.records.waits = waits
    records = storm.records
    return Outcome(
        title="Lab hour",
        kind=house.kind,
        load_before=storm.load_before,
        facts=[
            below("pages, plans and clicks", records.of(*PAGES), PAGE_S),
            below(
                "between two messages of metrics of a viewer (sent every 500 ms)",
                records.of(BETWEEN),
                CURVE_S,
            ),
            none_of("errors (5xx, time-outs, lost connections)", records.errors),
            *health_facts(records),
            Fact("jobs that ran", str(len(jobs)), "", None),
        ],
        records=records,
        cpu=cpu,
        memory=memory,
    )


class Visitor:
    """Person with one tab, who opens a page again and again, or submits jobs."""

    def __init__(self, storm: Storm, person: Person, kind: str, job_id: str = "") -> None:
        self._storm, self._person, self._kind, self._job_id = storm, person, kind, job_id
        self._chance = random.Random(storm.chance.random())
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the tab."""
        self._task = asyncio.create_task(self._live())

    async def leave(self) -> None:
        """Close the tab."""
        assert self._task is not None
        self._task.cancel()
        [found] = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(found, Exception):
            self._storm.records.errors[f"in the simulation: {found!r}"] += 1

    async def _live(self) -> None:
        if self._kind == "calendar":
            await self._storm.calendar(self._person)
            return
        browser = self._storm.browser(self._person)
        while True:
            try:
                if self._kind == "watcher":
                    await JobPage(browser, self._job_id, self._storm.job_assets).open()
                elif self._kind == "list":
                    await JobList(browser, self._storm.list_assets).open()
                else:
                    await self._submit(browser)
                await asyncio.sleep(self._chance.uniform(*RELOADS_S))
            finally:
                await browser.close()

    async def _submit(self, browser: Browser) -> None:
        """Write a spec, look at its plan, submit it, look at the job, cancel it."""
        spec = job_spec(self._person.name, "a100x1", ranks=1)
        await browser.ask("new job", "GET", "/jobs/new")
        for steps in (400, 4000, 40_000):
            await asyncio.sleep(self._chance.uniform(*TYPES_S))
            spec["training"] |= {"steps": steps}  # type: ignore[operator]
            await browser.click("plan", "POST", "/v1/jobs/plan", spec)
        answer = await browser.click("submit", "POST", "/v1/jobs", spec, once=True)
        if answer.status != 201:
            return
        job_id = answer.json()["id"]
        page = JobPage(browser, job_id, self._storm.job_assets)
        await page.open()
        await asyncio.sleep(self._chance.uniform(*TYPES_S))
        await browser.click("cancel", "POST", f"/v1/jobs/{job_id}/cancel")


def _crowd(storm: Storm, jobs: dict[str, Person], share: float) -> list[Visitor]:
    students = iter(cycle(storm.course.students))
    owners = iter(cycle(jobs.items()))
    crowd = []
    for _ in range(round(WATCHERS * share)):
        job_id, owner = next(owners)
        crowd.append(Visitor(storm, owner, "watcher", job_id))
    for kind, number in (("calendar", CALENDARS), ("list", LISTS), ("submitter", SUBMITTERS)):
        crowd += [Visitor(storm, next(students), kind) for _ in range(round(number * share))]
    return crowd


async def _start_jobs(storm: Storm) -> dict[str, Person]:
    """Let an assistant run a job on each node, in a lease of theirs; map job id -> owner."""
    jobs = {}
    start = hour_floor(utc_now())
    class_of = {n: c for c, one in storm.course.policy.classes.items() for n in one.nodes}
    for node, owner in zip(storm.course.nodes, storm.course.assistants, strict=False):
        browser = storm.browser(owner)
        # The course's lengths by day; by night they are allowed, too.
        is_long = storm.course.policy.covers(
            "long", NodeRef(node.name, node.name, class_of[node.name])
        )
        hours = HOURS["long" if is_long else "single"]
        block = {"node": node.name, "start": start.isoformat(), "hours": hours}
        booked = await browser.click("lab's lease", "POST", "/v1/leases", block)
        while booked.status == 409:  # a node that has just joined is not ready yet
            await asyncio.sleep(0.5)
            booked = await browser.click("lab's lease", "POST", "/v1/leases", block)
        assert booked.status == 201, booked.body
        spec = job_spec(owner.name, class_of[node.name], ranks=node.gpus)
        spec["lease"] = booked.json()["id"]
        made = await browser.click("lab's job", "POST", "/v1/jobs", spec, once=True)
        assert made.status == 201, made.body
        jobs[made.json()["id"]] = owner
    async with asyncio.timeout(60):
        while not all(node.running for node in storm.course.nodes):
            await asyncio.sleep(0.1)
    return jobs


def job_spec(name: str, node_class: str, *, ranks: int) -> dict[str, object]:
    """Return the spec of a small GPT for all GPUs of a node."""
    spec: dict[str, object] = json.loads(json.dumps(SPEC))
    spec["name"] = f"lab-of-{name}"
    spec["parallelism"] = {"strategy": "ddp" if ranks > 1 else "single"}
    spec["resources"] = {
        "nodes": 1,
        "ranks_per_node": ranks,
        "wall_time": "50min",
        "node_class": node_class,
    }
    return spec


SPEC = {
    "model": {"name": "gpt", "layers": 4, "width": 160, "heads": 4},
    "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 128},
    "training": {
        "steps": 100_000,
        "global_batch_size": 8,
        "learning_rate": 2e-3,
        "warmup_steps": 20,
        "seed": 1,
    },
    "checkpoint": {"every_steps": 200, "keep_last": 2},
}
