"""`make scale`: a thousand nodes and ten thousand jobs; writes docs/benchmarks-scale.md."""

import argparse
import asyncio
import os
import platform
import random
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import select

from benchmarks.course import gauges
from benchmarks.course.houses import House, standing
from benchmarks.course.outcomes import Fact, Outcome, below, none_of
from benchmarks.course.records import Records, spread
from benchmarks.scale import cluster, faults, growth, truth
from benchmarks.scale.crowd import PAGES, SIZES, Crowd
from benchmarks.scale.doorbells import hear
from benchmarks.scale.faults import Recovery
from core.database.database import Database
from core.process.cycle_numbers import CycleNumbers
from core.tables.processes import Leadership

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-scale.md"
NODES, JOBS, PEOPLE, STREAMS = 1000, 10_000, 200, 100
MEAN_S = 470.0  # of a job's duration: log-uniform between SHORTEST_S and LONGEST_S
SETTLES_S = 60.0
RECOVERS_S = 20.0
CLICKS = ("submit", "plan", "book", "cancel a booking", "page of a job")
HOW = """\
PostgreSQL, two APIs on one socket, two schedulers and Valkey, each its own process; the nodes are
one process that speaks the node protocol for each of them: heartbeats with inventory and telemetry,
metrics, logs, exits, Celery's doorbells heard from each node's own queue. Nothing computes. All of
it, and the people, share the cores, so the figures are those of a whole cluster on this machine.
"""


@dataclass(frozen=True)
class Size:
    """Size and duration of a run."""

    nodes: int = NODES
    jobs: int = JOBS
    people: int = PEOPLE
    seconds: float = 3600.0
    """Duration of the steady state."""
    watched_s: float = 60.0
    """Seconds for which each kill is watched."""


@dataclass
class Run:
    """A cluster under load, with all records."""

    house: House
    size: Size
    records: Records = field(default_factory=Records)
    settles_s: float = SETTLES_S
    """Seconds between the last submission and the first measurement."""
    chance: random.Random = field(default_factory=lambda: random.Random(1000))

    async def play(self) -> tuple[Outcome, list[Recovery], str]:
        """Fill the queue, measure the steady state, kill three parts; return the figures."""
        load_before = os.getloadavg()[0]
        built = await asyncio.to_thread(
            cluster.build,
            self.house,
            self.records,
            nodes=self.size.nodes,
            people=self.size.people,
        )
        share = self.size.nodes / NODES
        crowd = Crowd(self.house, self.records, built.people, built.nodes, self.chance, share)
        async with self.alive(crowd):
            filled_s = await self.fill(crowd)
            crowd.watch(STREAMS)
            mean_nodes = sum(SIZES) / len(SIZES)
            async with self.clicking(crowd, MEAN_S * mean_nodes / NODES):
                await asyncio.sleep(self.settles_s)
                self.records.begin_anew()
                with closing(Database(self.house.database_url)) as database:
                    before, cycles = growth.measure(database), cycle_numbers(database)
                    use, begun = gauges.HouseUse(self.house), time.monotonic()
                    await asyncio.sleep(self.size.seconds)
                    seconds = time.monotonic() - begun
                    cpu, memory = use.cpu(), use.memory()
                    after, cycles_now = growth.measure(database), cycle_numbers(database)
                waits = self.records.begin_anew()
                errors = self.records.errors.copy()
                recoveries = await self.break_things(crowd)
            self.records.waits = waits
            self.records.errors, late = errors, self.records.errors
        with closing(Database(self.house.database_url)) as database:
            wrong = truth.broken(database)
            lost = truth.num_lost(database, list(crowd.submitted))
            cut = truth.num_cut_curves(database)
        doubled = late["node was given slots twice"]
        starts, beats = waits["free node's next job"], waits["node's heartbeat"]
        facts = [
            Fact("nodes; jobs at once", f"{self.size.nodes:,}; {self.size.jobs:,}", "", None),
            Fact("filling the queue", f"{self.size.jobs / filled_s:,.0f} jobs/s", "", None),
            Fact("starts", f"{len(starts) / seconds:.2f}/s", "", None),
            Fact("events", f"{(after.events - before.events) / seconds:.1f}/s", "", None),
            Fact("heartbeats", f"{len(beats) / seconds:,.0f}/s", "", None),
            Fact("cycle of the scheduler", describe(cycles, cycles_now), "", None),
            Fact(
                "a free node's next job (median / p99 / max)",
                f"{spread(starts, 's')} s",
                "",
                None,
            ),
            below("node's heartbeat", beats, 0.5),
            below("submission", waits["submit"], 0.5),
            below("booking", waits["book"], 0.4),
            below("plan", waits["plan"], 0.5),
            below("/readyz", waits["/readyz"], 0.5, 1.0),
            none_of("errors before the first kill", errors),
            Fact("submissions acknowledged and lost", str(lost), "0", lost == 0),
            Fact("slots given twice, seen by the nodes", str(doubled), "0", doubled == 0),
            Fact("curves with a gap", str(cut), "0", cut == 0),
            Fact("broken invariants", "; ".join(wrong) or "none", "none", not wrong),
        ]
        outcome = Outcome(
            title=f"{self.size.nodes:,} nodes, {self.size.jobs:,} jobs, {seconds / 60:.0f} min",
            kind=self.house.kind,
            load_before=load_before,
            facts=facts,
            records=self.records,
            cpu=cpu,
            memory=memory,
        )
        return outcome, recoveries, growth.as_table(before, after, seconds)

    async def fill(self, crowd: Crowd) -> float:
        """Submit all jobs; return the seconds that it took."""
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("submitting jobs", total=self.size.jobs)
            begun = time.monotonic()
            await crowd.fill(self.size.jobs, lambda: progress.advance(bar))
            return time.monotonic() - begun

    async def break_things(self, crowd: Crowd) -> list[Recovery]:
        """Kill the leading scheduler, an API and the database, one after the other."""
        kills: dict[str, Callable[[House], Awaitable[None]]] = {
            "the leading scheduler": faults.kill_scheduler,
            "one of two APIs": faults.kill_api,
            "PostgreSQL, started again after 1 s": faults.kill_database,
        }
        found = []
        for name, kill in kills.items():
            sys.stderr.write(f"killing {name}\n")
            found.append(
                await faults.kill_and_watch(
                    name, kill, self.house, crowd, watched_s=self.size.watched_s
                )
            )
        return found

    @asynccontextmanager
    async def alive(self, crowd: Crowd) -> AsyncIterator[None]:
        """Let nodes live and hear doorbells, ask for health, restart processes that have ended."""
        works = [node.live() for node in crowd.nodes]
        works += [
            hear(self.house.redis_url, crowd.nodes),
            gauges.ask_health(self.house, self.records),
            self.house.keep_running(),
        ]
        async with self._tasks(works):
            yield
        await crowd.close()

    @asynccontextmanager
    async def clicking(self, crowd: Crowd, every_s: float) -> AsyncIterator[None]:
        """Let people click, and keep the queue as long as it is."""
        works = [crowd.submit_as_many_as_end(every_s), crowd.plan(), crowd.book()]
        works += [crowd.look_at_jobs(), *(crowd.look(path) for path in PAGES)]
        async with self._tasks(works):
            yield

    @asynccontextmanager
    async def _tasks(self, works: Sequence[Awaitable[None]]) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._note_end)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _note_end(self, task: asyncio.Future[None]) -> None:
        """Count and tell what has ended a task; a node that is not played is silent for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.records.errors[f"in the simulation: {error!r}"] += 1
            sys.stderr.write("".join(traceback.format_exception(error)))


def cycle_numbers(database: Database) -> CycleNumbers:
    """Return the durations of the leader's cycles, as of its last renewal."""
    with database.read() as session:
        document = session.scalars(select(Leadership.cycles)).one()
    return CycleNumbers.model_validate(document or {})


def describe(before: CycleNumbers, after: CycleNumbers) -> str:
    """Return the mean duration of the cycles and pauses between two looks at one leader."""
    parts = []
    for name, old, new in (
        ("cycle", before.cycles, after.cycles),
        ("pause", before.pauses, after.pauses),
    ):
        number = sum(new.counts) - sum(old.counts)
        mean = (new.total_s - old.total_s) / number if number > 0 else 0.0
        parts.append(f"{name} {mean:.2f} s on average")
    return f"{'; '.join(parts)}; {number:,} cycles"


def as_page(outcome: Outcome, recoveries: list[Recovery], grown: str) -> str:
    """Return the Markdown of docs/benchmarks-scale.md."""
    rows = [
        f"| {one.killed} | {one.heartbeat_s:.1f} | {one.submission_s:.1f} | {one.start_s:.1f} | "
        f"{'yes' if one.whole_s <= RECOVERS_S else '**no**'} |"
        for one in recoveries
    ]
    table = "\n".join(
        [
            "| killed with SIGKILL | all nodes heard, s | submission, s | start, s | "
            f"within {RECOVERS_S:.0f} s |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )
    return (
        "# Benchmark of a large cluster\n\n"
        f"Written by `make scale` on {date.today().isoformat()}: {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}.\n\n{HOW}\n"
        f"{outcome.as_markdown()}\n### Kills\n\n{table}\n\n### Growth of the database\n\n{grown}\n"
    )


def main() -> int:
    """Run the cluster and write the page; a smaller or shorter run is only printed."""
    parser = argparse.ArgumentParser("make scale", description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--people", type=int, default=PEOPLE)
    parser.add_argument("--minutes", type=float, default=60.0, help="of steady state; 60")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # nothing is left over
    size = Size(asked.nodes, asked.jobs, asked.people, 60 * asked.minutes)
    with standing("postgresql") as house:
        page = as_page(*uvloop.run(Run(house, size).play()))
    if (size.nodes, size.jobs) == (NODES, JOBS):
        PAGE.write_text(page)
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
