"""Simulated calendar page: like its script it follows a stream of changes and rereads little."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from urllib.parse import quote

from benchmarks.course.browsers import Browser, Busy
from benchmarks.course.looks import SPREAD_S, Looks
from benchmarks.course.wire import Answer
from core.base.clock import utc_now

STATIC = re.compile(r'(?:href|src)="(/static/[^"]+)"')
IMPORT = re.compile(r'(?:from|import) "\./([^"]+)"')
OPEN = "state=booked&state=active&state=ending"
LIVE = "state=queued&state=starting&state=running&state=paused"
BESIDE_S, BESIDE_SPREAD_S = 2.0, 8.0  # these five as in calendar.js and booking.js
BACK_S, BACK_SPREAD_S = 1.0, 8.0
TOLD_WITHIN_S = 3.0
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

Block = tuple[str, datetime]
"""Node name and start of a block."""


@dataclass
class Sightings:
    """Times at which each hold was first drawn, by block."""

    seen: dict[Block, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times of time.perf_counter(), one for each page that learned of the hold by its stream."""

    def delays(self, block: Block, since: float) -> list[float]:
        """Return the seconds until each page had a block; 0 if it had it before `since`."""
        return [max(0.0, at - since) for at in self.seen.get(block, [])]


@dataclass
class Assets:
    """Files that browsers cache for ever, as the first browser has found them."""

    paths: list[str] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, browser: Browser, page: str) -> None:
        """Load all files that the page and its scripts name and that are not cached."""
        async with self.lock:
            if not self.paths:
                self.paths = await self._explore(browser, page)
                browser.kept.update(self.paths)
                return
        due = [path for path in self.paths if path not in browser.kept]
        browser.kept.update(due)
        await asyncio.gather(*(browser.ask("asset", "GET", path) for path in due))

    async def _explore(self, browser: Browser, page: str) -> list[str]:
        found: list[str] = []
        due = STATIC.findall(page)
        while due:
            path = due.pop()
            if path in found:
                continue
            found.append(path)
            answer = await browser.ask("asset", "GET", path)
            if answer is not None and path.endswith(".js") and "/vendor/" not in path:
                folder = path.rpartition("/")[0]
                due += [f"{folder}/{name}" for name in IMPORT.findall(answer.body.decode())]
        return found


class CalendarPage:
    """One open calendar."""

    def __init__(
        self, browser: Browser, *, is_staff: bool, sightings: Sightings, assets: Assets
    ) -> None:
        self.browser = browser
        self.looks = Looks(browser)
        self.holds: dict[str, dict[str, Any]] = {}
        """Map node name -> its state and holds, from the stream's last message."""
        self.leases: list[dict[str, Any]] = []
        self.waits: list[dict[str, Any]] = []
        self.has_read_own = asyncio.Event()
        self.is_drawn = asyncio.Event()
        self._is_staff, self._sightings, self._assets = is_staff, sightings, assets
        self._day = _day_of(utc_now())
        self._week = self._day
        self._beside: set[str] = set()
        self._version: str | None = None
        self._came_back_at = -inf
        for name, read in (
            ("own", self._read_own),
            ("day", self._read_day),
            ("beside", self._read_beside),
            ("rules", self._read_rules),
        ):
            self.looks.reads(name, read)

    async def open(self) -> None:
        """Load the page; its scripts then run until the browser is closed."""
        page = await self.browser.ask("page", "GET", "/calendar")
        if page is not None:
            await self._assets.load(self.browser, page.body.decode())
        self.browser.listen("/v1/leases/stream", self._heard, self._came_back)
        self.looks.ring("own", "day", "rules", is_asked=True)
        self.browser.start(self.looks.live())
        await self.is_drawn.wait()

    async def click(
        self, what: str, method: str, path: str, document: object = None, *, once: bool = False
    ) -> Answer:
        """Send the request of a person's click; the page's own reads wait for it."""
        clicking = self.browser.click(what, method, path, document, once=once)
        answer: Answer = await self.looks.asked(clicking)
        return answer

    async def act(
        self, what: str, method: str, path: str, document: object = None, *, once: bool = False
    ) -> Answer:
        """Click something that changes the person's own leases or wishes, and reread them later.

        The stream normally tells of the change sooner.
        """
        answer = await self.click(what, method, path, document, once=once)
        if answer.status < 400:
            self.looks.ring("own", after_s=TOLD_WITHIN_S)
        return answer

    async def show_day(self, start: datetime) -> None:
        """Show the day in which a time lies."""
        day = _day_of(start)
        if day != self._day:
            self._day = day
            await self.looks.asked(self._turn(day - self._week))

    def is_free(self, node: str, start: datetime, hours: int) -> bool:
        """Return True if the page shows a block as free."""
        end = start + hours * HOUR
        return not any(
            begins < end and ends > start for begins, ends in _spans(self.holds.get(node, {}))
        )

    def spans(self) -> dict[str, frozenset[tuple[datetime, datetime]]]:
        """Map node name -> (start, end) of each of its holds, as the page knows them."""
        return {node: _spans(entry) for node, entry in self.holds.items()}

    def _heard(self, name: str, document: Any) -> None:
        if name == "holds":
            self._take(document)
        elif name in ("own", "rules"):
            self._version = document["version"]
            is_back = time.monotonic() < self._came_back_at + BACK_S
            usual = SPREAD_S if name == "rules" else 0.0
            self.looks.ring(name, "day", spread_s=BACK_SPREAD_S if is_back else usual)

    def _came_back(self) -> None:
        self._came_back_at = time.monotonic()

    def _take(self, document: dict[str, Any]) -> None:
        now = time.perf_counter()
        is_first = not self.is_drawn.is_set()
        version = document["version"]
        has_missed = document["whole"] and self._version not in (None, version)
        self._version = version
        known = dict(self.holds)
        if document["whole"]:
            self.holds.clear()
        start, end = self._day - DAY, self._day + 2 * DAY  # gaps to what is beside count
        for entry in document["nodes"]:
            node = entry["node"]
            before, after = _spans(known.get(node, {})), _spans(entry)
            self.holds[node] = entry
            if not is_first:
                for at, _ in after - before:
                    self._sightings.seen[node, at].append(now)
            if any(begins < end and ends > start for begins, ends in after ^ before):
                self._beside.add(node)
        self.is_drawn.set()
        if is_first:
            self._beside.clear()
        elif has_missed:
            self.looks.ring("own", "day", "rules", spread_s=BACK_SPREAD_S)
        elif self._beside:
            self.looks.ring("beside", after_s=BESIDE_S, spread_s=BESIDE_SPREAD_S)

    async def _turn(self, apart: timedelta) -> None:
        """Read the availability of the day that was chosen, and the bands of another week."""
        paths = {"day": self._judged()}
        if not timedelta(0) <= apart < 7 * DAY:
            self._week = self._day
            paths["bands"] = self._bands()
        try:
            await self._read_all(paths, can_wait=False)
        except Busy as busy:
            names = ("day", "rules") if "bands" in paths else ("day",)
            wait_s = busy.wait_s or 0.0
            self.looks.ring(*names, after_s=wait_s, spread_s=wait_s, is_asked=True)

    async def _read_own(self, can_wait: bool) -> None:
        paths = {
            "own leases": f"/v1/leases?{OPEN}&limit=200",
            "own jobs": f"/v1/jobs?{LIVE}&limit=100",
            "own wishes": "/v1/waitlist?limit=50",
        }
        if self._is_staff:
            paths["maintenance"] = "/v1/maintenance?limit=50"
        leases, _, waits, *_ = await self._read_all(paths, can_wait)
        self.leases = leases["data"] if leases else self.leases
        self.waits = waits["data"] if waits else self.waits
        self.has_read_own.set()

    async def _read_day(self, can_wait: bool) -> None:
        self._beside.clear()
        await self.browser.read("day", self._judged(), can_wait=can_wait)

    async def _read_beside(self, can_wait: bool) -> None:
        names = sorted(self._beside)
        self._beside.clear()
        if not names:
            return
        try:
            await self.browser.read("day, some nodes", self._judged(names), can_wait=can_wait)
        except Busy:
            self._beside.update(names)
            raise

    async def _read_rules(self, can_wait: bool) -> None:
        paths = {
            "bands": self._bands(),
            "windows": "/v1/windows",
            "forecast": "/v1/leases/forecast",
        }
        await self._read_all(paths, can_wait)

    async def _read_all(self, paths: dict[str, str], can_wait: bool) -> list[Any]:
        reads = (self.browser.read(what, path, can_wait=can_wait) for what, path in paths.items())
        return await asyncio.gather(*reads)

    def _judged(self, names: Iterable[str] = ()) -> str:
        chosen = "".join(f"&node={quote(name)}" for name in names)
        start = _asked(self._day)
        return f"/v1/leases/availability?start={start}&hours=24&any_length=true{chosen}"

    def _bands(self) -> str:
        return f"/v1/bands?start={_asked(self._week)}&hours=168"


def _day_of(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def moment(text: str) -> datetime:
    """Parse a time as the API writes it; return it in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _spans(entry: dict[str, Any]) -> frozenset[tuple[datetime, datetime]]:
    """Return the holds of a node as (start, end); cached in the entry, which all pages share."""
    if "spans" not in entry:
        entry["spans"] = frozenset(
            (moment(one["start"]), moment(one["end"])) for one in entry.get("holds", ())
        )
    spans: frozenset[tuple[datetime, datetime]] = entry["spans"]
    return spans


def _asked(start: datetime) -> str:
    return quote(start.isoformat())
