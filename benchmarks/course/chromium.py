"""Real Chromium pages in the same storm: the hours that they draw as taken, with the times.

Runs as a process of its own: `python -m benchmarks.course.chromium URL SECRET ...` opens a calendar
for each session, prints `open`, waits for the end of its input, and prints the hours that each page
drew.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.course.browsers import COOKIE
from benchmarks.course.calendar_page import CalendarPage
from benchmarks.course.outcomes import Fact, below
from benchmarks.course.students import Booking
from core.base.clock import utc_now
from core.policy.grid import HOUR
from tests import chromium

FLAGS = ("--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")
WEEK_H = 7 * 24
SEEN_S = 2.0
# In the page: `node hour` of each taken hour of the week -> when it was drawn first (ms).
WATCH = """
() => {
  const grid = document.querySelector("[data-week-grid]");
  window.taken = () => [...grid.querySelectorAll("[data-week-lane] > .lease")].flatMap((bar) => {
    const [first, end] = ["--s", "--e"].map((name) => Number(bar.style.getPropertyValue(name)));
    const node = bar.parentElement.dataset.weekLane;
    return Array.from({ length: end - first }, (_, index) => `${node} ${first + index}`);
  });
  window.since = {};
  const look = () => window.taken().forEach((hour) => { window.since[hour] ??= Date.now(); });
  look();
  new MutationObserver(look).observe(grid, { childList: true, subtree: true });
}
"""
READ = "() => ({ taken: window.taken(), since: window.since })"


@dataclass
class Tabs:
    """Chromium pages, as seen from the process of the storm."""

    process: asyncio.subprocess.Process
    count: int

    @classmethod
    async def open(cls, url: str, secrets: Sequence[str]) -> "Tabs":
        """Open a calendar for each session; return once all are drawn."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, url, *secrets),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        assert line == b"open\n", "Chromium did not open its pages"
        return cls(process, len(secrets))

    async def close(self, board: CalendarPage, bookings: Sequence[Booking]) -> list[Fact]:
        """Close the pages; return how many drew the holds that `board` knows, and the delays."""
        output, _ = await self.process.communicate(b"")  # which ends its input
        pages: list[dict[str, Any]] = json.loads(output)
        known = set(_taken(board))
        alike = sum(set(page["taken"]) == known for page in pages)
        ahead = time.time() - time.perf_counter()
        delays = [
            max(0.0, page["since"][hour] / 1000 - one.answered_at - ahead)
            for one in bookings
            for page in pages
            if (hour := _hour(one)) in page["since"]
        ]
        return [
            Fact(
                "Chromium pages that draw what the simulated ones know",
                f"{alike} of {self.count}",
                "all",
                alike == self.count,
            ),
            below("a booking is drawn in Chromium", delays, SEEN_S),
        ]


def _taken(board: CalendarPage) -> Iterator[str]:
    midnight, now = _midnight(), utc_now()
    for node, spans in board.spans().items():
        for hour in range(WEEK_H):
            start = midnight + hour * HOUR
            since = now if start <= now < start + HOUR else start
            if any(begins < start + HOUR and ends > since for begins, ends in spans):
                yield f"{node} {hour}"


def _hour(booking: Booking) -> str:
    node, start = booking.block
    return f"{node} {(start - _midnight()) // HOUR}"


def _midnight() -> datetime:
    return utc_now().replace(hour=0, minute=0, second=0, microsecond=0)


def main() -> None:
    """Open the pages, wait for the end of the input, and print the hours that they drew."""
    url, *secrets = sys.argv[1:]
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=[*FLAGS, *sandbox]
        )
        pages = []
        for secret in secrets:
            context = browser.new_context(
                timezone_id="UTC", viewport={"width": 1280, "height": 900}
            )
            context.add_cookies([{"name": COOKIE, "value": secret, "url": url}])
            page = context.new_page()
            page.goto(f"{url}/calendar")
            page.locator("[data-week-lane]").first.wait_for()
            page.evaluate(WATCH)
            pages.append(page)
        sys.stdout.write("open\n")
        sys.stdout.flush()
        ended = False
        while not ended:  # playwright's own loop must run on
            pages[0].wait_for_timeout(200)
            with suppress(BlockingIOError):
                ended = os.read(0, 1) == b""
        found = [page.evaluate(READ) for page in pages]
        browser.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    os.set_blocking(0, False)
    main()
