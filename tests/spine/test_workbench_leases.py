"""Workbenches and the clock of their lease: asked for ahead, ready at its start, over with it."""

from collections.abc import Iterator
from datetime import timedelta

import httpx2
import pytest
from playwright.sync_api import Page as PlaywrightPage
from playwright.sync_api import Playwright, expect, sync_playwright

from core.base.clock import utc_now
from tests import chromium
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, submit, wait_for_end
from tests.spine.short_leases import GRACE_S, book_soon, cut
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.xdist_group("workbenches"),
]
WARM_S = 5.0


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
    assert get(client, job)["state"] == "queued"
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
