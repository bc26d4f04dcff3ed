"""What stands in a region that a script reads: until it is read, when it is refused, and then."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route

from tests.dashboard import stage as stages
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from tests.dashboard.test_on_stage import COMPARED, address
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EARLY = ("No step yet", "Nothing to compare", "no open leases", "No maintenance")
"""Words for nothing, which nobody knows before it is read."""
REGIONS = (
    ("/jobs/{llama-7b-python}", r"/metrics\?", "[data-chart=loss]", "canvas"),
    pytest.param(
        "/jobs/{llama-7b-python}#charts",
        r"/metrics\?",
        "[data-chart=grad]",
        "canvas",
        marks=pytest.mark.slow,
    ),
    (COMPARED, r"/metrics\?", "[data-chart=steps]", "canvas"),
    pytest.param(COMPARED, r"/metrics\?", "[data-chart=apart]", "canvas", marks=pytest.mark.slow),
    ("/studies/{study}", r"/metrics\?", "[data-chart=curves]", "canvas"),
    ("/calendar", r"/v1/leases\?", "[data-mine]", ".own-lease"),
    ("/calendar", r"/v1/leases\?", "[data-upkeep]", "li:not([data-awaits])"),
    ("/jobs/new", "/jobs/plan", "#plan", "[data-submit]:not([disabled])"),
    ("/admin/policies", "/admin/policies/plan", "#policy-plan", ".card:not([aria-busy])"),
)
"""Page, its read, the region, and what is in it once it is read."""


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform full of data."""
    stages.fill(stage)
    stages.apply_policy(stage)
    return stage


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    yield from opened(stage, chrome, "ada")


def refuse(route: Route) -> None:
    route.fulfill(
        status=503,
        headers={"Retry-After": "0"},
        content_type="application/problem+json",
        body='{"title": "Busy", "status": 503, "code": "busy", "detail": "Too many read."}',
    )


@pytest.mark.parametrize(("path", "read", "region", "found"), REGIONS)
def test_a_region_says_that_it_waits_then_why_and_then_what_is_there(
    stage: Stage, chrome: Chrome, page: Page, path: str, read: str, region: str, found: str
) -> None:
    held: list[Route] = []
    lost = page.locator("[data-plan-lost]")
    page.route(re.compile(read), lambda route: held.append(route))
    chrome.give_clock(page)
    with page.expect_request(re.compile(read)):
        page.goto(address(stage, path))
    box = page.locator(region).first
    box.wait_for()
    text = box.inner_text()
    assert text.strip() or box.locator(".ghost").count(), "it stands empty"
    assert not [words for words in EARLY if words in text]
    page.route(re.compile(read), refuse)
    for route in held:
        refuse(route)
    wait_for(
        lambda: "Trying again" in box.inner_text() or lost.is_visible(),
        what="the refusal",
        every_s=0.1,
    )
    assert not [words for words in EARLY if words in box.inner_text()]
    page.unroute_all()
    page.clock.run_for(4000)  # so long it waits before it asks again
    box.locator(found).first.wait_for(timeout=15_000)
    chrome.forgive("ERR_|Failed to load|503")
