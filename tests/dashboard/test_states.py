"""Every region of a page has a state for nothing, for waiting, and for a server that is away."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from core.base.clock import utc_now
from core.states import JobState
from tests.dashboard import stage as stages
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAGES = (
    "/jobs",
    "/jobs/new",
    "/studies",
    "/agendas",
    "/templates",
    "/reports",
    "/calendar",
    "/leases",
    "/nodes",
    "/datasets",
    "/models",
    "/tokenizers",
    "/workspace",
    "/workbenches",
    "/usage",
    "/account",
    "/search?q=nothing-of-this-name",
    "/help",
    "/courses",
    "/shares",
    "/programs/new",
    "/studies/new",
    "/agendas/new",
)
OF_STAFF = (
    "/admin/cleanups",
    "/admin/policies",
    "/admin/people",
    "/admin/people/import",
    "/admin/grants",
    "/admin/audit",
    "/admin/settings",
    "/nodes/enrol",
)
FORMS = ("/programs/new", "/studies/new", "/agendas/new", "/admin/people/import", "/nodes/enrol")
"""Pages on which nothing is listed."""
BARE = """
() => [...document.querySelectorAll("main section, main aside, main form, main tbody, main ul")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height > 40)
  .filter((one) => !one.innerText.trim() && !one.querySelector("input, canvas, svg, .ghost"))
  .map((one) => one.outerHTML.slice(0, 120))
"""
LIVE = (
    *(pytest.param(path, marks=pytest.mark.slow) for path in ("/jobs", "/nodes", "/jobs/{job}")),
    "/calendar",
)
LOST = "ERR_|Failed to load|503"


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform on which nothing was done but one job."""
    now = utc_now()
    with stage.database.write() as session:
        job = stages.add_job(
            stage, session, stages.HOMEWORK, spec={"name": "one"}, state=JobState.RUNNING
        )
        job.last_step, job.last_loss, job.last_tokens_per_s = 20, 4.2, 64.0
        begun = now - timedelta(minutes=1)
        attempt = stages.add_attempt(stage, session, job, node="north-01", start=begun)
        stages.add_log(session, attempt, ["hello"])
        curve = stages.curve(20, step_s=1, tokens=64, start=begun)
        stages.add_metrics(session, attempt, curve)
    return stage


@pytest.fixture(scope="module")
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """The page of a student who has done nothing yet."""
    yield from opened(stage, chrome, "student-22")


@pytest.fixture
def owner(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """The page of the one job's owner."""
    yield from opened(stage, chrome, "ada")


@pytest.fixture(scope="module")
def staff(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """The page of an administrator who has done nothing yet."""
    yield from opened(stage, chrome, "ada")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path in FORMS else [])
        for path in (*PAGES, *OF_STAFF)
    ],
)
def test_a_page_without_anything_says_what_would_be_there(
    page: Page, staff: Page, path: str
) -> None:
    page = staff if path in OF_STAFF else page
    page.goto(path)
    waits = page.locator("main [aria-busy=true]")
    wait_for(lambda: waits.count() == 0, what="all answers", every_s=0.05)
    text = page.inner_text("main")
    for never in ("NaN", "undefined", "null", "Infinity"):
        assert never not in text
    assert page.evaluate(BARE) == [], "a region of its own stands empty"


@pytest.mark.parametrize("path", LIVE)
def test_a_server_that_goes_away_is_told_and_what_was_known_stays(
    stage: Stage, chrome: Chrome, owner: Page, path: str
) -> None:
    page = owner
    page.goto(path.replace("{job}", stage.jobs["one"]))
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.1)
    heading = page.inner_text("h1")
    page.route(re.compile("/v1/|/rows|/head|/history"), lambda route: route.abort())
    page.evaluate(
        "document.dispatchEvent(new Event('visibilitychange'))"
    )  # the line is opened anew
    page.locator("#line-lost").wait_for(state="visible", timeout=15_000)
    expect(page.locator("h1")).to_have_text(heading)
    page.unroute_all()
    page.click("[data-try-now]")
    page.locator("#line-lost").wait_for(state="hidden", timeout=15_000)
    chrome.forgive(LOST)


def test_logs_that_cannot_be_read_say_so(stage: Stage, chrome: Chrome, owner: Page) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(
            status=503,
            content_type="application/problem+json",
            body='{"title": "Busy", "status": 503, "code": "busy", "detail": "Too many read."}',
        )

    owner.route(re.compile(r"/logs\?"), refuse)
    owner.route("**/stream", lambda route: route.abort())
    chrome.give_clock(owner)
    owner.goto(f"/jobs/{stage.jobs['one']}#logs")
    empty = owner.locator("[data-log-empty]")
    wait_for(lambda: "could not be read" in empty.inner_text(), what="the refusal", every_s=0.1)
    expect(empty).to_contain_text("Too many read.")
    owner.unroute_all()
    owner.clock.run_for(3000)
    owner.locator("[data-log] li", has_text="hello").wait_for(timeout=15_000)  # it tries again
    chrome.forgive(LOST)


def test_a_slow_answer_keeps_the_layout_and_a_partial_one_is_drawn(
    stage: Stage, owner: Page
) -> None:
    held: list[Route] = []
    owner.route(re.compile(r"/metrics\?"), lambda route: held.append(route))
    with owner.expect_request(re.compile(r"/metrics\?")):
        owner.goto(f"/jobs/{stage.jobs['one']}")
    owner.wait_for_timeout(100)  # the route's handler runs in this thread
    before = owner.locator("[data-chart=loss]").bounding_box()
    answer = {
        "job": stage.jobs["one"],
        "keys": ["loss"],
        "series": [
            {
                "key": "loss",
                "rank": 0,
                "steps": [1, 2, 3],
                "values": [3.0, None, 2.0],
                "min": [],
                "max": [],
                "points": 3,
            }
        ],
    }
    for route in held:
        route.fulfill(json=answer)
    owner.locator("[data-chart=loss] canvas").wait_for()
    after = owner.locator("[data-chart=loss]").bounding_box()
    assert before is not None
    assert after is not None
    assert before["y"] == after["y"], "nothing jumps"
    expect(owner.locator("[data-chart=grad]"), "what has no data takes no room").to_be_hidden()


def test_a_session_that_ended_keeps_the_page_and_leads_back(stage: Stage, owner: Page) -> None:
    path = f"/jobs/{stage.jobs['one']}"
    owner.goto(path)
    wait_for(lambda: owner.inner_text("#line") == "live", what="the stream", every_s=0.1)
    owner.context.clear_cookies()
    owner.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    owner.locator("#signed-out").wait_for(state="visible", timeout=20_000)
    expect(owner.locator("h1")).to_have_text("one")
    link = owner.locator("#signed-out a")
    assert link.get_attribute("href") == f"/login?next={path}"
