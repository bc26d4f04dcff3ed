"""The guides, followed: an instructor by the commands of the page, from an empty machine to the
file of grades, and a student in Chromium, from the mailed invitation to the report, by clicks
alone. Timed."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests import chromium
from tests.dashboard.conftest import FLAGS
from tests.running import Running, running_platform, wait_for
from tests.scheduler.sinks import MailServer, mail_server

pytestmark = [pytest.mark.gloo, pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "instructor.md"
BLOCK = re.compile(r"^( *)```sh(?P<kind> \w+)?\n(?P<lines>.*?)^\1```$", re.MULTILINE | re.DOTALL)
FIRST_DAY = "--first-day 2027-01-25"
STUDENT, PASSWORD = "student-03", "correct horse battery"


@pytest.fixture(scope="module")
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture(scope="module")
def platform(mail: MailServer) -> Iterator[Running]:
    server = {
        "TRAINYARD_SMTP_HOST": "127.0.0.1",
        "TRAINYARD_SMTP_PORT": str(mail.port),
        "TRAINYARD_SMTP_SECURITY": "none",
        "TRAINYARD_JOB_MEMORY_GIB": "2",  # a batch that does not fit takes seconds, on any machine
    }
    with running_platform(server) as platform:
        yield platform


@pytest.fixture
def page(platform: Running) -> Iterator[Page]:
    """A browser that nobody has signed in with."""
    if chromium.find() is None:
        pytest.skip("no Chromium or Chrome was found; `make test` installs one where it can")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), args=[*FLAGS, *sandbox]
        )
        page = browser.new_page(base_url=platform.url, viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def commands(section: str) -> list[str]:
    """The commands of a section of the guide, as they are typed; not those that start the platform
    and sign in, which the fixture has done."""
    _, found, rest = GUIDE.read_text("utf-8").partition(f"\n## {section}\n")
    assert found, section
    blocks = BLOCK.finditer(rest.partition("\n## ")[0])
    typed = [
        line.strip()
        for block in blocks
        if not block["kind"]
        for line in block["lines"].splitlines()
    ]
    assert typed, section
    return typed


class Instructor:
    """A shell in a folder with the examples, signed in as the administrator."""

    def __init__(self, platform: Running, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TRAINYARD_URL": platform.url,
            "TRAINYARD_TOKEN": platform.token,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TZ": "UTC",
        }

    def follow(self, section: str, *, first_day: str) -> str:
        """Type the commands of a section; what they say together. The first day is another one."""
        said = []
        for line in commands(section):
            line = line.replace(FIRST_DAY, f"--first-day {first_day}")
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
        return "\n".join(said)


def test_the_guides_lead_from_an_empty_machine_to_the_grades(
    platform: Running, page: Page, mail: MailServer, tmp_path: Path
) -> None:
    begun = time.monotonic()
    instructor = Instructor(platform, tmp_path)
    day = (datetime.now(UTC) - timedelta(days=7)).date().isoformat()
    assert "ready" in instructor.follow("3. Nodes", first_day=day)
    said = instructor.follow("4. The course", first_day=day)
    assert "Nothing was changed (dry run)." in said
    assert "Applied large-models" in said
    assert "students" in instructor.follow("5. Will it be enough?", first_day=day)
    assert "/login?link=" in instructor.follow("6. Try it", first_day=day)
    assert "/new-password?secret=" in instructor.follow("7. Send the links", first_day=day)
    links = (tmp_path / "links.csv").read_text().split()
    assert [line.split(",")[0] for line in links[1:]] == ["student-01", "student-02"]
    handed_out = time.monotonic()

    wait_for(lambda: bool(mail.mails), what="the invitation", within_s=30)
    assert mail.mails[0]["To"] == "student-03@example.org"
    link = re.search(r"http\S+/invite\?secret=\S+", mail.mails[0].get_content())
    assert link is not None
    walk(page, link[0])
    handed_in = time.monotonic()

    assert STUDENT in instructor.follow("On the day", first_day=day)
    instructor.follow("Grades", first_day=day)
    results = json.loads((tmp_path / "results" / STUDENT / "results.json").read_text())
    assert results["score"] == len(results["tests"]) == 9
    instructor.follow("Next year", first_day=day)
    over = time.monotonic()
    sys.stderr.write(
        f"instructor to the links {handed_out - begun:.0f} s, student to the report "
        f"{handed_in - handed_out:.0f} s, grades {over - handed_in:.0f} s\n"
    )


def walk(page: Page, link: str) -> None:
    """From the invitation to the report that is handed in, by clicks."""
    page.goto(link)
    page.fill("#name", STUDENT)
    page.fill("#password", PASSWORD)
    page.click("button[type=submit]")
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('1. Where the memory goes')")
    assert "Book a block." in page.inner_text(".reason")
    page.click("a.btn.primary:has-text('Book')")
    hour = int(datetime.now(UTC).replace(minute=0, second=0, microsecond=0).timestamp() * 1000)
    page.click(f"[data-day-grid] .cell[data-at='{hour}']")
    page.select_option("[data-book-hours]", "2")
    page.click("[data-book-now]:not([disabled])")
    page.wait_for_selector("[data-mine] li:not(:has-text('You have no open leases'))")
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('1. Where the memory goes')")
    assert "Start it." in page.inner_text(".reason")
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
    assert "Handed in" in page.inner_text(".reason")
    page.click("a:has-text('Your report')")
    assert "Where the memory goes" in page.inner_text("h1")
