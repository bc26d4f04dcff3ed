"""What was typed for a new job is not lost: not with the session, nor by Back, nor by another
example, nor while the server is away."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from api.web.passwords import hash_password
from core.tables.people import User
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PASSWORD = "correct horse battery"
STEPS = "[data-field='training.steps']"
RESTORED = "[data-draft]:has-text('restored')"


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform without jobs, on which some have a password."""
    with stage.database.write() as session:
        for name in ("ada", "student-22"):
            person = session.get_one(User, stage.people[name])
            person.password_hash = hash_password(PASSWORD)
    return stage


@pytest.fixture
def page(stage: Stage, chrome: Chrome, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The form for a new job, open before the person that the test names, or student-17."""
    for page in opened(stage, chrome, getattr(request, "param", "student-17")):
        page.goto("/jobs/new")
        page.locator("[data-submit]:not([disabled])").wait_for()
        yield page


def sign_in(page: Page, name: str) -> None:
    """Through the form."""
    page.fill("#name", name)
    page.fill("#password", PASSWORD)
    page.click("main button")
    page.wait_for_url("**/jobs/new**")
    page.locator("[data-submit]:not([disabled])").wait_for()


def drafts(page: Page) -> int:
    """How many are kept in this browser, whoever's they are."""
    return int(page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('draft')).length"))


def end_session(page: Page) -> None:
    """As when it was ended on another device."""
    sign_out = "fetch('/v1/sessions/current', {method: 'DELETE'}).then((answer) => answer.status)"
    assert page.evaluate(sign_out) == 204


@pytest.mark.parametrize("page", ["ada"], indirect=True)
def test_a_session_that_ends_leads_back_to_the_draft(page: Page) -> None:
    """The field that was typed last has not even reached the YAML."""
    page.goto("/jobs/new?example=gpt-fsdp")
    page.locator("[data-submit]:not([disabled])").wait_for()
    end_session(page)
    page.fill(STEPS, "1234")
    page.wait_for_url("**/login?next=**")
    sign_in(page, "ada")
    assert page.url.endswith("/jobs/new?example=gpt-fsdp")
    page.locator(RESTORED).wait_for()
    expect(page.locator(STEPS)).to_have_value("1234")
    expect(page.locator("[data-spec]")).to_have_value(re.compile("steps: 1234"))
    end_session(page)
    page.click("[data-submit]")
    page.wait_for_url("**/login?next=**")
    sign_in(page, "ada")
    expect(page.locator(STEPS)).to_have_value("1234")
    page.click("[data-draft-discard]")
    expect(page.locator(STEPS)).not_to_have_value("1234")
    assert drafts(page) == 0


def test_back_finds_the_draft_until_it_is_submitted(page: Page) -> None:
    page.click("[data-view=yaml]")
    text = page.input_value("[data-spec]").replace("name: gpt-ddp", "name: typed-by-hand")
    page.fill("[data-spec]", text)
    page.goto("/nodes")
    page.go_back()
    expect(page.locator("[data-spec]")).to_have_value(text)
    page.goto("/jobs/new")
    page.locator(RESTORED).wait_for()
    expect(page.locator("[data-spec]")).to_have_value(text)
    page.click("[data-submit]:not([disabled])")
    page.wait_for_url("**/jobs/job_*")
    expect(page.locator("h1")).to_have_text("typed-by-hand")
    assert drafts(page) == 0
    page.goto("/jobs/new")
    expect(page.locator("[data-draft]")).to_be_hidden()
    assert "typed-by-hand" not in page.input_value("[data-spec]")


def test_another_example_asks_before_it_replaces_what_was_typed(page: Page) -> None:
    asked: list[str] = []
    page.select_option("[name=example]", "gpt-fsdp")
    page.wait_for_url("**example=gpt-fsdp")
    assert asked == [], "nothing was typed"
    page.click("[data-view=form]")
    page.fill(STEPS, "1234")
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.select_option("[name=example]", "gpt-tensor")
    assert asked == ["Replace your text with the example gpt-tensor?"]
    expect(page.locator("[name=example]")).to_have_value("gpt-fsdp")
    assert page.input_value(STEPS) == "1234"
    page.once("dialog", lambda dialog: dialog.accept())
    page.select_option("[name=example]", "gpt-tensor")
    page.wait_for_url("**example=gpt-tensor")
    assert drafts(page) == 0
    # One that was asked for by name is shown; a draft of another is offered beside it.
    page.fill(STEPS, "77")
    page.goto("/jobs/new?example=gpt-zero1")
    page.locator("[data-draft]", has_text="is kept until you edit this page").wait_for()
    assert page.input_value(STEPS) != "77"
    page.click("[data-draft-restore]")
    expect(page.locator(STEPS)).to_have_value("77")


def test_a_server_that_is_away_is_named_and_asked_again(chrome: Chrome, page: Page) -> None:
    page.click("[data-view=form]")
    chrome.give_clock(page)
    page.route("**/jobs/plan", lambda route: route.abort())
    page.fill(STEPS, "1234")
    page.locator("[data-plan-lost]", has_text="Cannot reach the server; retrying").wait_for()
    expect(page.locator("[data-submit]")).to_be_disabled()
    page.unroute("**/jobs/plan")
    page.clock.run_for(3000)  # so long it waits before it asks again
    page.locator("[data-submit]:not([disabled])").wait_for()
    expect(page.locator("[data-plan-lost]")).to_be_hidden()
    assert "steps: 1234" in page.input_value("[data-spec]")
    page.route("**/jobs/plan", lambda route: route.fulfill(status=502, body="bad gateway"))
    page.fill(STEPS, "4321")
    page.locator("[data-plan-lost]").wait_for()
    expect(page.locator("#plan .verdict"), "the plan before is still there").to_have_count(1)
    page.unroute("**/jobs/plan")
    page.clock.run_for(3000)
    page.locator("[data-submit]:not([disabled])").wait_for()
    assert "steps: 4321" in page.input_value("[data-spec]")
    chrome.forgive(r"ERR_FAILED|Failed to fetch|status of 502")


@pytest.mark.parametrize("page", ["student-04"], indirect=True)
def test_a_draft_is_one_persons_and_goes_when_they_sign_out(page: Page) -> None:
    page.click("[data-view=form]")
    end_session(page)
    page.fill(STEPS, "1234")
    page.wait_for_url("**/login?next=**")
    sign_in(page, "student-22")
    expect(page.locator("[data-draft]")).to_be_hidden()
    assert page.input_value(STEPS) != "1234"
    page.fill(STEPS, "55")
    assert drafts(page) == 2
    page.goto("/jobs")
    page.click(".menu.nav-wide summary")
    page.click("form[action='/logout'] button >> visible=true")
    page.wait_for_url("**/login")
    assert drafts(page) == 0
