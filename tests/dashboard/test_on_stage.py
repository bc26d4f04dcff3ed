"""Pages in a real browser over a platform that is full of data: what needs no training."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Page, Route, expect

from api.records import log_store
from api.records.log_store import Piece
from core.base.clock import utc_now
from core.states import JobState
from core.tables.jobs import Job
from core.tables.nodes import Node
from tests.dashboard import stage as stages
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
FOUR = ("homework-4-ddp", "homework-4-fsdp", "homework-4-zero2", "homework-4-tensor")
LLAMA = "llama-7b-python"
# Widths of a phone, a laptop and a large screen.
WIDTHS = (360, 1280, 2560)


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform full of data."""
    stages.fill(stage)
    return stage


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """Ada's page."""
    yield from opened(stage, chrome, "ada")


def address(stage: Stage, path: str) -> str:
    """The path with `{name}` replaced by that job's id, or by that of the study, the agenda or a
    person's last lease."""
    leases = {f"lease of {name}": lease for name, lease in stage.leases.items()}
    ids = {**stage.jobs, **leases, "study": stage.study, "agenda": stage.agenda}
    return re.sub(r"\{([^}]+)\}", lambda found: ids[found[1]], path)


COMPARED = "/jobs/compare?" + "&".join(f"job={{{name}}}" for name in FOUR)
PAGES = (
    "/calendar",
    "/jobs",
    COMPARED,
    "/reports",
    "/studies",
    "/studies/{study}",
    "/agendas",
    "/agendas/{agenda}",
    "/leases",
    "/datasets",
    "/datasets/python-stdlib",
    "/models",
    "/tokenizers",
    "/workspace",
    "/search?q=homework",
    "/help",
    "/help/leases",
    "/nodes/east-02/drain",
    "/nodes/east-01",
    "/nodes/north-02",
    "/leases/{lease of ada}",
    "/leases/{lease of student-04}",
    f"/jobs/{{{LLAMA}}}",
    "/jobs/{sweep-lr-3e-4}",
    "/jobs/new",
    "/nodes",
    "/usage",
    "/account",
    "/admin/cleanups",
    "/admin/people",
    "/admin/policies",
    "/admin/audit",
    "/admin/settings",
)
RARE = ("/workbenches", "/shares", "/help/keys", "/help/glossary", "/admin/grants")
LIKE_OTHERS = (
    "/tokenizers",
    "/nodes/north-02",
    "/leases/{lease of student-04}",
    "/jobs/{sweep-lr-3e-4}",
)
"""Pages from the template of another one."""
LISTS = (
    *("/reports", "/studies", "/agendas", "/datasets", "/models", "/workspace"),
    *("/search?q=homework", "/help", "/help/leases", "/usage", "/account"),
    *("/admin/people", "/admin/audit", "/admin/settings"),
)
"""Pages of parts which other pages have, too: lists, cards and plain forms."""
SHOW_MORE = ("/calendar", "/jobs", "/leases", "/datasets", f"/jobs/{{{LLAMA}}}", "/nodes")
"""Pages which hide a part of their own on a phone; on others only the head is different."""


def examinations() -> Iterator[Any]:
    """Path, widths at which it is examined, and scheme."""
    slow = pytest.mark.slow
    for path in (*PAGES, *RARE):
        is_rare = path in (*RARE, *LIKE_OTHERS, *LISTS)
        widths = (360, 1280) if path in SHOW_MORE or is_rare else (360,)
        marks = [slow] if is_rare else []
        yield pytest.param(path, widths, "light", id=f"{path}-light", marks=marks)
        if len(widths) == 1:
            yield pytest.param(path, (1280,), "light", id=f"{path}-wide", marks=slow)
        yield pytest.param(path, (360, 1280), "dark", id=f"{path}-dark", marks=slow)


def settle(page: Page) -> None:
    """Until nothing is being fetched and the charts that have data are drawn."""
    page.wait_for_load_state("load")
    idle = "document.querySelector('[aria-busy=true], .htmx-request') === null"
    wait_for(lambda: page.evaluate(idle), what="the answers", every_s=0.1)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture(scope="module")
def examined(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """One page for all that are examined: a browser's process, scripts and styles are read once."""
    context = chrome.new_context(
        base_url=stage.url,
        storage_state=stage.storage(),
        reduced_motion="reduce",
        bypass_csp=True,  # the checker is put in as a script
    )
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(("path", "examined_at", "scheme"), list(examinations()))
def test_a_page_is_accessible_and_fits_every_width(
    stage: Stage, examined: Page, path: str, examined_at: tuple[int, ...], scheme: Any
) -> None:
    page = examined
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address(stage, path))
    settle(page)
    is_dark = page.evaluate("getComputedStyle(document.documentElement).colorScheme === 'dark'")
    assert is_dark == (scheme == "dark")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        # The charts follow a change of the window in the frame after it.
        fits = f"document.documentElement.scrollWidth <= {width}"
        wait_for(lambda fits=fits: page.evaluate(fits), what="the page to fit", every_s=0.1)
        if width not in examined_at:
            continue
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told = [
            (one["id"], [node["target"] for node in one["nodes"]]) for one in found["violations"]
        ]
        assert told == [], f"{path} at {width} px, {scheme}"


def test_everything_is_found_by_keys_alone_and_ids_are_copied(stage: Stage, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/nodes")
    page.keyboard.press("Control+k")
    page.keyboard.type("north")
    page.locator("#found a", has_text="north-01").first.wait_for()
    page.keyboard.press("Escape")
    expect(page.locator("#finder"), "closed at once").to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type("homework")
    page.locator("#found a", has_text="homework").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/job_*")
    page.get_by_role("button", name="Copy the id of this job").click()
    page.get_by_role("button", name="Copy the id of this job").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url.rpartition("/")[2]


def test_a_tab_tells_how_far_its_job_is(stage: Stage, page: Page) -> None:
    # A headless browser denies notifications whatever it is told.
    page.add_init_script("window.Notification = { requestPermission: async () => 'granted' }")
    page.goto(address(stage, f"/jobs/{{{LLAMA}}}"))
    wait_for(lambda: page.title().startswith("▶ 5"), what="the share in the title")
    assert re.fullmatch(r"▶ 5\d % llama-7b-python · Trainyard", page.title())
    icon = "document.querySelector('link[rel=icon]').href"
    assert page.evaluate(icon).startswith("data:image/svg+xml")
    asked = page.get_by_role("button", name="Notify me at its end")
    asked.click()
    page.locator("[data-tell-end][aria-pressed=true]").wait_for()
    asked.click()
    page.locator("[data-tell-end][aria-pressed=false]").wait_for()


def test_two_rows_are_selected_and_compared_by_keys_alone(stage: Stage, page: Page) -> None:
    page.goto("/jobs?search=homework&order=name")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-compare]"), "one is not enough").to_be_disabled()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("c")
    page.wait_for_url("**/jobs/compare?*")
    expect(page.locator("h1")).to_have_text("homework-4")
    expect(page.locator("[data-results] thead a")).to_have_text(["ddp", "fsdp"])
    page.locator("[data-row=reach] .best").wait_for()
    assert page.inner_text("[data-read=fastest]").startswith("ddp, ")


def test_the_list_is_sorted_by_its_heads_and_selected_as_a_whole(page: Page) -> None:
    page.goto("/jobs?search=homework")
    page.click("thead a:has-text('Name')")
    page.wait_for_url("**/jobs?search=homework&order=name")
    names = page.locator("#rows a.name").all_inner_texts()
    assert names == sorted(names)
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Name")
    page.check("[data-select-all]")
    expect(page.locator("[data-bulk-count]")).to_have_text(f"{len(names)} selected")
    page.locator("#rows input[type=checkbox]").first.uncheck()
    assert page.evaluate("document.querySelector('[data-select-all]').indeterminate")
    page.check("[data-select-all]")
    page.uncheck("[data-select-all]")
    expect(page.locator("#bulk")).to_be_hidden()


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_paper_is_light_and_has_no_buttons(stage: Stage, page: Page, theme: str) -> None:
    page.goto(f"/leases/{stage.leases['ada']}")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    page.emulate_media(media="print")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert max(int(part) for part in re.findall(r"\d+", ink)) < 64, "dark ink on white"
    expect(page.locator(".btn:visible, .nav:visible")).to_have_count(0)
    expect(page.locator("section[aria-label=Hours]")).to_be_visible()


def test_the_list_is_searched_by_enter(page: Page) -> None:
    page.goto("/jobs")
    page.fill("[data-search]", "homework")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?search=homework&*")
    page.locator("#rows tr", has_text="homework-4-ddp").wait_for()


def test_any_number_is_a_column_of_the_list(stage: Stage, page: Page) -> None:
    page.goto("/jobs")
    column = page.get_by_label("Metric of the last curve and column")
    column.focus()
    offered = page.locator("#metrics option")
    wait_for(lambda: offered.count() > 1, what="the keys of the listed jobs")
    assert "val/accuracy" in offered.evaluate_all("options => options.map((one) => one.value)")
    column.fill("val/accuracy")
    column.press("Enter")
    page.wait_for_url(re.compile(r"/jobs\?.*metric=val%2Faccuracy"))
    expect(page.locator("thead th", has_text="val/accuracy")).to_have_count(2)
    value = page.locator(f'[data-metric-value="{stage.jobs[LLAMA]}"]')
    wait_for(lambda: value.inner_text().startswith("0.78"), what="the accuracy of the last steps")
    others = page.locator("[data-metric-value]", has_text="\u2013")
    expect(others).to_have_count(page.locator("[data-metric-value]").count() - 1)
    page.click("text=ended")
    expect(page.locator("[data-metric-of-list]")).to_have_value("val/accuracy")


def test_a_loss_to_reach_is_typed_and_the_times_follow(stage: Stage, page: Page) -> None:
    page.goto(address(stage, COMPARED))
    cells = page.locator("[data-row=reach] [data-cell]")
    page.locator("[data-row=reach] .best").wait_for()
    before = cells.all_inner_texts()
    page.fill("[data-target]", "3")
    after = cells.all_inner_texts()
    assert len(after) == 4
    assert all(text[0].isdigit() for text in after)
    assert before != after
    page.fill("[data-target]", "0.1")
    assert set(cells.all_inner_texts()) == {"\u2013"}, "nobody was ever there"
    shown = page.locator("[data-specs] tbody tr:visible")
    some = shown.count()
    page.click("[data-fields=all]")
    assert shown.count() > some
    page.click("[data-x=hours]")
    legend = page.locator("[data-chart=spent] [data-legend] span").first
    assert legend.inner_text().startswith("GPU-hours")


@pytest.mark.slow
def test_two_jobs_are_selected_and_compared_on_a_phone(stage: Stage, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/jobs?search=homework&order=name")
    boxes = page.locator("#rows input[type=checkbox]")
    for box in (boxes.nth(0), boxes.nth(1)):
        size = box.bounding_box()
        assert size is not None
        assert min(size["width"], size["height"]) >= 24
        box.check()
    page.click("[data-compare]")
    page.wait_for_url("**/jobs/compare?*")


def test_any_number_that_the_jobs_log_is_compared(stage: Stage, page: Page) -> None:
    page.goto(address(stage, COMPARED))
    chart = page.locator("[data-chart=metric]")
    chart.locator("canvas").wait_for()
    offered = page.locator("[data-metric] option").all_inner_texts()
    assert {"loss", "lr", "mfu"} <= set(offered)
    assert offered == sorted(offered)
    page.get_by_label("Metric", exact=True).select_option("lr")
    told = chart.locator("[data-legend]")
    wait_for(lambda: "e-" in told.inner_text(), what="the learning rates, as 3.0e-5")
    assert chart.locator(".plot").get_attribute("aria-label") == "lr by step of every job"
    expect(chart.locator("[data-legend] .key")).to_have_count(4)
    expect(page.locator("[data-metric]")).to_have_value("lr")


def test_a_report_is_written_opened_downloaded_and_checked(stage: Stage, page: Page) -> None:
    page.goto(f"/jobs/{stage.jobs['homework-4-ddp']}")
    page.click("#head button:has-text('Report')")
    page.wait_for_url("**/reports/*")
    expect(page.locator("h1")).to_have_text("homework-4-ddp")
    expect(page.locator("svg path.curve").nth(2)).to_be_attached()
    assert len(page.pdf()) > 10_000
    page.set_viewport_size({"width": 360, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    words = page.locator(".sheet td, .sheet th").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().width)"
    )
    assert min(words) > 20, "no column is one letter wide"
    page.set_viewport_size({"width": 1280, "height": 900})
    with page.expect_download() as download:
        page.click("text=the same as JSON")
    text = Path(download.value.path()).read_text()

    def checked(content: str) -> str:
        page.goto("/reports")
        page.set_input_files(
            "#bundle",
            {"name": "r.json", "mimeType": "application/json", "buffer": content.encode()},
        )
        page.click("[data-check] button")
        page.locator("[data-check-answer] .verdict").wait_for()
        return page.inner_text("[data-check-answer] strong")

    assert checked(text) == "Genuine"
    report = json.loads(text)
    report["content"]["jobs"][0]["job"]["loss"] = 0.1
    assert checked(json.dumps(report)) == "Changed"


def test_charts_go_by_tokens_or_time_and_are_zoomed_together(stage: Stage, page: Page) -> None:
    page.goto(address(stage, f"/jobs/{{{LLAMA}}}#charts"))
    entry = "[data-chart={}] [data-legend] span >> nth=0"
    page.locator("[data-chart=loss] canvas").wait_for()
    page.click("[data-x=tokens]")
    assert page.inner_text(entry.format("loss")).startswith("M tokens")
    page.click("[data-x=time]")
    assert page.inner_text(entry.format("speed")).startswith("minutes")
    assert page.inner_text(entry.format("phases")).startswith("moment")
    page.click("[data-x=step]")
    box = page.locator("[data-chart=loss] .u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 20, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, middle, steps=4)
    page.mouse.up()
    page.locator("[data-zoom-out]").wait_for(state="visible")
    page.click("[data-zoom-out]")
    expect(page.locator("[data-zoom-out]")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("+")
    expect(page.locator("[data-zoom-out]"), "a key zooms, too").to_be_visible()
    page.keyboard.press("-")
    page.keyboard.press("-")
    expect(page.locator("[data-zoom-out]")).to_be_hidden()


def test_every_logged_key_has_a_chart_in_the_section_of_its_prefix(
    stage: Stage, page: Page
) -> None:
    page.goto(address(stage, f"/jobs/{{{LLAMA}}}#charts"))
    page.locator("#logged").wait_for()
    groups = page.locator(".logged-group summary strong").all_inner_texts()
    assert groups == ["router", "val", "Others"]
    assert page.locator(".logged-group summary span").all_inner_texts()[:2] == ["4", "1"]
    charts = page.locator("#logged figure")
    keys = charts.evaluate_all("figures => figures.map((one) => one.dataset.key)")
    assert not {"loss", "lr", "time", "before_forward_weights_gib"} & set(keys), "these have one"
    accuracy = page.locator('figure[data-key="val/accuracy"]')
    expect(accuracy.locator("canvas"), "out of sight, nothing is drawn").to_have_count(0)
    page.click("[data-x=tokens]")
    accuracy.scroll_into_view_if_needed()
    accuracy.locator("canvas").wait_for()
    assert accuracy.locator("[data-legend] span >> nth=0").inner_text().startswith("M tokens")
    search = page.get_by_label("Find a metric by its name")
    search.fill("LOAD 3")
    assert page.locator("#logged figure:visible h3").all_inner_texts() == ["router/load/expert-3"]
    search.fill("perplexity")
    expect(page.locator("#logged .logged-group:visible")).to_have_count(0)
    expect(page.locator("[data-logged-none]")).to_contain_text("no metric of this name")


def test_the_rank_that_others_wait_for_is_named_and_leads_to_its_log(
    stage: Stage, page: Page
) -> None:
    page.goto(address(stage, f"/jobs/{{{LLAMA}}}#charts"))
    page.locator(".rank.straggler").wait_for()
    expect(page.locator("[data-ranks] .rank")).to_have_count(16)
    told = page.inner_text("[data-rank-sentence]")
    assert "Rank 11 takes" in told
    assert "GPU 3 throttles: thermal slowdown, 1,005 of 1,410 MHz." in told
    assert "slower than the others" in str(page.get_attribute(".rank.straggler", "aria-label"))
    page.click("[data-colour=max_active_gib]")
    expect(page.locator(".rank.straggler"), "of memory, none is too slow").to_have_count(0)
    page.click("[data-rank='11']")
    page.locator("[data-log] li", has_text="UserWarning").wait_for()
    expect(page.locator("[data-log-rank]")).to_have_value("11")
    page.select_option("[data-log-level]", "warning")
    wait_for(lambda: page.locator("[data-log] li").count() == 1, what="only the warning")
    expect(page.locator(".pipe svg rect.fwd")).to_have_count(4 * 8)
    # 0.13 of a step is waited, and the slow rank waits for nobody.
    assert 11 < float(page.inner_text("[data-bubble]").removesuffix(" %")) < 14
    expect(page.locator("[data-bubble-stages]")).to_contain_text("of step 3,000")
    page.click("[data-job-tabs] >> text=Charts")
    page.click("[data-colour=use_pct]")
    page.locator("[data-rank='3'] [data-value]", has_text="96 %").wait_for()
    expect(page.locator("[data-chart=gpu] canvas")).to_have_count(1)
    expect(page.locator("#preflight tbody tr")).to_have_count(5)
    page.click("[data-job-tabs] >> text=Plan")
    stages_ = page.locator("[data-stage-sum]").all_inner_texts()
    assert len(stages_) == 4
    assert all("%" in text for text in stages_)


def test_a_running_job_gives_its_nodes_up_and_says_what_that_means(
    stage: Stage, page: Page
) -> None:
    page.goto(address(stage, f"/jobs/{{{LLAMA}}}"))
    page.click("#requeue summary")
    expect(page.locator("#requeue")).to_contain_text("no failure is counted")
    with page.expect_request(lambda request: request.url.endswith("/requeue")) as sent:
        page.route("**/requeue", lambda route: route.fulfill(status=204))
        page.click("#requeue button")
    assert sent.value.method == "POST"


def test_an_agenda_is_told_by_its_stream_and_asks_for_nothing_by_itself(
    stage: Stage, page: Page
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(stage.url)))
    page.goto(address(stage, "/agendas/{agenda}"))
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.1)
    row = page.locator("#report tbody tr", has_text="lab-4-fsdp")
    expect(row).to_contain_text("400 / 2,000")
    with stage.database.write() as session:
        session.get_one(Job, stage.jobs["lab-4-fsdp"]).last_step = 401
    row.locator("td", has_text="401 / 2,000").wait_for()
    api = [path for path in asked if path.startswith("/v1/")]
    assert api == [f"/v1/agendas/{stage.agenda}/stream"]


def test_lists_are_read_again_when_they_have_changed_and_only_then(
    stage: Stage, chrome: Chrome, page: Page
) -> None:
    chrome.give_clock(page)
    with page.expect_response("**/jobs/rows?*"):
        page.goto("/jobs?search=lab-4-fsdp")
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.1)
    page.clock.run_for(4500)  # it rests after it was read
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(stage.url)))
    with stage.database.write() as session:
        session.get_one(Job, stage.jobs["lab-4-fsdp"]).reason = "Told anew."
    page.locator("#rows").get_by_text("Told anew.").wait_for()
    own = [path for path in asked if not path.startswith("/v1/jobs/")]  # the curves beside
    assert len(own) in (1, 2)
    assert all(path.startswith("/jobs/rows?") for path in own)
    with page.expect_response("**/nodes/rows*"):
        page.goto("/nodes")
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.1)
    page.clock.run_for(4500)
    with stage.database.write() as session:
        session.get_one(Node, stage.nodes["west-01"]).unreachable_since = utc_now()
    page.locator("#rows tr", has_text="west-01").get_by_text("unreachable").wait_for()


def test_the_first_error_is_found_wherever_it_lies(stage: Stage, page: Page) -> None:
    failed = next(name for name in stage.jobs if name.startswith("a-long-name"))
    page.goto(f"/jobs/{stage.jobs[failed]}")
    page.locator("[data-log] li").first.wait_for(state="attached")
    page.keyboard.press("e")
    at_a_line = "document.activeElement.matches('[data-log] li')"
    wait_for(lambda: page.evaluate(at_a_line), what="the error's line", every_s=0.1)
    assert "OutOfMemoryError" in page.evaluate("document.activeElement.textContent")
    expect(page.locator("[data-log] script")).to_have_count(0)
    page.goto(address(stage, "/jobs/{homework-4-ddp}#logs"))
    page.locator("[data-log] li").first.wait_for()
    page.click("[data-log-error]")
    page.locator("[data-log-count]", has_text="no error in these logs").wait_for()


def test_a_failed_job_opens_with_its_last_lines_and_the_way_out(stage: Stage, page: Page) -> None:
    failed = next(name for name in stage.jobs if name.startswith("a-long-name"))
    page.goto(f"/jobs/{stage.jobs[failed]}")
    card = page.locator("#failure")
    assert card.locator("mark").all_inner_texts() == ["torch.OutOfMemoryError: CUDA out of memory"]
    expect(card).to_contain_text("2 last lines of rank 2, attempt 1 on north-01")
    box = card.get_by_text("Edit and run again").bounding_box()
    assert box is not None
    assert box["y"] < 600, "in the first view"
    memory = page.locator(".tile", has_text="Peak memory")
    memory.get_by_text(", 39.4 GiB reserved, full: 3 retries, see the log").wait_for()
    card.get_by_text("Full log").click()
    page.locator("[data-log] li").nth(2).wait_for()
    assert page.get_attribute("[data-job-tabs] [aria-current]", "href") == "#logs"
    page.go_back()
    card.wait_for()
    card.get_by_text("Edit and run again").click()
    page.wait_for_url("**/jobs/new?clone=*")


def test_a_line_is_linked_folded_sought_and_downloaded(stage: Stage, page: Page) -> None:
    glog = "I1122 10:00:00.123 77 Handler.cpp:52] profiler_start"
    lines = [glog if number % 100 < 3 else f"line {number} of {2000}" for number in range(2000)]
    lines[40] = "the needle <b>"
    with stage.database.write() as session:
        job = stages.add_job(stage, session, stages.HOMEWORK, spec={"name": "printed"})
        start = utc_now() - stages.HOUR
        attempt = stages.add_attempt(stage, session, job, node="north-01", start=start)
        stages.add_log(session, attempt, lines, rank=0)
    path = address(stage, "/jobs/{printed}")
    page.goto(f"{path}#logs")
    rows = page.locator("[data-log] li[data-line]")
    wait_for(lambda: rows.count() == 500, what="the last lines")
    folds = page.locator("[data-log] .fold button")
    expect(folds.first).to_have_text("3 lines of frameworks")
    noise = page.locator("[data-log] .noise")
    expect(noise.first).to_be_hidden()
    folds.first.click()
    expect(noise.first).to_be_visible()

    search = page.get_by_label("Search the logs")
    search.fill("line 19")
    search.press("Enter")
    search.press("Enter")
    found = page.locator("[data-log] .current")
    expect(found.locator("span").last).to_have_text("line 1904 of 2000")
    expect(page.locator("[data-log-matches]")).to_have_text("2 of 97")
    search.fill("the needle")
    search.press("Enter")  # it is not among the lines that are shown
    page.locator("[data-log] .current", has_text="the needle <b>").wait_for()
    expect(page.locator("[data-log] b")).to_have_count(0)
    expect(page.locator("[data-log-count]")).to_contain_text("not the newest")

    page.locator("[data-log] li.current .n").click()
    assert page.url.endswith("?line=1.0.stdout.40#logs")
    page.goto("about:blank")
    page.goto(f"{path}?line=1.0.stdout.700#logs")
    picked = page.locator("[data-log] .picked")
    picked.wait_for()
    expect(picked.locator(".n")).to_have_text("701")
    expect(picked.locator("time")).to_be_hidden()
    page.click(".logs summary")
    page.get_by_label("Times").check()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", picked.locator("time").inner_text())
    page.get_by_label("Wrap long lines").check()
    page.get_by_role("button", name="Full screen").click()
    box = page.locator(".logs").bounding_box()
    assert box is not None
    assert (box["x"], box["y"], box["width"]) == (0, 0, 1280)
    page.keyboard.press("Escape")
    page.click(".logs summary")
    with page.expect_download() as download:
        page.get_by_text("Download all lines").click()
    text = Path(download.value.path()).read_text().splitlines()
    assert [line.partition("stdout: ")[2] for line in text] == lines


@pytest.mark.slow
def test_eight_ranks_that_print_a_hundred_lines_a_second_lose_none(
    stage: Stage, page: Page
) -> None:
    """For ten seconds; meanwhile the page obeys."""
    ranks, rounds, lines = range(8), 100, 10
    with stage.database.write() as session:
        job = stages.add_job(stage, session, stages.HOMEWORK, spec={"name": "loud"})
        job.state = JobState.RUNNING
        attempt = stages.add_attempt(stage, session, job, node="north-01", start=utc_now())
        attempt_id = attempt.id
    page.goto(address(stage, "/jobs/{loud}"))
    wait_for(lambda: page.inner_text("#line") == "live", what="the stream", every_s=0.1)
    sizes = dict.fromkeys(ranks, 0)
    for number in range(rounds):
        with stage.database.write() as session:
            for rank in ranks:
                content = "".join(
                    f"rank {rank} says {number * lines + one}\n" for one in range(lines)
                )
                log_store.append(
                    session,
                    [Piece(attempt_id, rank, "stdout", sizes[rank], content)],
                    now=utc_now(),
                )
                sizes[rank] += len(content)
        if number % 20 == 0:
            tab = "Charts" if number % 40 else "Logs"
            page.click(f"[data-job-tabs] >> text={tab}")
            page.locator("[data-job-tabs] [aria-current]", has_text=tab).wait_for()
        page.wait_for_timeout(100)  # the pace of the lines
    shown = page.locator("[data-log] li > span:last-child")
    last = [f"rank {rank} says {rounds * lines - 1}" for rank in ranks]
    wait_for(lambda: set(last) <= set(shown.all_inner_texts()), what="the last lines", every_s=0.5)
    seen = defaultdict(list)
    for text in shown.all_inner_texts():
        _, rank, _, one = text.split()
        seen[rank].append(int(one))
    assert len(seen) == 8
    for numbers in seen.values():
        assert numbers == list(range(numbers[0], rounds * lines)), "none is missing, none twice"
        assert len(numbers) > 300, "the page keeps the last 3,000"


def test_form_and_yaml_are_two_views_of_one_spec(stage: Stage, page: Page) -> None:
    page.goto("/jobs/new")
    ready = page.locator("[data-submit]:not([disabled])")
    ready.wait_for()
    page.fill("[data-field='training.steps']", "1234")
    page.select_option("[data-field='parallelism.strategy']", "fsdp")
    page.fill("[data-field='parallelism.data_parallel_replicate_degree']", "")
    page.locator("#plan dd", has_text="fsdp, 4 ranks").wait_for()
    page.click("[data-view=yaml]")
    text = page.input_value("[data-spec]")
    assert "steps: 1234" in text
    assert "strategy: fsdp" in text
    assert "replicate" not in text
    page.fill("[data-spec]", text.replace("steps: 1234", "steps: 0"))
    page.locator("#plan [data-param='training.steps']").wait_for()
    page.click("[data-view=form]")
    steps = page.locator("[data-field='training.steps']")
    wait_for(lambda: steps.get_attribute("aria-invalid") == "true", what="the field to be marked")
    assert page.inner_text("[data-error='training.steps']").startswith("must be at least 1")
    expect(page.locator("[data-submit]")).to_be_disabled()
    page.click("[data-view=yaml]")
    page.fill("[data-spec]", "name: [")
    page.locator("#plan [data-state=bad]").wait_for()
    page.click("[data-view=form]")
    page.locator("#spec-fields", has_text="The YAML cannot be read").wait_for()


@pytest.mark.parametrize("is_planned", [False, True])
def test_what_is_typed_while_the_fields_are_read_anew_stays(
    stage: Stage, page: Page, is_planned: bool
) -> None:
    """The answer of a slow server shows the fields as they were before."""
    page.goto("/jobs/new")
    page.locator("[data-submit]:not([disabled])").wait_for()
    late: list[Route] = []

    def hold_first(route: Route) -> None:
        if late:
            route.continue_()
        late.append(route)

    page.route("**/jobs/new/fields", hold_first)
    page.select_option("[data-field='parallelism.strategy']", "fsdp")
    wait_for(lambda: page.title() != "" and len(late) > 0, what="the reading of the fields")
    page.fill("[data-field='training.steps']", "1234")
    if is_planned:
        page.locator("#plan:not(.old) [data-submit]:not([disabled])").wait_for()
        expect(page.locator("[data-spec]")).to_have_value(re.compile("steps: 1234"))
    late[0].continue_()
    degree = page.locator("[data-field='parallelism.data_parallel_shard_degree']")
    expect(degree).to_be_enabled()
    expect(page.locator("[data-field='training.steps']")).to_have_value("1234")
    page.locator("[data-submit]:not([disabled])").wait_for()
    both = re.compile("steps: 1234.*strategy: fsdp", re.DOTALL)
    expect(page.locator("[data-spec]")).to_have_value(both)
    expect(page.locator("[data-field='training.steps']")).to_have_value("1234")


def test_the_form_shows_what_is_used_and_says_what_it_is(stage: Stage, page: Page) -> None:
    page.goto("/jobs/new?example=gpt-zero2")
    page.locator("[data-submit]:not([disabled])").wait_for()
    expect(page.locator(".reason strong")).to_contain_text("ZeRO")
    tensor = page.locator("[data-field='parallelism.tensor_parallel_degree']")
    expect(tensor, "zero2 has one axis").to_have_count(0)
    hint = page.locator("[id='f-training-warmup_steps-hint']")
    expect(hint).to_be_hidden()
    page.focus("[data-field='training.warmup_steps']")
    expect(hint).to_contain_text("rises from zero")
    page.focus("[data-field='parallelism.strategy']")
    page.select_option("[data-field='parallelism.strategy']", "fsdp")
    tensor.wait_for()
    assert page.evaluate("document.activeElement.dataset.field") == "parallelism.strategy"
    page.get_by_label("Help about parallelism").evaluate("(link) => link.removeAttribute('target')")
    page.get_by_label("Help about parallelism").click()
    page.wait_for_url("**/help/strategies/README")
    page.locator("article h1").wait_for()


def test_advice_is_applied_to_the_spec(stage: Stage, page: Page) -> None:
    page.goto("/jobs/new")
    page.click("[data-view=yaml]")
    page.fill("[data-spec]", stages.LLAMA.replace("nodes: 2", "nodes: 1, node_class: a100x4"))
    page.locator("#plan .verdict[data-state=bad]").wait_for()
    page.fill(
        "[data-spec]",
        stages.HOMEWORK.replace("layers: 12, width: 768", "layers: 48, width: 1536").replace(
            "global_batch_size: 32", "global_batch_size: 128"
        ),
    )
    apply = page.locator("[data-apply]").first
    expect(apply, "beside the verdict").to_be_in_viewport()
    before = page.input_value("[data-spec]")
    apply.click()
    wait_for(lambda: page.input_value("[data-spec]") != before, what="the changed spec")


def on_day(page: Page, day: int) -> None:
    """Open the calendar on the n-th day from today."""
    page.goto("/calendar")
    chosen = page.locator("[data-week-grid] [data-day]").nth(day)
    chosen.click()
    chosen.and_(page.locator("[aria-pressed=true]")).wait_for()
    page.wait_for_load_state("networkidle")  # the day is drawn once more with what is refused
    page.locator("[data-lane=south-01] .cell").nth(5).wait_for()


def test_a_click_asks_and_a_button_books_and_the_lease_is_extended_and_given_back(
    stage: Stage, page: Page
) -> None:
    on_day(page, 4)
    page.locator("[data-lane=south-01] .cell").nth(5).click()
    page.locator("[data-verdict] [data-state=good]").wait_for()
    expect(page.locator("[data-book-usable]")).to_contain_text("05:00 to 05:55")
    page.select_option("[data-book-hours]", "2")
    page.locator("[data-book-usable]", has_text="05:00 to 06:55").wait_for()
    page.locator("[data-book-now]:not([disabled])", has_text="Book 2 h").click()
    page.locator("[data-lease-answer] [data-state=good]").wait_for()
    mine = page.locator("[data-lane=south-01] .lease.mine")
    mine.wait_for()
    lease = str(mine.get_attribute("data-lease"))
    page.click(f"[data-extend={lease}]")
    page.locator("[data-lease-answer]", has_text="Extended until 07:55").wait_for()
    page.click(f"[data-own={lease}] summary")
    page.click(f"[data-release={lease}]")
    page.locator("[data-lease-answer]", has_text="Lease released").wait_for()
    mine.wait_for(state="detached")


def test_a_day_is_chosen_before_an_hour_and_work_follows_the_booking(
    stage: Stage, page: Page
) -> None:
    on_day(page, 5)
    page.get_by_label("Length").select_option("1")
    page.click("[data-any] button")
    starts = page.locator("[data-any-found] li")
    wait_for(lambda: starts.count() > 1, what="the starts")
    expect(starts.first).to_contain_text("for 1 h")
    starts.nth(1).get_by_role("button").click()
    page.locator("[data-book-now]:not([disabled])", has_text="Book 1 h").click()
    answer = page.locator("[data-lease-answer]")
    answer.get_by_text("Booked:").wait_for()
    with page.expect_download() as download:
        answer.get_by_text("Add to my calendar").click()
    text = Path(download.value.path()).read_text()
    assert "BEGIN:VEVENT" in text
    lease = download.value.suggested_filename.removesuffix(".ics")
    answer.get_by_text("Run a job in it").click()
    page.wait_for_url(f"**/jobs/new?lease={lease}")
    chosen = page.locator("[data-field=lease]")
    expect(chosen).to_have_value(lease)
    on_day(page, 5)
    page.click("[data-any] button")  # ada has as many open leases as she may
    refused = page.locator("[data-any-found] li")
    wait_for(lambda: "open leases" in refused.first.inner_text(), what="the reason")
    expect(refused).to_have_count(1)
    page.goto("/calendar")
    page.click(f"[data-own={lease}] summary")
    page.click(f"[data-release={lease}]")
    page.locator("[data-lease-answer]", has_text="Lease released").wait_for()


def test_on_a_phone_the_booking_form_is_where_the_thumb_is(stage: Stage, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    on_day(page, 5)
    page.locator("[data-lane=south-01] .cell").nth(8).click()
    page.locator("[data-verdict] .verdict").wait_for()
    box = page.locator("[data-book]").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] == 844, "a sheet at the foot"
    assert box["y"] > 150
    expect(page.locator("[data-book-now]")).to_be_visible()
    page.click("[data-book-close]")
    expect(page.locator("[data-book-form]")).to_be_hidden()


def test_hours_are_dragged_and_chosen_by_keys(stage: Stage, page: Page) -> None:
    on_day(page, 5)
    cells = page.locator("[data-lane=south-01] .cell")
    cells.nth(8).hover(position={"x": 4, "y": 10})  # tries again where the day is drawn meanwhile
    page.mouse.down()
    cells.nth(11).hover(position={"x": 4, "y": 10})
    page.mouse.up()
    page.locator("[data-book-usable]", has_text="08:00 to 11:55").wait_for()
    expect(page.locator("[data-lane=south-01] .cell.pick")).to_have_count(4)
    cells.nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowRight")
    page.locator("[data-book-usable]", has_text="03:00 to 04:55").wait_for()
    expect(page.locator("[data-book-title]")).to_have_text("Book north-02")


def test_of_two_who_want_an_hour_one_gets_it_and_the_other_is_told(
    stage: Stage, chrome: Chrome, page: Page
) -> None:
    other = opened(stage, chrome, "student-17")
    theirs = next(other)
    for one in (page, theirs):
        on_day(one, 6)
        one.locator("[data-lane=south-01] .cell").nth(9).click()
        one.locator("[data-book-now]:not([disabled])").wait_for()
    theirs.click("[data-book-now]")
    theirs.locator("[data-lease-answer] [data-state=good]").wait_for()
    page.click("[data-book-now]")
    page.locator("[data-lease-answer] [data-state=bad]").wait_for()
    page.locator("[data-lane=south-01] .lease", has_text="student-17").wait_for()
    theirs.locator("[data-lane=south-01] .lease.mine").wait_for()  # once its day is drawn anew
    with pytest.raises(StopIteration):
        next(other)
    # Whoever is no staff sees that an hour is taken, not by whom.
    again = opened(stage, chrome, "student-22")
    third = next(again)
    on_day(third, 6)
    third.locator("[data-lane=south-01] .lease.anon", has_text="taken").wait_for()
    assert "student-17" not in third.inner_text("main")
    again.close()


def test_a_node_is_found_drained_and_resumed_and_the_open_menu_stays(
    stage: Stage, page: Page
) -> None:
    page.goto("/nodes")
    page.keyboard.press("/")
    page.keyboard.type("a100x4 ready")
    shown = page.locator("#rows tr:visible")
    expect(shown).to_have_count(3)
    lost = page.locator(f"#row-{stage.nodes['north-02']}")
    expect(lost).to_contain_text("GPU 1 lost")
    expect(lost).to_contain_text("Reboot the node")
    lost.locator("summary", has_text="each GPU").click()
    expect(lost).to_contain_text("GPU 2: 1,395 of 1,410 MHz, 63 °C, 287 of 400 W, PCIe 4 x16")
    page.click("[data-filter-class=h100x8]")
    expect(shown).to_have_count(0)
    page.fill("[data-filter]", "east-02")
    row = page.locator(f"#row-{stage.nodes['east-02']}")
    row.locator(".menu summary").click()
    with page.expect_response("**/nodes/rows"), stage.database.write() as session:
        session.get_one(Node, stage.nodes["east-02"]).last_seen_at = utc_now()
    wait_for(lambda: row.locator(".menu[open]").count() == 1, what="the menu to stay open")
    row.locator("a", has_text="Drain").click()
    expect(page.locator("h1")).to_have_text("Drain east-02?")
    expect(page.locator(".question")).to_contain_text("1 running job of 1 person")
    page.click("button:has-text('Drain east-02')")
    assert page.inner_text("h1") == "Drain east-02?", "not without a reason"
    page.fill("#reason", "a disk is swapped")
    page.click("button:has-text('Drain east-02')")
    page.locator(f"#row-{stage.nodes['east-02']} .badge", has_text="draining").wait_for()
    expect(row).to_contain_text("Reason: a disk is swapped.")
    page.click("button:has-text('Undo')")
    page.locator(f"#row-{stage.nodes['east-02']} .badge[data-state=ready]").wait_for()
    closed = row.bounding_box()
    row.locator(".menu summary").click()
    opened_ = row.bounding_box()
    assert closed is not None
    assert opened_ is not None
    assert closed["height"] == opened_["height"], "an open menu floats over the rows"


def test_what_is_taken_can_be_waited_for_and_the_calendar_subscribed_to(
    stage: Stage, page: Page
) -> None:
    on_day(page, 3)
    page.click("[data-week-grid] [data-day] >> nth=1")
    page.wait_for_load_state("networkidle")
    page.locator("[data-taken]").first.click()
    page.locator("[data-verdict] [data-state=bad]").wait_for()
    page.click("[data-wait-now]")
    page.locator("[data-lease-answer]", has_text="You are on the waitlist").wait_for()
    page.locator("[data-waits] li").wait_for()
    page.click("[data-leave]")
    page.locator("[data-waits-card]").wait_for(state="hidden")
    page.click("[data-feed]")
    address_ = page.locator("[aria-label='Calendar address']")
    address_.wait_for()
    assert ".ics" in address_.input_value()
    page.goto("/account")
    page.click("[aria-label='Calendar feeds'] button")
    page.locator("[aria-label='Calendar feeds']").wait_for(state="detached")


def test_a_lease_on_a_node_that_takes_no_work_says_so(stage: Stage, chrome: Chrome) -> None:
    theirs = opened(stage, chrome, "student-17")
    page = next(theirs)
    page.goto("/calendar")
    page.locator("[data-mine]", has_text="cpu-01 is draining").wait_for()
    held: list[Route] = []  # what tells the states of nodes comes after one's leases
    page.route("**/v1/leases/stream", lambda route: held.append(route))
    page.goto("/calendar")
    page.locator("[data-own]", has_text="cpu-01").wait_for()
    assert "draining" not in page.inner_text("[data-mine]")
    for route in held:
        route.continue_()
    page.locator("[data-mine]", has_text="cpu-01 is draining").wait_for()
    theirs.close()


def test_days_have_23_24_or_25_hours(page: Page) -> None:
    page.goto("/calendar")
    found = page.evaluate(
        """async () => {
          const { hoursOf, hourLabel, dayNote } = await import("/static/calendar/hours.js");
          return [[2026, 2, 8], [2026, 2, 9], [2026, 10, 1]].map(([year, month, day]) => {
            const date = new Date(year, month, day);
            const hours = hoursOf(date);
            const labels = hours.slice(0, 4).map((at) => hourLabel(at, hours));
            return [hours.length, labels, dayNote(date, new Date(2026, 2, 9, 12))];
          });
        }"""
    )
    minus = "\u2212"
    assert found == [
        [23, ["00", "01", "03", "04"], f"23 h, to {minus}04:00"],
        [24, ["00", "01", "02", "03"], "today"],
        [25, ["00", f"01 {minus}04:00", f"01 {minus}05:00", "02"], f"25 h, to {minus}05:00"],
    ]


def test_a_value_alone_is_a_point(page: Page) -> None:
    page.goto("/jobs")
    found = page.evaluate(
        """async () => {
          const { alone } = await import("/static/charts/options.js");
          const of = (...values) => alone({ data: [values.map((_, at) => at), values] }, 1);
          return [of(0.3), of(null, 0.3, null, 0, 1, null, 2), of(1, 2), of(null)];
        }"""
    )
    assert found == [[0], [1, 6], [], []]


def test_moments_in_sentences_of_the_server_are_in_the_viewers_zone(page: Page) -> None:
    page.goto("/jobs")
    told = page.evaluate(
        """async () => {
          const { inZone } = await import("/static/times.js");
          const now = new Date("2026-03-05T20:00:00Z");
          return [
            "Starts at 22:28 UTC, when north-01 is free.",
            "Held from Sat 28 Mar 12:00 UTC to 14:55 UTC.",
            "Booked from Sun 2026-03-08 23:00 +00:00 to Mon 2026-03-09 02:00 +00:00.",
            "Rank 3 wrote 12:30 and stopped.",
          ].map((sentence) => inZone(sentence, now));
        }"""
    )
    minus = "\u2212"
    assert told == [
        f"Starts at 17:28 ({minus}05:00), when north-01 is free.",
        f"Held from Sat 28 Mar, 08:00 ({minus}04:00) to 10:55 ({minus}04:00).",
        f"Booked from Sun 19:00 ({minus}04:00) to Sun 22:00 ({minus}04:00).",
        "Rank 3 wrote 12:30 and stopped.",
    ]


def test_a_clean_up_is_previewed_applied_and_undone(stage: Stage, page: Page) -> None:
    page.goto("/admin/cleanups")
    for box in page.locator("[name=wrong]").all():
        box.uncheck()
    page.fill("#user", "student-22")
    page.fill("#node", "south-01")
    page.fill("#reason", "Unit 4 is over; <b>freeing</b> blocks for the resit.")
    page.click("button:has-text('Preview')")
    page.wait_for_url("**/admin/cleanups/*")
    remove = page.locator("[data-remove]")
    expect(remove, "nobody has read the rows").to_be_disabled()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.check("[data-read]")
    assert remove.inner_text().split() == ["Remove", "1", "lease"]
    page.uncheck("[data-row]")
    expect(remove).to_be_disabled()
    page.check("[data-row]")
    remove.click()
    page.locator("h2", has_text="Applied").wait_for()
    expect(page.locator("td .glyph", has_text="removed")).to_have_count(1)
    expect(page.locator("b", has_text="freeing"), "a reason is text").to_have_count(0)
    page.click("button:has-text('Undo')")
    page.locator("h2", has_text="Undone").wait_for()
    expect(page.locator("td .glyph", has_text="booked again")).to_have_count(1)
    page.goto("/admin/audit")
    expect(page.locator("tbody")).to_contain_text("cleanup")


def test_rules_are_tried_before_they_hold_and_then_refuse_with_what_is_left(
    stage: Stage, chrome: Chrome, page: Page
) -> None:
    page.goto("/admin/policies")
    page.locator("#policy-plan [data-apply-policy]:not([disabled])").wait_for()
    page.fill("[data-policy]", "policy: {id: x, zone: Nowhere/At-All}")
    page.locator("#policy-plan [data-state=bad]").wait_for()
    expect(page.locator("[data-apply-policy]")).to_be_disabled()
    page.fill("[data-policy]", stages.policy_text())
    page.locator("#policy-plan strong", has_text="course-ml becomes version 1").wait_for()
    page.locator("[data-apply-policy]:not([disabled])").click()
    page.wait_for_url("**/admin/policies?id=course-ml")
    try:
        changed = ("max_hours: 8", "max_hours: 7"), ("version: 1", "version: 2")
        later = stages.policy_text()
        for change in changed:
            later = later.replace(*change)
        page.fill("[data-policy]", later)
        page.locator("#policy-plan strong", has_text="course-ml becomes version 2").wait_for()
        rows = len(page.input_value("[data-policy]").split("\n"))
        assert page.inner_text(".line-numbers").split() == [str(n + 1) for n in range(rows)]
        page.locator("[data-apply-policy]:not([disabled])").click()
        page.locator("h1 + .sub", has_text="version 2").wait_for()
        page.wait_for_load_state()  # with its script, which sends what is chosen
        page.select_option("[name=with]", "1")
        page.locator("h2", has_text="From version 1 to version 2").wait_for()
        for kind, text in (("ins", later), ("del", stages.policy_text())):
            lines = page.locator(f".changes {kind}").all_inner_texts()
            assert lines == [text.splitlines()[0], text.splitlines()[-1]]
        page.wait_for_load_state()
        page.select_option("[name=version]", "1")
        page.locator(".head strong", has_text="Version 1 was applied").wait_for()
        their_page = opened(stage, chrome, "student-04")
        theirs = next(their_page)
        on_day(theirs, 5)
        cells = theirs.locator("[data-lane=east-01] .cell")
        cells.nth(8).hover(position={"x": 4, "y": 10})
        theirs.mouse.down()
        cells.nth(11).hover(position={"x": 4, "y": 10})
        theirs.mouse.up()
        theirs.locator("[data-verdict] [data-state=bad]", has_text="3 hours").wait_for()
        expect(theirs.locator("[data-book-now]")).to_be_disabled()
        assert theirs.locator("[data-left] li").count() > 0
        expect(theirs.locator("[data-left-policy]")).to_contain_text("course-ml")
        theirs.locator("[data-windows] li", has_text="east, north").wait_for()
        their_page.close()
    finally:
        page.evaluate("fetch('/v1/policies/course-ml', {method: 'DELETE'}).then((a) => a.status)")


def test_people_are_invited_and_change_how_they_are_told(stage: Stage, page: Page) -> None:
    page.goto("/admin/people")
    page.fill("#email", "new@example.org")
    page.click("text=Create link")
    assert "/invite" in page.input_value("[aria-label='The link']")
    page.reload()
    expect(page.locator("[aria-label='The link']")).to_have_count(0)  # nor is another one made
    expect(page.locator("td, th", has_text="new@example.org")).to_have_count(1)
    someone = page.locator("tr", has_text="student-22")
    someone.locator("summary").click()
    someone.get_by_text("Disable student-22").click()
    expect(page.locator("h1")).to_have_text("Disable the account of student-22?")
    page.fill("#reason", "left the course")
    page.click("button:has-text('Disable student-22')")
    someone.locator(".badge", has_text="disabled").wait_for()
    page.click("button:has-text('Undo')")
    someone.locator(".badge").wait_for(state="detached")
    someone.locator("summary").click()
    someone.locator("select").select_option("staff")
    someone.get_by_text("Set role").click()
    expect(page.locator("h1")).to_have_text("Give student-22 the role staff?")
    page.click("text=Back")
    page.goto("/account")
    page.select_option("#every", "digest")
    page.click("text=By type")
    page.select_option("[name^='kind.'] >> nth=0", "off")
    page.click("[aria-label='Notifications'] button:has-text('Save')")
    page.locator("[role=status]", has_text="Saved.").wait_for()
    expect(page.locator("#every")).to_have_value("digest")
    page.fill("#zone", "Mars/Base")
    page.click("[aria-label='Time zone'] button")
    page.locator("[role=alert]", has_text="Mars/Base").wait_for()


def test_a_choice_before_the_pages_script_is_there_counts_and_going_back_undoes_it(
    stage: Stage, page: Page
) -> None:
    held: list[Route] = []
    page.route(re.compile(r"/page\.js"), lambda route: held.append(route), times=1)
    with page.expect_request(re.compile(r"/page\.js")):
        page.goto("/jobs", wait_until="commit")
    page.select_option("[name=order]", "loss")
    assert "order" not in page.url
    held.pop().continue_()
    page.wait_for_url("**order=loss*")
    page.wait_for_load_state()
    page.go_back()
    page.wait_for_load_state()
    page.wait_for_timeout(300)  # time in which a page that sends its form would go
    assert "order" not in page.url


@pytest.mark.slow
def test_ten_thousand_jobs_do_not_slow_the_list(stage: Stage, page: Page) -> None:
    stages.add_many(stage, 10_000)
    page.goto("/jobs")
    expect(page.locator("#rows tr[id]")).to_have_count(25)
    page.click("text=Older jobs")
    page.wait_for_url("**after=*")
    page.select_option("[name=order]", "loss")
    page.wait_for_url("**order=loss*")
    took = page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
    assert took < 2000, "milliseconds, on a machine that does other things too"
    wait_for(
        lambda: (
            page.locator("[data-spark]").count() == 0
            or page.locator("[data-spark] path[d^=M]").count() > 0
        ),
        what="a loss",
    )
