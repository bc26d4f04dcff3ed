"""The guides of a course, to be followed: the commands of the instructor's page as they are typed,
and a student's clicks."""

import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.running import wait_for

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "instructor.md"
BLOCK = re.compile(r"^( *)```sh(?P<kind> \w+)?\n(?P<lines>.*?)^\1```$", re.MULTILINE | re.DOTALL)
FIRST_DAY = "--first-day 2027-01-25"
STUDENT, PASSWORD = "student-03", "correct horse battery"


def commands(section: str, *, kind: str = "") -> list[str]:
    """The commands of a section of the guide, as they are typed. Those that start the platform and
    sign in are of a kind of their own, `up` and `login`."""
    _, found, rest = GUIDE.read_text("utf-8").partition(f"\n## {section}\n")
    assert found, section
    blocks = BLOCK.finditer(rest.partition("\n## ")[0])
    typed = [
        line.strip()
        for block in blocks
        if (block["kind"] or "").strip() == kind
        for line in block["lines"].splitlines()
    ]
    assert typed, section
    return typed


class Instructor:
    """A shell in a folder with the examples, signed in as the administrator."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**environment, "TZ": "UTC"}

    def follow(self, section: str, *, first_day: str) -> str:
        """Type the commands of a section; what they say together. The first day is another one."""
        said = []
        for line in commands(section):
            line = line.replace(FIRST_DAY, f"--first-day {first_day}")
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
        return "\n".join(said)


def enter(page: Page, link: str, name: str) -> None:
    """Make an account by the link of an invitation, or of the first start."""
    page.goto(link)
    page.fill("#name", name)
    page.fill("#password", PASSWORD)
    page.click("button[type=submit]")


def walk(page: Page, link: str) -> None:
    """From the invitation to the report that is handed in, by clicks."""
    enter(page, link, STUDENT)
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('1. Where the memory goes')")
    expect(page.locator(".reason")).to_contain_text("Book a block.")
    page.click("a.btn.primary:has-text('Book')")
    hour = int(datetime.now(UTC).replace(minute=0, second=0, microsecond=0).timestamp() * 1000)
    page.click(f"[data-day-grid] .cell[data-at='{hour}']")
    page.select_option("[data-book-hours]", "2")
    page.click("[data-book-now]:not([disabled])")
    page.wait_for_selector("[data-mine] li:not(:has-text('You have no open leases'))")
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('1. Where the memory goes')")
    expect(page.locator(".reason")).to_contain_text("Start it.")
    page.click("a.btn.primary:has-text('Start')")
    page.click("button:has-text('Start')")
    page.wait_for_url("**/agendas/agenda_*")
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('1. Where the memory goes')")

    def is_over() -> bool:
        page.click("nav[aria-label=Exercises] a[aria-current=page]")
        return "Hand in." in page.inner_text(".reason")

    wait_for(is_over, what="the end of the jobs", within_s=120, every_s=1)
    page.click("button.primary:has-text('Hand in')")
    expect(page.locator(".reason")).to_contain_text("Handed in")
    page.click("a:has-text('Your report')")
    expect(page.locator("h1")).to_contain_text("Where the memory goes")
