"""What pages read by themselves, in a real browser: one look at a time, after whatever a person
asks, and not at all where the server or a hidden tab says so."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from core.tables.kinds import Role
from tests import chromium
from tests.dashboard import busy_api
from tests.dashboard.busy_api import BusyApi, Read
from tests.dashboard.conftest import Chrome
from tests.dashboard.fake_api import COOKIE, FakeApi, job, lease, me, node, refusal
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

BOARD, OWN, DAY = "/v1/leases/stream", "/v1/leases", "/v1/leases/availability"
HOUR = timedelta(hours=1)
NODES = ("east-01", "east-02", "east-03", "east-04", "east-05")


def tomorrow(after: int = 0) -> datetime:
    """So many hours into tomorrow. Each test asks anew, as midnight may pass between two."""
    return datetime.combine(datetime.now(UTC), datetime.min.time(), UTC) + (24 + after) * HOUR


def verdict() -> dict[str, object]:
    """The API's yes to an hour of tomorrow."""
    charge = {"quota": None, "hours": 1}
    nothing: dict[str, list[object]] = {
        kind: [] for kind in ("warnings", "reasons", "left", "next_starts")
    }
    return {
        "ok": True,
        "hold_start": tomorrow().isoformat(),
        "can_wait": False,
        "nodes": [{"charge": charge, "policy": "default", **nothing}],
    }


def hold(after: int, hours: int = 1, **more: object) -> dict[str, object]:
    """Hours of tomorrow that somebody has."""
    start = tomorrow(after)
    end = start + hours * HOUR
    return {"start": f"{start:%FT%TZ}", "end": f"{end:%FT%TZ}", "kind": "lease", **more}


def holds(**of: list[dict[str, object]]) -> list[dict[str, object]]:
    """Nodes as the stream tells them; `_` for `-` in their names."""
    return [
        {"node": name.replace("_", "-"), "state": "ready", "holds": held}
        for name, held in of.items()
    ]


NOTHING_HELD: Any = holds(**{name.replace("-", "_"): [] for name in NODES})


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """The API of a calendar on which nobody has booked anything."""
    api.put("/v1/nodes", [node(name=name) for name in NODES])
    for path in ("bands", "windows", "leases/forecast", "maintenance", "waitlist"):
        api.put(f"/v1/{path}", [])
    lengths = [{"node": name, "hours": [1, 2]} for name in NODES]
    api.put("/v1/leases/availability", {"hours": [], "lengths": lengths})
    api.put("/v1/leases/verdict", verdict(), method="POST")
    return api


@pytest.fixture
def busy(api: FakeApi) -> Iterator[BusyApi]:
    """The same, at an address."""
    if chromium.find() is None:
        pytest.skip("no Chromium or Chrome was found; `make test` installs one where it can")
    with busy_api.serving(api) as busy:
        busy.begin_with(BOARD, "holds", version="a-1", whole=True, nodes=NOTHING_HELD)
        yield busy


@pytest.fixture
def page(busy: BusyApi, chrome: Chrome) -> Iterator[Page]:
    """Ada's page. Its clock is the test's; and chance is away: what is spread at random begins at
    once, what waits waits least."""
    context = chrome.new_context(
        base_url=busy.url,
        viewport={"width": 1280, "height": 900},
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    name, _, value = COOKIE.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": busy.url}])
    context.add_init_script(
        """
        Math.random = () => 0;
        window.bells = window.asking = 0;
        const ask = window.fetch;
        window.fetch = async (...what) => {
          window.asking += 1;
          try {
            return await ask(...what);
          } finally {
            window.asking -= 1;
          }
        };
        const open = EventSource;
        window.EventSource = class extends open {
          constructor(address) {
            super(address);
            this.addEventListener("own", () => { window.bells += 1; });
          }
        };
        """
    )
    page = context.new_page()
    page.clock.install()
    yield page
    context.close()


def open_tomorrow(page: Page, busy: BusyApi) -> None:
    """The calendar, at rest, on the day after this one; forgets what it has read so far."""
    page.goto("/calendar")
    read(busy, "/v1/leases/forecast")
    page.click("[data-week-grid] [data-day] >> nth=1")
    read(busy, DAY, 2)
    page.locator("[data-lane=east-01] .cell >> nth=23").wait_for()
    settle(page)
    page.clock.run_for(6000)  # the rest after it
    busy.reads.clear()


def settle(page: Page) -> None:
    """Until the page has taken all answers that it asked for."""
    wait_for(lambda: page.evaluate("window.asking") == 0, what="the answers")
    page.wait_for_timeout(100)  # documents are read after their heads


def stop_clock(page: Page) -> None:
    """From now on the page's time passes only where the test says so."""
    page.clock.pause_at(datetime.fromtimestamp(page.evaluate("Date.now()") / 1000 + 1, UTC))


def read(busy: BusyApi, path: str, count: int = 1) -> list[Read]:
    """The reads of that path, once there are so many."""
    wait_for(lambda: len(busy.of(path)) >= count, what=f"{path}, {count} times", within_s=30)
    return busy.of(path)


def ring(page: Page, busy: BusyApi, version: str) -> None:
    """Tell the page that something of Ada's has changed; it has heard it and acted on it."""
    before = bells(page)
    busy.tell(BOARD, "own", version=version)
    wait_for(lambda: bells(page) > before, what="the bell")
    page.clock.run_for(10)


def bells(page: Page) -> int:
    """How often the page was told so."""
    return int(page.evaluate("window.bells"))


def taken(page: Page, node: str) -> int:
    """Bars of others on the node in the shown day."""
    return page.locator(f"[data-lane={node}] .lease.anon").count()


def show(page: Page, is_shown: bool) -> None:
    """Bring a tab to the front, or hide it, as far as its page can tell."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not is_shown,
    )


def test_a_click_arrives_although_all_is_drawn_anew_while_the_button_is_down(
    page: Page, busy: BusyApi
) -> None:
    open_tomorrow(page, busy)
    days = page.locator("[data-week-grid] [data-day]")
    days.nth(3).hover()
    page.mouse.down()
    page.clock.run_for(61_000)  # each minute the time goes on
    page.mouse.up()
    page.clock.run_for(100)
    page.locator("[data-week-grid] [data-day][aria-pressed=true]").wait_for()
    assert days.nth(3).get_attribute("aria-pressed") == "true"


def test_others_bookings_are_drawn_as_told_and_only_their_nodes_are_judged_again(
    page: Page, busy: BusyApi
) -> None:
    open_tomorrow(page, busy)
    held = holds(east_02=[hold(9, 3)])
    busy.tell(BOARD, "holds", version="a-2", whole=False, nodes=held)
    page.locator("[data-lane=east-02] .lease.anon", has_text="taken").wait_for()
    busy.tell(BOARD, "holds", version="a-3", whole=False, nodes=holds(east_04=[hold(1)]))
    page.locator("[data-lane=east-04] .lease.anon").wait_for()
    assert busy.reads == [], "what the stream tells needs no read"
    stop_clock(page)
    busy.retry_after = 1
    page.clock.run_for(3000)
    read(busy, DAY)
    settle(page)
    busy.retry_after = None
    page.clock.run_for(9000)  # the page rests for as long as the look took, by its stopped clock
    for judged in read(busy, DAY, 2):
        assert judged.is_background
        assert judged.query["node"] == ["east-02", "east-04"]
        assert judged.query["hours"] == ["24"]
    # Somebody's hours in another week change nothing of this day.
    far = [hold(9, 3), hold(24 * 20)]
    busy.tell(BOARD, "holds", version="a-4", whole=False, nodes=holds(east_02=far))
    busy.tell(BOARD, "holds", version="a-5", whole=False, nodes=holds(east_04=[]))
    wait_for(lambda: taken(page, "east-04") == 0, what="the hour to be free again")
    assert taken(page, "east-02") == 1
    assert [one.path for one in busy.reads] == [DAY, DAY]


def test_pages_never_look_twice_at_once_and_rest_as_long_as_a_look_took(
    page: Page, busy: BusyApi
) -> None:
    open_tomorrow(page, busy)
    busy.delay_s = 0.5
    stop_clock(page)
    ring(page, busy, "a-2")
    read(busy, OWN)
    for number in range(3, 8):
        ring(page, busy, f"a-{number}")
    read(busy, DAY)
    settle(page)
    wait_for(lambda: bells(page) == 6, what="the bells")
    page.clock.run_for(3900)
    page.wait_for_timeout(200)  # time in which a page that does not rest would look
    assert len(busy.of(OWN)) == 1, "the page rests for four seconds after a look"
    page.clock.run_for(300)
    read(busy, OWN, 2)
    assert busy.most_at_once(OWN) == 1
    assert all(one.is_background for one in busy.reads)


def test_a_click_goes_before_the_pages_own_reads(page: Page, busy: BusyApi) -> None:
    open_tomorrow(page, busy)
    busy.delay_s = 60
    broken: list[str] = []
    page.on("requestfailed", lambda request: broken.append(request.url))
    busy.tell(BOARD, "own", version="a-2")
    read(busy, OWN)
    clicked = time.monotonic()
    page.locator("[data-lane=east-01] .cell").nth(9).click()
    page.locator("[data-verdict] [data-state=good]").wait_for()
    assert time.monotonic() - clicked < 30, "milliseconds, on a machine that does nothing else"
    assert any(url.endswith("limit=200") for url in broken), "the look was broken off"
    busy.delay_s = 0
    read(busy, OWN, 2)
    assert not busy.api.sent("POST", "/v1/leases/verdict").headers.get("priority")


def test_a_booking_is_shown_with_its_answer(page: Page, busy: BusyApi, api: FakeApi) -> None:
    open_tomorrow(page, busy)
    made = lease(hold_start=tomorrow(9), hold_end=tomorrow(10))
    api.put("/v1/leases", made, method="POST")
    page.locator("[data-lane=east-01] .cell").nth(9).click()
    page.locator("[data-book-now]:not([disabled])").click()
    page.locator("[data-lane=east-01] .lease.mine").wait_for()
    page.locator("[data-mine] li", has_text="east-01").wait_for()
    assert busy.reads == [], "nothing was read for it"


def test_a_refused_look_waits_as_long_as_it_is_told_and_shows_no_error(
    page: Page, busy: BusyApi
) -> None:
    open_tomorrow(page, busy)
    busy.retry_after = 7
    stop_clock(page)
    ring(page, busy, "a-2")
    read(busy, OWN)
    settle(page)
    page.clock.run_for(6900)
    page.wait_for_timeout(200)  # time in which a page that does not wait would look
    assert len(busy.of(OWN)) == 1
    page.clock.run_for(200)
    read(busy, OWN, 2)
    expect(page.locator("#out-of-date")).to_be_hidden()
    assert "busy" not in page.inner_text("main").lower()
    busy.retry_after = None
    settle(page)
    page.clock.run_for(8000)
    read(busy, DAY)


def test_what_was_not_heard_for_long_is_told_and_tried_by_a_click(
    page: Page, busy: BusyApi
) -> None:
    open_tomorrow(page, busy)
    busy.retry_after = 600
    ring(page, busy, "a-2")
    read(busy, OWN)
    settle(page)
    page.clock.run_for(31_000)
    page.locator("#out-of-date", has_text="too busy").wait_for(timeout=5000)
    busy.reads.clear()
    page.click("[data-look-now]")
    page.clock.run_for(100)
    read(busy, "/v1/leases/forecast")
    page.locator("#out-of-date").wait_for(state="hidden")
    assert not any(one.is_background for one in busy.reads)


def test_a_hidden_tab_is_silent_and_looks_once_when_it_is_shown(page: Page, busy: BusyApi) -> None:
    open_tomorrow(page, busy)
    show(page, False)
    wait_for(lambda: busy.streams() == 0, what="the line to be closed")
    held = [{**one, "holds": [hold(2)]} for one in NOTHING_HELD]
    busy.begin_with(BOARD, "holds", version="a-7", whole=True, nodes=held)
    page.wait_for_timeout(1000)  # time in which a page that looks would look
    assert busy.reads == []
    show(page, True)
    wait_for(lambda: taken(page, "east-03") == 1, what="the board as it is now")
    read(busy, "/v1/leases/forecast")
    settle(page)
    page.clock.run_for(6000)
    assert [len(busy.of(path)) for path in (OWN, DAY, "/v1/bands")] == [1, 1, 1]
    show(page, False)
    wait_for(lambda: busy.streams() == 0, what="the line to be closed")
    busy.reads.clear()
    show(page, True)
    wait_for(lambda: busy.streams() == 1, what="the line")
    page.wait_for_timeout(500)
    assert busy.reads == [], "nothing was missed"


@pytest.mark.slow
def test_staff_see_who_has_each_of_250_leases(page: Page, busy: BusyApi, api: FakeApi) -> None:
    boss = me()
    api.put("/v1/me", me(user=boss.user.model_copy(update={"role": Role.STAFF})))
    held = holds(
        **{
            name.replace("-", "_"): [
                hold(after, user=f"student-{50 * at + after:03d}", lease=f"lease_{at}_{after}")
                for after in range(50)
            ]
            for at, name in enumerate(NODES)
        }
    )
    busy.begin_with(BOARD, "holds", version="a-1", whole=True, nodes=held)
    page.goto("/calendar")
    bars = page.locator("[data-week-grid] .lease[title^='student-']")
    wait_for(lambda: bars.count() == 250, what="250 names")
    titles = bars.evaluate_all("all => all.map((one) => one.title.split(':')[0])")
    assert len(set(titles)) == 250
    page.click("[data-week-grid] [data-day] >> nth=1")
    page.locator("[data-lane=east-05] .lease", has_text="student-223").wait_for()


def test_a_list_is_read_again_in_the_background_and_keeps_its_rows_when_it_is_refused(
    page: Page, busy: BusyApi, api: FakeApi
) -> None:
    api.put("/v1/jobs", [job(step=100)])
    api.put(f"/v1/jobs/{job().id}/metrics", {"series": []})
    busy.begin_with("/v1/changes/stream", "changes", words={"jobs": "one"})
    page.goto("/jobs")
    [rows] = read(busy, "/jobs/rows")
    wait_for(lambda: rows.ended_at, what="the rows")
    assert rows.is_background
    assert api.sent("GET", "/v1/jobs").headers["priority"] == "u=6", "the API behind the page"
    busy.retry_after = 1
    busy.tell("/v1/changes/stream", "changes", words={"jobs": "two"})
    for count in (2, 3):
        settle(page)
        page.clock.run_for(5000)
        read(busy, "/jobs/rows", count)
    assert "Too many" not in page.inner_text("main")
    expect(page.locator("#rows tr[id]")).to_have_count(1)
    assert busy.most_at_once("/jobs/rows") == 1


def test_a_read_that_nobody_asked_for_leaves_the_page_of_a_session_that_ended(
    page: Page, busy: BusyApi, api: FakeApi
) -> None:
    api.put("/v1/jobs", [job(step=100)])
    api.put(f"/v1/jobs/{job().id}/metrics", {"series": []})
    busy.begin_with("/v1/changes/stream", "changes", words={"jobs": "one"})
    page.goto("/jobs")
    read(busy, "/jobs/rows")
    settle(page)
    for address in ("/v1/me", "/v1/jobs"):
        api.put(address, refusal(401, "This session has ended."))
    busy.tell("/v1/changes/stream", "changes", words={"jobs": "two"})
    page.clock.run_for(5000)
    read(busy, "/jobs/rows", 2)
    settle(page)
    assert not busy.of("/login")
    expect(page.locator("#rows tr[id]")).to_have_count(1)
