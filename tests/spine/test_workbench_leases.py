"""Workbenches and the clock of their lease: asked for ahead, ready at its start, over with it."""

import logging
from collections.abc import Iterator
from datetime import timedelta

import httpx2
import pytest
from playwright.sync_api import Page as PlaywrightPage
from playwright.sync_api import Playwright, expect, sync_playwright
from websockets.exceptions import InvalidStatus

from core.base.clock import utc_now
from tests import chromium
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import attempts, get, submit, wait_for_end
from tests.spine.short_leases import GRACE_S, book_soon, cut
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.xdist_group("workbenches"),
]
WARM_S, LEAD_S = 5.0, 40.0
log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform() as running:
        yield running


def ahead(client: httpx2.Client, lease: str, *, kind: str = "terminal") -> str:
    """Ask for a workbench in a lease that has not begun."""
    body = {
        "name": kind,
        "workbench": {"kind": kind},
        "resources": {"wall_time": "24h"},
        "lease": lease,
    }
    job = submit(client, body)
    assert get(client, job)["state"] in ("queued", "starting")  # the lease may begin meanwhile
    return job


def lease_state(client: httpx2.Client, lease: str) -> str:
    """The state of a lease."""
    return str(client.get(f"/v1/leases/{lease}").raise_for_status().json()["state"])


def test_it_is_ready_at_its_lease_s_start_and_ends_with_it_and_the_next_one_finds_its_files(
    platform: Running,
) -> None:
    with platform.http() as client:
        lease, start = book_soon(platform, starts_in_s=2)
        job = ahead(client, lease)
        wait_for(lambda: get(client, job)["state"] == "running", what="the workbench")
        with Looking.at(platform, job) as look:
            look.wait_for("$ ")
            took_s = (utc_now() - start).total_seconds()
            assert 0 < took_s <= WARM_S, f"{took_s:.1f} s from the lease's start to the prompt"
            look.type("echo kept > ~/mine; echo do''ne\n")
            look.wait_for("done")
            end = cut(platform, lease, usable_s=4)
            look.wait_for_end()
        ended = wait_for_end(client, job)
        assert (ended["state"], ended["reason_code"]) == ("cancelled", "lease_ended")
        assert utc_now() < end + timedelta(seconds=GRACE_S)
        wait_for(lambda: lease_state(client, lease) == "ended", what="the lease's end")
        lease, start = book_soon(platform, starts_in_s=1)
        job = ahead(client, lease)
        wait_for(lambda: get(client, job)["state"] == "running", what="the next workbench")
        with Looking.at(platform, job) as look:
            look.type("cat ~/mine\n")
            look.wait_for("kept\r\n")
        client.post(f"/v1/leases/{lease}/release").raise_for_status()
        wait_for(lambda: lease_state(client, lease) == "ended", what="the lease's end")
        assert wait_for_end(client, job)["state"] == "cancelled"


def test_on_a_free_node_it_has_started_before_its_lease_and_nobody_enters_before_it(
    platform: Running,
) -> None:
    kind = "terminal" if why_not_installed() else "jupyter"
    with platform.http() as client:
        lease, start = book_soon(platform, starts_in_s=LEAD_S)
        job = ahead(client, lease, kind=kind)
        wait_for(lambda: get(client, job)["state"] == "running", what="its early start")
        assert utc_now() < start, "the machine was too busy to start it so early"
        assert lease_state(client, lease) == "booked"
        [listed] = client.get("/v1/workbenches").json()["data"]
        assert not listed["can_be_entered"]
        with pytest.raises(InvalidStatus) as refused:
            Looking.at(platform, job)
        assert refused.value.response.status_code == 409
        if kind == "jupyter":
            refusal = client.post(f"/v1/workbenches/{job}/entry")
            assert (refusal.status_code, refusal.json()["code"]) == (409, "not_yet")

        def entered() -> Looking | None:
            try:
                return Looking.at(platform, job)
            except InvalidStatus:
                return None

        with wait_for(entered, what="its lease") as look:
            look.wait_for("$ ")
            took_s = (utc_now() - start).total_seconds()
            log.info("prompt of a %s %.2f s after the lease's start", kind, took_s)
            assert 0 < took_s <= WARM_S
        if kind == "jupyter":
            client.post(f"/v1/workbenches/{job}/entry").raise_for_status()
        assert [one["epoch"] for one in attempts(client, job)] == [1]
        client.post(f"/v1/leases/{lease}/release").raise_for_status()
        wait_for(lambda: lease_state(client, lease) == "ended", what="the lease's end")


@pytest.mark.browser
def test_the_next_lease_opens_jupyterlab_with_the_same_notebook_open(platform: Running) -> None:
    if why := why_not_installed() or ("" if chromium.find() else "there is no Chromium here"):
        pytest.skip(why)
    with platform.http() as client, sync_playwright() as playwright:
        lease, _ = book_soon(platform, starts_in_s=1)
        page = sit_down(playwright, client, ahead(client, lease, kind="jupyter"), platform)
        page.click(".jp-LauncherCard[data-category=Notebook]")
        page.wait_for_selector("text=Python 3 | Idle")
        page.click(".jp-NotebookPanel .cm-content >> nth=0")
        page.keyboard.type("answer = 42")
        page.wait_for_timeout(1500)  # JupyterLab sends its layout a second after it has changed
        cut(platform, lease, usable_s=3)
        wait_for(lambda: lease_state(client, lease) == "ended", what="the lease's end")
        lease, _ = book_soon(platform, starts_in_s=1)
        page = sit_down(playwright, client, ahead(client, lease, kind="jupyter"), platform)
        expect(page.locator(".jp-NotebookPanel .cm-content")).to_contain_text("answer = 42")
        expect(page.locator(".lm-TabBar-tab.jp-mod-current")).to_contain_text("Untitled.ipynb")


def sit_down(
    playwright: Playwright, client: httpx2.Client, job: str, platform: Running
) -> PlaywrightPage:
    """Open the JupyterLab of a workbench in a browser that knows nothing of an earlier one."""
    wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab")
    page = playwright.chromium.launch(executable_path=chromium.find()).new_page()
    page.set_default_timeout(60_000)
    page.goto(client.post("/v1/me/login-link").raise_for_status().json()["url"])
    page.click("button[type=submit]")
    page.wait_for_url("**/jobs")
    page.goto(f"{platform.url}/workbenches")
    page.click("text=Open JupyterLab")
    page.wait_for_selector("#jp-top-panel")
    return page
