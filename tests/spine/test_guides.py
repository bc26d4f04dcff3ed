"""The guides, followed: an instructor by the commands of the page, from an empty machine to the
file of grades, and a student in Chromium, from the mailed invitation to the report, by clicks
alone. Timed."""

import json
import os
import re
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
from tests.spine.guides import ROOT, STUDENT, Instructor, walk

pytestmark = [pytest.mark.gloo, pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


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


def test_the_guides_lead_from_an_empty_machine_to_the_grades(
    platform: Running, page: Page, mail: MailServer, tmp_path: Path
) -> None:
    begun = time.monotonic()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRAINYARD_URL": platform.url,
        "TRAINYARD_TOKEN": platform.token,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    instructor = Instructor(tmp_path, environment)
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
