"""A course in a real browser: a student without the command line, and the instructor's view."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from core.base.clock import utc_now
from core.states import JobState
from core.tables.jobs import Job
from tests.api.courses.bundle import write_bundle
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from trainyard import Trainyard

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
STUDENT = "student-17"
PAGES = (
    "/courses",
    "/courses/ml-lab/own",
    "/courses/ml-lab/own/roster",
    "/courses/ml-lab/own/forecast?students=40&nodes.nodes=2",
    "/templates",
    "/templates/{template}",
    "/shares/template/{template}",
    "/admin/people/import",
    "/programs/new",
    "/agendas/new",
)
LIKE_OTHERS = (
    "/courses/ml-lab/own/forecast",
    "/shares",
    "/admin/grants",
    "/nodes/enrol",
    "/studies/new",
    "/models",
)
"""Made of the same parts as one of the others."""


@pytest.fixture(scope="module")
def stage(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A platform with the course of the bundle, which began three days ago, and one student."""
    bundle = write_bundle(tmp_path_factory.mktemp("bundle"))
    people = bundle / "people.csv"
    people.write_text(f"name,lab\n{STUDENT},ml-students\n")
    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        assert ada.courses.apply(bundle, (utc_now() - timedelta(days=3)).date()).applied
    return stage


@pytest.fixture
def student(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    yield from opened(stage, chrome, STUDENT)


@pytest.fixture
def instructor(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    yield from opened(stage, chrome, "ada")


def test_a_student_starts_and_hands_in_without_the_command_line(
    stage: Stage, student: Page, instructor: Page
) -> None:
    page = student
    page.goto("/jobs")
    page.click("nav[aria-label=Main] a:has-text('Courses')")
    page.click("a:has-text('Your program')")
    expect(page.locator("h1")).to_have_text("Your program")
    expect(page.locator(".reason")).to_contain_text("Start it.")
    assert page.is_disabled("button:has-text('Hand in')")
    page.click("a.btn.primary:has-text('Start')")
    expect(page.locator(".reason")).to_contain_text("Script of ada.")
    page.click("button:has-text('Start')")
    page.wait_for_url("**/jobs/job_*")
    job = page.url.rpartition("/")[2]

    page.goto("/courses/ml-lab/own")
    expect(page.locator(".reason")).to_contain_text("Wait for your jobs")
    page.click("button:has-text('Hand in')")
    expect(page.locator("main")).to_contain_text("have not ended")
    with stage.database.write() as session:
        values = {"state": JobState.SUCCEEDED, "finished_at": utc_now()}
        session.execute(update(Job).where(Job.id == job).values(**values))
    page.goto("/courses/ml-lab/own")
    page.click("button.primary:has-text('Hand in')")
    expect(page.locator(".reason")).to_contain_text("Handed in")
    page.click("a:has-text('Your report')")
    expect(page.locator("h1")).to_contain_text("Your program")

    page = instructor
    page.goto("/courses")
    page.click("a[aria-label='Roster of Your program']")
    row = page.inner_text(f"tr:has-text('{STUDENT}')")
    assert "done" in row
    assert "program: succeeded" in row
    with page.expect_download() as download:
        page.click("a:has-text('CSV')")
    text = Path(download.value.path()).read_text().splitlines()
    assert [line.split(",")[0] for line in text] == ["name", STUDENT]
    assert text[1].endswith(",1,1")


def test_an_instructor_asks_whether_the_hours_are_enough(instructor: Page) -> None:
    page = instructor
    page.goto("/courses/ml-lab/own/roster")
    page.click("a:has-text('Will it be enough?')")
    expect(page.locator("h1")).to_have_text("Will it be enough?")
    page.fill("input[name=students]", "191")
    page.fill("input[name=days_left]", "1")
    page.click("button:has-text('Forecast')")
    expect(page.locator(".reason")).to_contain_text("Of 191 students")
    page.fill("input[name=days_left]", "soon")
    page.click("button:has-text('Forecast')")
    expect(page.locator("main")).to_contain_text("days_left")


@pytest.mark.parametrize(
    "paths",
    [PAGES, pytest.param(LIKE_OTHERS, marks=pytest.mark.slow)],
    ids=["pages", "like others"],
)
def test_the_pages_are_accessible_and_fit_every_width(
    stage: Stage, chrome: Chrome, paths: tuple[str, ...]
) -> None:
    context = chrome.new_context(
        base_url=stage.url,
        storage_state=stage.storage(),
        reduced_motion="reduce",
        bypass_csp=True,  # the checker is put in as a script
    )
    page = context.new_page()
    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        template = next(one.id for one in ada.templates.list() if one.name == "two")
    for path in paths:
        page.goto(path.replace("{template}", template))
        for width in (360, 901, 1241, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told = [
            (one["id"], [node["target"] for node in one["nodes"]]) for one in found["violations"]
        ]
        assert told == [], path
    context.close()
