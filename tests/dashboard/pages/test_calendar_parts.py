"""The calendar where a policy sells parts of nodes: fill, lanes, the size of a block, keys."""

from collections.abc import Iterator
from datetime import timedelta
from zoneinfo import ZoneInfo

import httpx2
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from core.base.clock import utc_now
from core.states import Sharing
from core.tables.nodes import Node
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

NEW_YORK = ZoneInfo("America/New_York")
POLICY = """\
policy: {id: course-gpus, version: 1, zone: America/New_York}
grid: {grace_min: 5, min_lead_min: 0, horizon_days: 21}
pools:
  one: {class: a100x4, gpus: [1], hours: [2, 3]}
  four: {class: a100x4, gpus: [4], hours: [3]}
  eight: {class: h100x8, gpus: [1, 2, 8], hours: [3]}
walk_in: {allowed: true, max_hours: 8, charged: false}
"""
BLOCKS = [  # who, where, hours from tomorrow's midnight in New York, length, GPUs
    ("student-04", "south-01", 8, 3, 1),
    ("student-17", "south-01", 9, 3, 1),
    ("student-22", "south-01", 10, 3, 1),
    ("student-04", "north-01", 9, 3, None),
    ("student-17", "east-02", 8, 3, 2),
    ("student-22", "east-02", 9, 3, 2),
    ("ta-03", "east-02", 10, 3, 1),
]


def call(stage: Stage, who: str, method: str, path: str, **fields: object) -> httpx2.Response:
    with httpx2.Client(base_url=stage.url) as client:
        headers = {"authorization": f"Bearer {stage.secrets[who]}"}
        if "content" in fields:
            headers["content-type"] = "application/yaml"
        return client.request(method, path, headers=headers, **fields)  # type: ignore[arg-type]


def day() -> str:
    """Two days on, in New York, so that no test runs into its own hours."""
    return f"{utc_now().astimezone(NEW_YORK) + timedelta(days=2):%Y-%m-%d}"


def sell_parts(stage: Stage) -> None:
    """Let all nodes keep owners apart, put the rules into force, and book the blocks."""
    with stage.database.write() as session:
        session.execute(update(Node).values(sharing=Sharing.FULL))
    answer = call(stage, "ada", "POST", "/v1/policies", content=POLICY)
    assert answer.status_code == 200, answer.text
    for who, node, hour, hours, gpus in BLOCKS:
        block = {"node": node, "start": f"{day()}T{hour:02}:00", "zone": NEW_YORK.key}
        answer = call(
            stage, who, "POST", "/v1/leases", json={**block, "hours": hours, "gpus": gpus}
        )
        assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform with rules that sell parts of nodes."""
    sell_parts(stage)
    return stage


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """A student's page."""
    yield from opened(stage, chrome, "student-04")


def open_day(page: Page) -> None:
    """The calendar, at rest, on the day of the blocks."""
    page.goto("/calendar")
    page.locator("[data-size='1'][aria-pressed=true]").wait_for()
    page.locator("[data-week-grid] [data-day]").nth(2).click()
    page.wait_for_load_state("networkidle")
    page.locator("[data-lane=south-01] .cell").nth(5).wait_for()


def said(page: Page, node: str, hour: int) -> str:
    """Words of the cell, or the button, that stands at that hour of a node's row."""
    row = page.locator(f"[data-lane={node}]")
    cells = row.locator(f".cell[aria-label*=', {hour:02}, ']")
    asks = row.locator(f".ask[aria-label*=', {hour:02}:']")
    return str((cells.or_(asks)).first.get_attribute("aria-label"))


def comes(page: Page, node: str, hour: int, words: str) -> None:
    """Wait until the hour says these words: the answers of a page come one after another."""
    wait_for(lambda: words in said(page, node, hour), what=f"{node}, {hour}: {words}")


def bars(page: Page, node: str) -> list[tuple[str, ...]]:
    """Text, first and last hour, lowest and highest lane of the node's bars, by first hour."""
    found = page.locator(f"[data-lane={node}] > .lease").evaluate_all(
        """all => all.map((one) => [one.innerText.trim(),
          ...["s", "e", "a", "b"].map((name) => one.style.getPropertyValue(`--${name}`))])"""
    )
    return sorted((tuple(one) for one in found), key=lambda one: int(one[1]))


def test_a_node_is_drawn_as_fill_and_when_opened_by_lane(page: Page) -> None:
    open_day(page)
    assert bars(page, "south-01") == [("yours", "8", "11", "0", "1")], "others are fill"
    fill = page.locator("[data-lane=south-01] > .fill")
    assert fill.all_inner_texts() == ["2", "1", "2", "3"]
    assert said(page, "south-01", 9).endswith("2 of 4 GPUs free")
    opener = page.locator("[data-open=south-01]")
    assert opener.get_attribute("aria-expanded") == "false"
    opener.focus()
    page.keyboard.press("Enter")
    page.locator("[data-lane=south-01].opened").wait_for()
    assert opener.get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.activeElement.dataset.open") == "south-01"
    assert bars(page, "south-01") == [
        ("yours", "8", "11", "0", "1"),
        ("taken", "9", "12", "1", "2"),
        ("taken", "10", "13", "2", "3"),
    ]
    page.keyboard.press("Enter")
    page.locator("[data-lane=south-01].opened").wait_for(state="detached")


def test_hours_are_free_for_the_chosen_size(page: Page) -> None:
    open_day(page)
    assert page.locator("[data-sizes] button").all_inner_texts() == [
        "1 GPU",
        "2 GPUs",
        "whole node",
    ]
    assert "1 of 4 GPUs free" in said(page, "south-01", 10)
    assert "3 of 8 GPUs free" in said(page, "east-02", 10)
    page.click("[data-size='2']")
    page.locator("[data-size='2'][aria-pressed=true]").wait_for()
    comes(page, "south-01", 10, "1 of 4 GPUs free; ask for these hours")
    comes(page, "south-01", 9, "has 1 or 4, not 2")  # the rules say why
    comes(page, "east-02", 10, "3 of 8 GPUs free")
    page.click("[data-size='']")
    comes(page, "east-02", 8, "3 of 8 GPUs free; ask for these hours")  # until 13
    assert "free" in said(page, "east-02", 15)


def test_the_largest_free_block_is_told_for_each_node_and_of_all(page: Page) -> None:
    open_day(page)
    assert page.inner_text("[data-open=south-01]") == "4 of 4 free", "in the morning"
    expect(page.locator("[data-room]")).to_have_text(
        "Largest block free: 8 GPUs for 3 h, on east-01 from 00:00."
    )
    page.select_option("[data-class]", "a100x4")
    page.locator("[data-room]", has_text="4 GPUs for 2 h, on north-01 from 00:00.").wait_for()


def test_a_part_is_booked_by_keys_and_shown_and_given_back(page: Page) -> None:
    open_day(page)
    page.locator("[data-lane=east-02] .cell[aria-label*=', 14, ']").focus()
    page.keyboard.press("2")
    page.locator("[data-size='2'][aria-pressed=true]").wait_for()
    page.wait_for_load_state("networkidle")
    page.keyboard.press("ArrowDown")  # from node to node: a node has one row of cells
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("[data-book-title]")).to_have_text("Book 2 GPUs of east-02")
    expect(page.locator("[data-book-hardware]")).to_contain_text("2 of 8 GPUs, NVIDIA H100")
    page.locator("[data-book-now]:not([disabled])", has_text="Book 2 GPUs, 3 h").click()
    page.locator("[data-lease-answer]", has_text="Booked: 2 of 8 GPUs of east-02").wait_for()
    own = page.locator("[data-own]", has_text="2 of 8 GPUs of east-02")
    own.locator("summary").click()
    own.locator("[data-release]").click()
    page.locator("[data-lease-answer]", has_text="Lease released").wait_for()


@pytest.mark.slow  # test_on_stage.py waits for a whole node
def test_hours_without_room_for_the_size_can_be_waited_for(page: Page) -> None:
    open_day(page)
    page.keyboard.press("Escape")
    page.click("[data-size='']")
    page.wait_for_load_state("networkidle")
    page.locator("[data-lane=east-02] .ask").click()
    page.locator("[data-verdict] [data-state=bad]").wait_for()
    page.click("[data-wait-now]:visible")
    page.locator("[data-waits] li", has_text="east-02").wait_for()
    page.click("[data-leave]")
    page.locator("[data-waits-card]").wait_for(state="hidden")


def test_on_a_phone_the_page_does_not_scroll_sideways_and_a_tap_opens_the_lanes(
    stage: Stage, chrome: Chrome
) -> None:
    context = chrome.new_context(
        base_url=stage.url,
        storage_state=stage.storage("student-04"),
        viewport={"width": 360, "height": 800},
        timezone_id=NEW_YORK.key,
        reduced_motion="reduce",
        has_touch=True,
    )
    page = context.new_page()
    open_day(page)
    page.tap("[data-open=south-01]")
    page.locator("[data-lane=south-01].opened").wait_for()
    page.locator("[data-lane=south-01] .cell[aria-label*=', 14, ']").tap()
    page.locator("[data-verdict] [data-state=good]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    context.close()


def test_lanes_are_the_lowest_free_ones_in_order_of_start(page: Page) -> None:
    open_day(page)
    found = page.evaluate(
        """async () => {
          const { freeSlots, lanesOf, stripes } = await import("/static/calendar/fill.js");
          const holds = [[0, 4, 1], [1, 3, 2], [3, 6, 1], [4, 5, 2], [6, 7, null]].map(
            ([from, to, gpus]) => ({ from, to, gpus }));
          const lanes = [...lanesOf(holds, 4).values()];
          const over = [...lanesOf([{ from: 0, to: 2 }, { from: 1, to: 2, gpus: 1 }], 4).values()];
          return [lanes, lanes.map(stripes), over, freeSlots(holds, 4, 0, 3),
            freeSlots(holds, 4, 3, 4), freeSlots([{ from: 0, to: 9 }, ...holds], 4, 0, 9)];
        }"""
    )
    assert found == [
        [[0], [1, 2], [1], [0, 2], [0, 1, 2, 3]],
        [
            [{"a": 0, "b": 1}],
            [{"a": 1, "b": 3}],
            [{"a": 1, "b": 2}],
            [{"a": 0, "b": 1}, {"a": 2, "b": 3}],
            [{"a": 0, "b": 4}],
        ],
        [[0, 1, 2, 3], [3]],
        1,
        2,
        0,
    ]


def test_the_week_is_hatched_where_no_block_of_the_size_can_start(page: Page) -> None:
    open_day(page)

    def hatched() -> int:
        """Hours of the week in which no block of the chosen size can start on east-02."""
        strips = page.locator("[data-week-lane=east-02] > .closed[title^=no]")
        spans = strips.evaluate_all(
            """all => all.map((one) =>
              ["s", "e"].map((name) => Number(one.style.getPropertyValue(`--${name}`))))"""
        )
        return sum(end - start for start, end in spans)

    assert hatched() == 0, "3 GPUs are always free"
    page.click("[data-size='']")
    page.wait_for_load_state("networkidle")
    # Held from 8 to 13: a block of 3 hours that begins from 6 on runs into it.
    assert hatched() == 7
    title = page.locator("[data-week-lane=east-02] > .closed[title^=no]").get_attribute("title")
    assert title == "no 3 h of 8 GPUs from here on"


def test_the_list_books_a_part_by_keys_on_a_phone(stage: Stage, chrome: Chrome) -> None:
    context = chrome.new_context(
        base_url=stage.url,
        storage_state=stage.storage("student-22"),
        viewport={"width": 390, "height": 844},
        timezone_id=NEW_YORK.key,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto("/leases")
    free = page.locator("section[aria-label='Free GPUs'] tr", has_text="east-02")
    expect(free).to_contain_text("of 8 GPUs")
    expect(free).to_contain_text("for 3 h from")
    page.focus("#node_class")
    page.keyboard.type("h100x8")
    page.fill("#start_local", f"{day()}T16:00")
    page.fill("#hours", "3")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "gpus"
    page.keyboard.type("2")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/leases/lease_*")
    assert page.inner_text("h1").startswith("2 of 8 GPUs of east-")
    expect(page.locator("section[aria-label=Hours]")).to_contain_text("16:00")
    expect(page.locator("main")).to_contain_text("Run a job in it")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    context.close()
