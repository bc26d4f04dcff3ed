"""The calendar under rules: bands, demand before the window closes, maintenance of staff."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard import stage as stages
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform full of data, with a course's rules in force."""
    stages.fill(stage)
    stages.apply_policy(stage)
    return stage


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """A page of staff."""
    yield from opened(stage, chrome, "ta-03")


def on_day(page: Page, day: int) -> None:
    """Open the calendar on the n-th day from today."""
    page.goto("/calendar")
    page.locator("[data-week-grid] [data-day]").nth(day).click()
    page.wait_for_load_state("networkidle")
    page.locator("[data-lane=south-01] .cell").nth(5).wait_for()


def test_nights_are_drawn_and_named(page: Page) -> None:
    on_day(page, 3)
    names = page.locator("[data-day-grid] .bandname")
    assert set(names.all_inner_texts()) == {"night"}
    expect(names, "the end of one and the beginning of the next").to_have_count(2)
    strips = page.locator("[data-lane=east-01] .band")
    columns = strips.evaluate_all(
        "all => all.map(one => ['--s', '--e'].map(name => one.style.getPropertyValue(name)))"
    )
    assert columns == [["0", "6"], ["22", "24"]]
    expect(page.locator("[data-band-names]")).to_have_text("night")
    expect(page.locator("[data-lane=cpu-01] .band"), "another policy's node").to_have_count(0)


def test_demand_before_the_window_closes_is_shown_with_its_reason(stage: Stage, page: Page) -> None:
    page.goto("/calendar")
    page.locator("[data-forecast] li").first.wait_for()
    text = page.inner_text("[data-forecast-card]")
    assert "quotas together have" in text
    assert "the most that quotas of 3 people allow; fewer hours may be booked" in text
    assert page.locator("[data-forecast] li").count() in (9, 10)
    assert "student" not in text


def test_staff_keep_hours_for_maintenance_and_give_them_back(page: Page) -> None:
    on_day(page, 4)
    page.locator("[data-lane=south-01] .cell").nth(5).click()
    page.click("[data-book] details summary")
    page.fill("[data-upkeep-why]", "New fans")
    page.click("[data-upkeep-plan]")
    page.locator("[data-upkeep-answer]", has_text="Nobody has these hours").wait_for()
    page.click("[data-upkeep-keep]")
    page.locator("[data-lease-answer]", has_text="Kept for maintenance: New fans").wait_for()
    page.locator("[data-lane=south-01] .upkeep").wait_for()
    row = page.locator("[data-upkeep] li", has_text="New fans")
    row.locator("summary").click()
    row.locator("[data-upkeep-end]").click()
    page.locator("[data-lease-answer]", has_text="The maintenance has ended.").wait_for()
    page.locator("[data-lane=south-01] .upkeep").wait_for(state="detached")


def test_who_stands_in_the_way_of_maintenance_is_named_first(stage: Stage, page: Page) -> None:
    page.goto("/calendar")
    page.locator("[data-week-grid] [data-day]").nth(1).click()
    page.wait_for_load_state("networkidle")
    page.locator("[data-taken]").first.click()
    page.click("[data-book] details summary")
    page.fill("[data-upkeep-why]", "A broken fan")
    page.click("[data-upkeep-plan]")
    page.locator("[data-upkeep-answer] .verdict[data-state=warn]").wait_for()
    answer = page.inner_text("[data-upkeep-answer]")
    assert "is in the way" in answer
    assert any(f"\n{name}, " in answer for name in stage.people), "whose lease depends on the day"


def test_who_is_no_staff_keeps_nothing_for_maintenance(stage: Stage, chrome: Chrome) -> None:
    for page in opened(stage, chrome, "student-04"):
        page.goto("/calendar")
        page.locator("[data-day-grid] [data-lane]").first.wait_for()
        expect(page.locator("[data-upkeep-plan]")).to_have_count(0)
        expect(page.locator("[data-upkeep]")).to_have_count(0)


def test_what_an_allowed_length_can_start_is_free_and_the_lengths_are_a_choice(
    stage: Stage, chrome: Chrome
) -> None:
    """Blocks have two or three hours on the north nodes, three on the east ones; none has one."""
    for page in opened(stage, chrome, "student-04"):
        on_day(page, 5)
        for node in ("east-01", "north-01"):
            lane = page.locator(f"[data-lane={node}]")
            assert lane.locator(".closed").count() < 6, f"{node} looks taken"
        cells = page.locator("[data-lane=north-01] .cell")
        cells.nth(12).click()
        offered = page.locator("[data-book-hours] option").all_inner_texts()
        assert offered == ["2 h", "3 h"]
        expect(page.locator("[data-book-hours]")).to_have_value("2")
        page.locator("[data-book-now]:not([disabled])", has_text="Book 2 h").wait_for()
        page.select_option("[data-book-hours]", "3")
        page.locator("[data-book-now]", has_text="Book 3 h").wait_for()
        page.locator("[data-lane=east-01] .cell").nth(12).click()
        assert page.locator("[data-book-hours] option").all_inner_texts() == ["3 h"]


def test_a_start_of_the_list_is_booked_and_what_to_do_with_it_is_in_sight(
    stage: Stage, chrome: Chrome
) -> None:
    for page in opened(stage, chrome, "student-17"):
        on_day(page, 5)
        lengths = page.locator("[data-any-hours] option")
        expect(lengths, "cpu-01, which allows 1 h, is draining").to_have_text(["2 h", "3 h"])
        page.select_option("[data-any-hours]", "3")
        page.locator("[data-any-found] button").nth(2).click()
        page.locator("[data-book-now]:not([disabled])").click()
        answer = page.locator("[data-lease-answer]")
        for words in ("Booked: ", "Run a job in it", "Add to my calendar"):
            expect(answer.get_by_text(words)).to_be_in_viewport()
        expect(page.locator("[data-any-found] li"), "older starts").to_have_count(0)
        answer.get_by_text("Start a terminal when it begins").click()
        expect(answer).to_contain_text("It starts when the lease begins.")
        expect(answer.get_by_text("Run a job in it")).to_be_in_viewport()
        page.goto("/workbenches")
        expect(page.locator("main table")).to_contain_text("terminal")


def test_hatched_hours_say_why(stage: Stage, chrome: Chrome) -> None:
    """Behind the end of the window nothing can start, of any length."""
    for page in opened(stage, chrome, "student-04"):
        on_day(page, 3)
        days = page.locator("[data-week-grid] [data-day]")
        first = days.first.get_attribute("data-day")
        page.click("[data-week='1']")
        page.locator(f"[data-week-grid] [data-day='{first}']").wait_for(state="detached")
        days.nth(4).click()
        shut = page.locator("[data-lane=north-01] .cell[title]").first
        shut.wait_for()
        assert "must lie between" in str(shut.get_attribute("title"))
        shut.click()
        page.locator("[data-verdict] [data-state=bad]", has_text="must lie between").wait_for()
        expect(page.locator("[data-wait-now]"), "waiting gives no other window").to_be_hidden()
