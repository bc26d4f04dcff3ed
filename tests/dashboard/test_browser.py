"""The real pages in a real browser, over the whole running platform."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect

from dashboard import formats
from tests.dashboard.conftest import Chrome
from tests.running import ADMIN, Running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.xdist_group("platform")]

PASSWORD = "correct horse battery"
SPEC = """\
# in the browser
name: seen-{name}
model: {{name: gpt, layers: {layers}, width: 32, heads: 2}}
data: {{dataset: python-stdlib, sequence_length: 32}}
training: {{steps: {steps}, global_batch_size: 4, learning_rate: 3.0e-3, warmup_steps: 5}}
parallelism: {{strategy: single}}
checkpoint: {{keep_last: 1}}
resources: {{nodes: 1, ranks_per_node: 1, wall_time: 20min}}
"""
# Whether anything is painted in the two leftmost columns, below the unit, where a label cut off
# at the edge would be; and how many pixels have colour at all.
LOOK_AT_CHARTS = """
() => [...document.querySelectorAll("[data-chart] canvas")].map((canvas) => {
  const scale = devicePixelRatio;
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const ink = (data) => data.filter((value, index) => index % 4 === 3 && value > 40).length;
  const top = Math.ceil(18 * scale);
  const edge = context.getImageData(0, top, Math.ceil(scale), canvas.height - top).data;
  const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
  return {
    chart: canvas.closest("[data-chart]").dataset.chart,
    edge: ink([...edge]),
    ink: ink([...all]),
    box: canvas.getBoundingClientRect().width,
    room: canvas.closest(".plot").clientWidth,
  };
})
"""


@pytest.fixture(scope="module")
def session(platform: Running, chrome: Chrome) -> Any:
    """The cookies of somebody who signed in through the form."""
    context = chrome.new_context(base_url=platform.url)
    page = context.new_page()
    page.goto("/nodes")
    assert page.url.endswith("/login?next=/nodes")
    page.fill("#name", ADMIN)
    page.fill("#password", "wrong, wrong, wrong")
    page.click("main button")
    expect(page.locator("[role=alert]")).to_contain_text("Name or password is wrong.")
    page.fill("#password", PASSWORD)
    page.click("main button")
    page.wait_for_url("**/nodes")
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture(scope="module")
def some_job(platform: Running) -> str:
    """The id of a job that has ended; a second one stands beside it in the list."""
    submit(platform, "first", 5)
    job_id = submit(platform, "some", 5)
    cancel(platform, job_id)
    return job_id


@pytest.fixture
def page(platform: Running, chrome: Chrome, session: Any) -> Iterator[Page]:
    """A signed-in page."""
    context = chrome.new_context(
        base_url=platform.url,
        storage_state=session,
        viewport={"width": 1280, "height": 900},
        timezone_id="America/New_York",
    )
    yield context.new_page()
    context.close()


def spec(name: str, steps: int, layers: int = 1) -> str:
    """A tiny job as YAML."""
    return SPEC.format(name=name, steps=steps, layers=layers)


def submit(platform: Running, name: str, steps: int, layers: int = 1) -> str:
    """A job through the API; returns its id."""
    with platform.http() as client:
        answer = client.post(
            "/v1/jobs",
            content=spec(name, steps, layers),
            headers={"content-type": "application/yaml"},
        )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def points(page: Page) -> int:
    """How many steps the loss curve has."""
    return int(page.get_attribute("[data-chart=loss] .plot", "data-points") or 0)


def wait_for_state(page: Page, state: str, within_s: float = 90) -> None:
    """Until the page itself says so."""
    wait_for(
        lambda: page.inner_text("#head .badge") == state,
        what=f"the page to say {state}",
        within_s=within_s,
        every_s=0.2,
    )


def cancel(platform: Running, job_id: str) -> None:
    """Free the node for the next test."""
    with platform.http() as client:
        client.post(f"/v1/jobs/{job_id}/cancel")
        wait_for(
            lambda: client.get(f"/v1/jobs/{job_id}").json()["state"] in ("cancelled", "succeeded"),
            what="the job to end",
            within_s=90,
            every_s=0.2,
        )


def test_submit_watch_the_loss_grow_and_cancel(page: Page) -> None:
    page.goto("/jobs")
    page.keyboard.press("n")
    page.wait_for_url("**/jobs/new#f-name")
    ready = page.locator("[data-submit]:not([disabled])")
    ready.wait_for()
    assert page.evaluate("document.activeElement.id") == "f-name"

    page.click("[data-view=yaml]")
    page.fill("[data-spec]", spec("x", 0))
    page.locator("#plan [data-state=bad]", has_text="training.steps").wait_for()
    expect(page.locator("[data-submit]")).to_be_disabled()
    expect(page.locator("#plan-bar")).to_contain_text("cannot be submitted")
    page.fill("[data-spec]", spec("curve", 1_000_000))
    page.locator("#plan .verdict[data-state=good]").wait_for()
    ready.wait_for()
    expect(page.locator("#plan-bar")).to_contain_text("Fits")
    page.focus("[data-spec]")
    page.keyboard.press("Control+Enter")

    page.wait_for_url("**/jobs/job_*")
    expect(page.locator("h1")).to_have_text("seen-curve")
    wait_for_state(page, "running")
    first = wait_for(lambda: points(page) > 20 and points(page), what="a curve", every_s=0.2)
    wait_for(lambda: points(page) > first + 50, what="the curve to grow", every_s=0.2)
    expect(page.locator("#line")).to_have_text("live")
    assert float(page.inner_text("[data-tile=loss]")) > 0
    page.click("[data-job-tabs] >> text=Charts")
    page.locator("[data-chart=lr] canvas").wait_for()
    charts = page.evaluate(LOOK_AT_CHARTS)
    drawn = {chart["chart"] for chart in charts}
    assert {"loss", "speed", "grad", "memory", "lr", "time"} <= drawn
    assert drawn <= {"loss", "speed", "grad", "memory", "lr", "time", "parts", "phases", "cpu"}
    for chart in charts:
        assert chart["ink"] > 500, f"nothing is painted in {chart}"
        assert chart["edge"] == 0, f"a label is cut off in {chart}"
        assert chart["box"] <= chart["room"] + 1
    page.click("[data-job-tabs] >> text=Overview")
    expect(page.locator("[data-track] svg")).to_be_visible()

    page.click("#cancel summary")
    page.click("#cancel button")
    wait_for_state(page, "cancelled")
    wait_for(lambda: page.inner_text("#line") == "ended", what="the end of the stream")
    expect(page.locator("#event-list")).to_contain_text("Cancelled")


def test_the_cursor_is_shared_and_moved_by_keys(platform: Running, page: Page) -> None:
    job_id = submit(platform, "cursor", 60)
    page.goto(f"/jobs/{job_id}")
    wait_for_state(page, "succeeded")
    wait_for(lambda: points(page) == 60, what="the whole curve")
    legend = "[data-chart={}] [data-legend] > span:first-child b"
    page.focus("[data-chart=loss] .plot")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    assert page.inner_text(legend.format("loss")) == "49"
    assert page.inner_text(legend.format("speed")) == "49"
    assert page.inner_text("#result dd >> nth=0").count("\u2192") == 1
    # A running tab stays where it is: the sections that came with the end took no focus.
    assert page.evaluate("document.activeElement.closest('[data-chart]').dataset.chart") == "loss"


def test_after_the_server_was_away_the_page_says_so_and_misses_nothing(
    platform: Running, chrome: Chrome, page: Page
) -> None:
    job_id = submit(platform, "gap", 1_000_000, layers=12)  # slow enough to be drawn step by step
    page.goto(f"/jobs/{job_id}")
    wait_for(lambda: points(page) > 20, what="a curve", within_s=90, every_s=0.2)
    # The API is back within two seconds or so; the line is kept down for longer than it takes to
    # say so.
    page.route("**/stream", lambda route: route.abort())
    platform.process("api").kill()
    page.locator("#line-lost").wait_for(state="visible", timeout=15_000)
    expect(page.locator("#line-lost")).to_contain_text("The page shows the state of")
    page.unroute("**/stream")
    page.locator("#line-lost").wait_for(state="hidden", timeout=60_000)
    before = points(page)
    wait_for(lambda: points(page) > before + 5, what="the curve to go on", every_s=0.2)
    cancel(platform, job_id)
    wait_for_state(page, "cancelled")
    wait_for(lambda: page.inner_text("#line") == "ended", what="the end of the stream")
    with platform.http() as client:
        answer = client.get(f"/v1/jobs/{job_id}/metrics", params={"keys": "loss"}).json()
    [loss] = answer["series"]
    assert points(page) == loss["points"], "a step is missing on the page"
    chrome.forgive("ERR_")  # the lost line is the browser's own complaint


@pytest.mark.slow
def test_a_hidden_tab_holds_no_connection_and_misses_nothing(platform: Running, page: Page) -> None:
    """Eight tabs, of which a browser lets six be connected at a time."""
    job_id = submit(platform, "tabs", 1_000_000, layers=24)
    tabs = [page, *(page.context.new_page() for _ in range(7))]
    for tab in tabs:
        tab.goto(f"/jobs/{job_id}")
        wait_for(lambda tab=tab: tab.inner_text("#line") == "live", what="the stream", every_s=0.2)
        show(tab, False)
    first = tabs[0]
    before = points(first)
    wait_for(lambda: last_step(platform, job_id) > before + 20, what="steps that nobody sees")
    assert points(first) == before
    show(first, True)
    wait_for(lambda: points(first) > before + 20, what="the curve to catch up", every_s=0.2)
    cancel(platform, job_id)
    wait_for_state(first, "cancelled")
    with platform.http() as client:
        answer = client.get(f"/v1/jobs/{job_id}/metrics", params={"keys": "loss"}).json()
    wait_for(lambda: points(first) == answer["series"][0]["points"], what="every step", every_s=0.2)
    for tab in tabs[1:]:
        tab.close()


def show(page: Page, is_shown: bool) -> None:
    """Bring a tab to the front, or hide it, as far as its page can tell."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not is_shown,
    )


def last_step(platform: Running, job_id: str) -> int:
    """The newest step that the server knows."""
    with platform.http() as client:
        return int(client.get(f"/v1/jobs/{job_id}").json()["step"])


@pytest.mark.slow
def test_who_was_signed_out_elsewhere_is_told_so(platform: Running, chrome: Chrome) -> None:
    job_id = submit(platform, "signed-out", 1_000_000)
    with platform.http() as client:  # a paused one has a stream too, and takes no core
        client.post(f"/v1/jobs/{job_id}/pause").raise_for_status()
    context = chrome.new_context(base_url=platform.url)
    page = context.new_page()
    page.goto(f"/login?next=/jobs/{job_id}")
    page.fill("#name", ADMIN)
    page.fill("#password", PASSWORD)
    page.click("main button")
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.2)
    sign_out = "fetch('/v1/sessions/current', {method: 'DELETE'}).then(answer => answer.status)"
    assert page.evaluate(sign_out) == 204
    platform.process("api").kill()
    page.locator("#signed-out").wait_for(state="visible", timeout=60_000)
    expect(page.locator("#line-lost")).to_be_hidden()
    page.click("#signed-out a")
    page.wait_for_url(f"**/login?next=/jobs/{job_id}")
    context.close()
    chrome.forgive("ERR_")  # the server was away for a moment
    cancel(platform, job_id)


@pytest.mark.slow
def test_a_study_is_watched_to_its_end(platform: Running, page: Page) -> None:
    with platform.http() as client:
        answer = client.post(
            "/v1/studies?schedules=naive,GPipe",
            content=spec("study", 40, layers=4)
            .replace("single", "pipeline")
            .replace("ranks_per_node: 1", "ranks_per_node: 2"),
            headers={"content-type": "application/yaml"},
        )
    assert answer.status_code == 201, answer.text
    page.goto(f"/studies/{answer.json()['id']}")
    assert page.inner_text("#line") in ("connecting", "live")
    wait_for(lambda: page.inner_text("#line") == "ended", what="the end", within_s=120, every_s=0.2)
    wait_for(lambda: "times as fast as naive" in page.inner_text("#report"), what="the answer")
    ended = page.locator("#report tbody .badge", has_text="succeeded")
    wait_for(lambda: ended.count() == 2, what="the table to say so")
    expect(page.locator("#report tbody .badge", has_text="pass")).to_have_count(1)
    charts = page.evaluate(LOOK_AT_CHARTS)
    assert {chart["chart"] for chart in charts} == {"speed-up", "curves"}
    for chart in charts:
        assert chart["ink"] > 300, f"nothing is painted in {chart}"
        assert chart["edge"] == 0, f"a label is cut off in {chart}"
    page.focus("[data-chart=curves] .plot")
    page.keyboard.press("Shift+ArrowLeft")
    legends = page.locator("[data-chart=curves] [data-legend] b").all_inner_texts()
    assert legends[0] == "30"
    assert legends[1] == legends[2] != formats.UNKNOWN, "two schedules, one curve"
    page.focus("[data-chart=speed-up] .plot")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-chart=speed-up] [data-legend] b >> nth=0")).to_have_text("naive")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (360, 1280, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            # The charts follow a change of the window in the frame after it.
            fits = f"document.documentElement.scrollWidth === {width} && innerWidth === {width}"
            wait_for(lambda fits=fits: page.evaluate(fits), what="the page to fit", every_s=0.1)
    page.click("#report tbody a >> nth=1")
    page.wait_for_url("**/jobs/job_*")
    expect(page.locator("h1")).to_have_text("seen-study GPipe")
    page.click("#head a:has-text('a study')")
    page.wait_for_url("**/studies/study_*")


HOSTILE_LINES = [
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 2'>",
    "\x1b[31mred\x1b[0m \u202edesrever",
    "ValueError: an error, in red",
]


def test_hostile_log_lines_are_text(page: Page, some_job: str) -> None:
    lines = [
        {"epoch": 1, "rank": index % 2, "stream": "stdout", "line": index, "text": text}
        for index, text in enumerate(HOSTILE_LINES)
    ]
    answer = {"lines": lines, "cursor": "x", "has_more": False, "ranks": [0, 1]}

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))

    page.route("**/logs?*", fulfil)
    page.goto(f"/jobs/{some_job}")
    rows = page.locator("[data-log] li")
    wait_for(lambda: rows.count() >= 4, what="the lines")  # the real ones come after
    assert rows.nth(0).locator("span").last.inner_text() == HOSTILE_LINES[0]
    expect(page.locator("[data-log] img, [data-log] script")).to_have_count(0)
    assert rows.nth(2).locator(".esc").all_inner_texts() == ["ESC", "ESC", "U+202E"]
    assert page.evaluate("window.hurt") is None
    page.keyboard.press("e")
    at_a_line = "document.activeElement.matches('[data-log] li')"
    wait_for(lambda: page.evaluate(at_a_line), what="the error's line", every_s=0.1)
    assert page.evaluate("document.activeElement.textContent").endswith("an error, in red")
    page.keyboard.press("/")
    page.keyboard.type("red")
    assert page.evaluate("document.activeElement.matches('[data-log-search]')")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "null"},
        {},
    ],
)
def test_a_form_that_another_site_sends_changes_nothing(
    platform: Running, session: Any, some_job: str, headers: dict[str, str]
) -> None:
    cookies = {one["name"]: one["value"] for one in session["cookies"]}
    with httpx2.Client(base_url=platform.url, cookies=cookies, timeout=30) as client:
        for path, form in (
            (f"/jobs/{some_job}/cancel", {}),
            ("/jobs/new", {"spec": spec("foreign", 5)}),
            ("/account/tokens", {"name": "foreign", "expires_in_days": "1"}),
            ("/logout", {}),
        ):
            assert client.post(path, data=form, headers=headers).status_code == 403, path
        assert client.get("/jobs").status_code == 200, "still signed in"
        assert client.get("/v1/tokens").json()["data"] == []
    if headers:
        with httpx2.Client(base_url=platform.url, timeout=30) as stranger:
            form = {"name": ADMIN, "password": PASSWORD}
            answer = stranger.post("/login", data=form, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers


@pytest.mark.usefixtures("some_job")
def test_the_keyboard_walks_and_selects_and_the_selection_stays(page: Page) -> None:
    page.goto("/jobs")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.closest('tr').id")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').id") != first
    page.keyboard.press("x")
    expect(page.locator("#bulk strong")).to_have_text("1 selected")
    with page.expect_response("**/jobs/rows*"):
        page.evaluate("htmx.trigger(document.getElementById('rows'), 'refresh')")
    wait_for(lambda: page.inner_text("#bulk strong") == "1 selected", what="the selection to stay")
    expect(page.locator("tr[aria-selected=true] input")).to_be_checked()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("nxj")
    assert page.input_value("[data-search]") == "nxj", "no key acts while a field has the focus"


def test_the_chosen_theme_stays(page: Page) -> None:
    page.goto("/jobs")
    page.click(".menu.nav-wide summary")
    page.click(".menu.nav-wide [data-set-theme=dark]")
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_times_are_in_the_viewers_zone_with_its_offset(platform: Running, page: Page) -> None:
    page.goto("/leases")
    zone = page.inner_text("[data-zone] >> nth=0")
    assert zone in ("EST (UTC\u221205:00)", "EDT (UTC\u221204:00)")
    start = page.input_value("[name=start]")
    assert start[-6:] in ("-05:00", "-04:00")
    assert start[14:19] == "00:00"


NUMBERS: list[float | None] = [None, 0, 1.0211, 12.304, 0.64123, 119156.4, 0.0003, 0.002, -0.5, 2e6]
SPANS = [0, 0.00038, 0.47, 5, 59, 6360, 3600, 90061, -5]


def test_the_browser_writes_numbers_as_the_server_does(page: Page) -> None:
    page.goto("/jobs")
    written = page.evaluate(
        """async ([numbers, spans]) => {
          const { decimal, span } = await import("/static/formats.js");
          return [numbers.map((number) => decimal(number)), spans.map((one) => span(one))];
        }""",
        [NUMBERS, SPANS],
    )
    assert written[0] == [formats.decimal(number) for number in NUMBERS]
    assert written[1] == [formats.span(one) for one in SPANS]
