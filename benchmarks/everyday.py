"""Ten everyday tasks on the pages, done by script in headless Chromium: clicks and seconds.

`python -m benchmarks.everyday` prints a table of both at the widths of a desk and of a phone, and
exits with 1 if a task could not be done. The platform is the made-up afternoon of
`tests.dashboard.stage`, with the real API and pages and no scheduler: a submitted job stays queued.

A click is whatever a hand does once: a click or tap, a field that is filled, a choice, a key, a
screen that is scrolled on to see what was looked for or to reach a button. Seconds are those of a
script that acts as soon as the page lets it: what the platform takes, not what a person thinks.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from playwright.sync_api import Error as NotDone

from core.base.clock import utc_now
from core.base.reasons import ReasonCode
from core.states import JobState, LeaseState
from tests import chromium
from tests.dashboard import stage as stages
from tests.dashboard.stage import HOUR, Stage

WIDTHS = {1280: 900, 390: 844}
"""Height by width, in pixels."""
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE_MS = 20_000
FAILED = "a-long-name-that-is-kept-whole-2026-spring-retrain-of-it-all"
LAST_WEEKS = "week-old-run"
TUESDAY = 1


@dataclass
class Hand:
    """One person in front of a page, whose acts are counted."""

    page: Page
    stage: Stage
    num_acts: int = 0

    @property
    def is_phone(self) -> bool:
        """True on a screen as wide as a phone's."""
        return self._size[0] < 640

    def click(self, what: str | Locator) -> None:
        """Click the first that can be seen, after scrolling to it."""
        self._reach(what).click()
        self.num_acts += 1

    def fill(self, what: str, text: str) -> None:
        """Write into a field."""
        self._reach(what).fill(text)
        self.num_acts += 1

    def choose(self, what: str, value: str) -> None:
        """Choose from a list."""
        self._reach(what).select_option(value)
        self.num_acts += 1

    def press(self, key: str) -> None:
        """Press a key, or several together."""
        self.page.keyboard.press(key)
        self.num_acts += 1

    def see(self, what: str | Locator) -> None:
        """Wait until it is there, and scroll until it is on the screen."""
        self._reach(what)

    def go(self, place: str) -> None:
        """Go to a place of the navigation."""
        if self.is_phone:
            self.click("details.nav-small > summary")
            self.click(f"details.nav-small a:text-is('{place}')")
        else:
            self.click(f"nav.nav-wide a:text-is('{place}')")

    def submit(self) -> None:
        """Submit the job that the form describes, and see its page."""
        button = "[data-submit-bar]" if self.is_phone else "[data-submit]"
        self.click(f"{button}:not([disabled])")
        self.page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
        self.see("h1")

    @property
    def _size(self) -> tuple[int, int]:
        size = self.page.viewport_size
        assert size is not None
        return size["width"], size["height"]

    def _reach(self, what: str | Locator) -> Locator:
        found = self.page.locator(what) if isinstance(what, str) else what
        found = found.locator("visible=true").first
        found.wait_for()
        while (box := found.bounding_box()) is None:  # drawn anew meanwhile
            found.wait_for()
        height = self._size[1]
        beyond = max(0.0, box["y"] + min(box["height"], height) - height, -box["y"])
        self.num_acts += -int(-beyond // (0.9 * height))  # a screen keeps a tenth of the one before
        found.scroll_into_view_if_needed()
        return found


@dataclass(frozen=True)
class Task:
    """A wish of a person, and the way to it."""

    name: str
    person: str
    begin: str
    """Address at which the person is; `JOB:name` for the page of a job."""
    do: Callable[[Hand], None]


@dataclass(frozen=True)
class Done:
    """A task that was done, or the reason why it was not."""

    acts: int
    seconds: float
    why_not: str = ""


def first_run(hand: Hand) -> None:
    """Go from the link of an invitation to the page of a first job."""
    hand.fill("#name", f"newcomer-{hand._size[0]}")
    hand.fill("#password", "a password of some length")
    hand.click("main button")
    hand.click("a.btn.primary:text('New job')")
    hand.submit()


def why_failed(hand: Hand) -> None:
    """Go from the list of jobs to the line of the error."""
    hand.click(f"a.name:has-text('{FAILED}')")
    hand.see("text=torch.OutOfMemoryError")


def run_again(hand: Hand) -> None:
    """Go from the page of a failed job to that of one with another learning rate."""
    hand.click("a:text-is('Edit and run again')")
    hand.fill("[data-field='training.learning_rate']", "1.0e-4")
    hand.submit()


def book_and_run(hand: Hand) -> None:
    """Book three hours on Tuesday, on whichever node, and submit a job in them."""
    hand.go("Calendar")
    hand.see("[data-any]")  # the hours have been judged
    days = (TUESDAY - (utc_now() - 5 * HOUR).weekday()) % 7
    hand.click(hand.page.locator("[data-week-grid] [data-day]").nth(days))
    hand.page.locator("[data-any-day]", has_text="Tue").wait_for()
    hand.choose("[data-any-hours]", "3")
    hand.click("[data-any-found] button")
    hand.click("[data-book-now]:not([disabled]):has-text('Book 3 h')")
    hand.click("[data-lease-answer] a:text-is('Run a job in it')")
    hand.submit()


def quota_left(hand: Hand) -> None:
    """Go from the list of jobs to the rest of the quotas."""
    if hand.is_phone:
        hand.click("details.nav-small > summary")
    else:
        hand.click("details.nav-wide > summary")
    hand.click("a:text-is('Usage')")
    hand.see("section[aria-label='What you have left'] li")


def who_has_it(hand: Hand) -> None:
    """Go from the list of jobs to the name of whoever has north-02 now."""
    hand.go("Nodes")
    hand.see(hand.page.locator("#rows tr", has_text="north-02").get_by_text("ada has it"))


def compare_two(hand: Hand) -> None:
    """Go from the list of jobs to the verdict on two layouts of one training."""
    for name in ("homework-4-ddp", "homework-4-fsdp"):
        hand.click(hand.page.locator("#rows tr", has_text=name).locator("input[type=checkbox]"))
    hand.click("[data-compare]")
    hand.page.wait_for_url("**/jobs/compare?*")
    hand.see(".head .reason")


def get_checkpoint(hand: Hand) -> None:
    """Go from the list of jobs to the file of a running job's newest checkpoint."""
    hand.click("a.name:has-text('llama-7b-python')")
    hand.click("[data-job-tabs] a:text-is('Files')")
    with hand.page.expect_download():
        hand.click("#checkpoints a[download]")


def clean_up_and_undo(hand: Hand) -> None:
    """Remove what a person who often did not come has booked, and undo it."""
    hand.go("Admin")
    hand.click("a[href='/admin/cleanups?wrong=no_show']")
    hand.fill("#reason", "Three no-shows.")
    hand.click("button:text-is('Preview')")
    hand.click("[data-read]")
    hand.click("[data-remove]")
    hand.see("h2:text-is('Applied')")
    hand.click("button:text-is('Undo')")
    hand.see("td .glyph:text-is('booked again')")


def find_last_weeks(hand: Hand) -> None:
    """Go from the list of jobs to the page of a run that is not on it any more."""
    if hand.is_phone:
        hand.go("Search")
        hand.fill("main [type=search]", LAST_WEEKS)
        hand.press("Enter")
        hand.click(f"main a:has-text('{LAST_WEEKS}')")
    else:
        hand.press("Control+k")
        hand.fill("#finder [type=search]", LAST_WEEKS)
        hand.click(f"#found a:has-text('{LAST_WEEKS}')")
    hand.see(f"h1:has-text('{LAST_WEEKS}')")


TASKS = (
    Task("first run from the link", "", "INVITATION", first_run),
    Task("why did it fail", "ada", "/jobs", why_failed),
    Task("run it again with one change", "ada", f"JOB:{FAILED}", run_again),
    Task("book three hours on Tuesday and run in them", "student-17", "/jobs", book_and_run),
    Task("how much quota is left", "student-04", "/jobs", quota_left),
    Task("who has my node", "student-04", "/jobs", who_has_it),
    Task("compare two", "ada", "/jobs?search=homework", compare_two),
    Task("get the checkpoint", "ada", "/jobs", get_checkpoint),
    Task("clean up no-shows and undo", "ada", "/jobs", clean_up_and_undo),
    Task("find last week's run", "ada", "/jobs", find_last_weeks),
)


def prepare(stage: Stage) -> None:
    """Fill the stage: a run of last week and many after it, the course's rules, no-shows."""
    now = utc_now()
    with stage.database.write() as session:
        for name, age in [
            (LAST_WEEKS, timedelta(days=7)),
            *((f"sweep-of-monday-{number:02}", timedelta(days=3)) for number in range(30)),
        ]:
            stages.add_job(
                stage,
                session,
                stages.HOMEWORK,
                state=JobState.SUCCEEDED,
                reason="All steps done.",
                age=age,
                finished_at=now - age + HOUR,
                spec={"name": name},
            )
        for days in (1, 2, 3):
            start = now - timedelta(days=days)
            lease = stages.add_lease(
                stage, session, "student-22", "west-01", start, start + HOUR, state=LeaseState.ENDED
            )
            lease.settled_as = ReasonCode.NO_SHOW
    stages.fill(stage)
    stages.apply_policy(stage)


def main() -> None:
    """Do all tasks at both widths; print the table."""
    table: list[tuple[str, ...]] = [("task", "clicks, 1,280 px", "s", "clicks, 390 px", "s")]
    failures = []
    with browsers() as browser:
        done = {width: all_at(browser, width) for width in WIDTHS}
    for number, task in enumerate(TASKS):
        cells: list[str] = []
        for width in WIDTHS:
            one = done[width][number]
            cells += [f"{one.acts}", f"{one.seconds:.1f}"] if not one.why_not else ["-", "-"]
            if one.why_not:
                failures.append(f"{task.name}, {width} px: {one.why_not}")
        table.append((task.name, *cells))
    table.insert(1, ("---", "---:", "---:", "---:", "---:"))
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in table))
    sys.exit("\n".join(failures) or 0)


@contextmanager
def browsers() -> Iterator[Browser]:
    """A headless Chromium."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=[*FLAGS, *sandbox]
        )
        yield browser
        browser.close()


def all_at(browser: Browser, width: int) -> list[Done]:
    """Do all tasks at one width, on a platform of their own."""
    with tempfile.TemporaryDirectory() as folder, stages.raised(Path(folder)) as stage:
        prepare(stage)
        look_once(browser, stage)
        return [attempt(browser, stage, task, width) for task in TASKS]


def look_once(browser: Browser, stage: Stage) -> None:
    """Open the pages once: the first page of a server compiles templates."""
    context = browser.new_context(base_url=stage.url, storage_state=stage.storage("ada"))  # type: ignore[arg-type]  # a TypedDict of its own
    page = context.new_page()
    for path in ("/jobs", "/jobs/new", "/calendar", "/nodes", "/admin/cleanups"):
        page.goto(path)
    context.close()


def attempt(browser: Browser, stage: Stage, task: Task, width: int) -> Done:
    """Do one task, beginning at its page; the page itself is not counted."""
    context = browser.new_context(
        base_url=stage.url,
        storage_state=stage.storage(task.person) if task.person else None,  # type: ignore[arg-type]  # a TypedDict of its own
        viewport={"width": width, "height": WIDTHS[width]},
        has_touch=width < 640,
        timezone_id="America/New_York",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(address(stage, task.begin))
    page.wait_for_load_state("networkidle" if task.begin.startswith("JOB") else "load")
    hand = Hand(page, stage)
    begun = time.perf_counter()
    try:
        task.do(hand)
    except NotDone as error:
        return Done(hand.num_acts, 0, str(error).split("\n=")[0][:600])
    finally:
        took = time.perf_counter() - begun
        context.close()
    return Done(hand.num_acts, took)


def address(stage: Stage, begin: str) -> str:
    """Return the address at which a task begins."""
    if begin.startswith("JOB:"):
        return f"/jobs/{stage.jobs[begin.removeprefix('JOB:')]}"
    if begin != "INVITATION":
        return begin
    with httpx2.Client(base_url=stage.url) as client:
        headers = {"authorization": f"Bearer {stage.secrets['ada']}"}
        return str(client.post("/v1/invites", json={}, headers=headers).json()["url"])


if __name__ == "__main__":
    main()
