"""Simulated page of a live job and list of jobs, which behave as their scripts do."""

import asyncio
import time
from typing import Any

from benchmarks.course.browsers import Browser
from benchmarks.course.calendar_page import Assets
from benchmarks.course.looks import SPREAD_S, Looks

BETWEEN = "between two messages of metrics"
FRAGMENTS_REST_S, RANKS_REST_S, BURST_S = 1.0, 5.0, 0.15  # job.js
RECENT_STEPS = 27  # ranks.js: those of ten seconds, and one more
PARTS = ("head", "events", "history")
HTMX = {"HX-Request": "true"}


class JobPage:
    """Page of one watcher of one live job."""

    def __init__(self, browser: Browser, job_id: str, assets: Assets) -> None:
        self.browser = browser
        self.looks = Looks(browser)
        self._path, self._address, self._assets = f"/jobs/{job_id}", f"/v1/jobs/{job_id}", assets
        self._heard_at = 0.0
        self._last_event = 0
        """Id of the newest event that the page was drawn with, or has heard of."""
        self._has_ranks = False
        self._step = self._ranks_step = 0
        for name in PARTS:
            self.looks.reads(name, self._reading(name), rest_s=FRAGMENTS_REST_S)
        self.looks.reads("metrics", self._read_metrics)
        self.looks.reads("ranks", self._read_ranks, rest_s=RANKS_REST_S)

    async def open(self) -> None:
        """Load the page; its scripts then live until the browser is closed."""
        page = await self.browser.ask("job page", "GET", self._path)
        if page is None or page.status != 200:
            return
        text = page.body.decode()
        self._last_event = int(text.partition('id="event-list" data-last="')[2].partition('"')[0])
        self._has_ranks = " data-ranks>" in text
        await self._assets.load(self.browser, text)
        self.browser.start(self.looks.live())
        self.looks.ring("metrics", is_asked=True)
        self.browser.listen(f"{self._address}/stream", self._heard)
        await self.browser.ask("job's logs", "GET", f"{self._address}/logs?tail=500")

    def _heard(self, name: str, document: Any) -> None:
        if name == "metrics":
            now = time.perf_counter()
            if self._heard_at:
                self.browser.records.wait(BETWEEN, now - self._heard_at)
            self._heard_at = now
            self._step = max(self._step, document["lines"][-1]["step"])
            self.looks.ring("ranks")
        elif name == "event" and document["id"] > self._last_event:
            self.looks.ring(*PARTS, after_s=BURST_S)
            self._last_event = document["id"]

    def _reading(self, name: str) -> Any:
        async def read(can_wait: bool) -> None:
            await self.browser.read(f"job's {name}", f"{self._path}/{name}", can_wait=can_wait)

        return read

    async def _read_metrics(self, can_wait: bool) -> None:
        path = f"{self._address}/metrics?resolution=1500&rank=0"
        await self.browser.read("job's metrics", path, can_wait=can_wait)

    async def _read_ranks(self, can_wait: bool) -> None:
        if not self._has_ranks or self._step == self._ranks_step:
            return
        since = max(-1, self._step - RECENT_STEPS)
        queries = (
            "keys=look_time_s,exposed_comm_time_s",
            f"keys=max_active_gib,gpu_pct,cpu_pct&since_step={since}&resolution=100",
        )
        path, read = f"{self._address}/metrics", self.browser.read
        await asyncio.gather(*(read("ranks", f"{path}?{q}", can_wait=can_wait) for q in queries))
        self._ranks_step = self._step


class JobList:
    """List of jobs that follows the changes."""

    def __init__(self, browser: Browser, assets: Assets) -> None:
        self.browser = browser
        self.looks = Looks(browser)
        self._assets = assets
        self._drawn: Any = None
        self.looks.reads("list", self._read_rows)

    async def open(self) -> None:
        """Load the page; its scripts then live until the browser is closed."""
        page = await self.browser.ask("job list", "GET", "/jobs")
        if page is not None:
            await self._assets.load(self.browser, page.body.decode())
        self.browser.start(self.looks.live())
        self.browser.listen("/v1/changes/stream?list=jobs", self._heard)

    def _heard(self, name: str, document: Any) -> None:
        if name == "changes" and document["words"] != self._drawn:
            self._drawn = document["words"]
            self.looks.ring("list", spread_s=SPREAD_S)

    async def _read_rows(self, can_wait: bool) -> None:
        await self.browser.read("job list, rows", "/jobs/rows?first=", can_wait=can_wait)
