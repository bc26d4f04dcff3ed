"""A dashboard over an API that answers from documents, and a browser's session on it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from starlette.testclient import TestClient

from tests import chromium
from tests.dashboard.fake_api import COOKIE, WORKSPACE, FakeApi, me
from tests.dashboard.stage import OPENAPI, Stage, raised

CHOICES = {
    "every": "mail",
    "kinds": {"lease_soon": "off"},
    "known_kinds": ["lease_soon", "test"],
    "email": "ada@example.org",
    "webhook": None,
    "digest_at": "07:00",
    "zone": "UTC",
}
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]
# A refusal that the page tells, or waits out, is no fault; the browser notes it all the same.
TOLD = re.compile(r"the server responded with a status of (401|409|422|503)")
_KEPT = ExitStack()
"""What the browser that is kept from file to file has open."""


@pytest.fixture
def api() -> FakeApi:
    """Ada is signed in and has nothing yet."""
    fake = FakeApi()
    fake.put("/v1/me", me())
    for path in ("jobs", "nodes", "leases", "datasets", "uploads", "tokens", "sessions"):
        fake.put(f"/v1/{path}", [])
    for path in ("studies", "agendas", "templates"):
        fake.put(f"/v1/{path}", [])
    nothing = {"node_class": None, "nodes": 0, "hours": [], "lengths": []}
    fake.put("/v1/leases/availability", nothing)
    fake.put("/v1/openapi.json", json.loads(OPENAPI.read_text()))
    fake.put("/v1/me/notifications/choices", CHOICES)
    fake.put("/v1/me/notifications", [])
    fake.put("/v1/workspace", WORKSPACE)
    for path in ("files", "snapshots"):
        fake.put(f"/v1/workspace/{path}", [])
    fake.put("/v1/client", {"version": "1.0+trainyard", "command": "pip install URL#sha256=ab"})
    fake.put("/v1/calendars", [])
    fake.put("/v1/sessions/oidc", {"name": None})
    return fake


@pytest.fixture
def browser_of(api: FakeApi, one_loop: None) -> Iterator[Callable[..., TestClient]]:
    """Makes a client that behaves like a browser; it does not follow redirects."""
    opened: list[TestClient] = []

    def open_one(*, cookie: str = COOKIE) -> TestClient:
        client = TestClient(
            api.app(),
            base_url="http://127.0.0.1:8471",
            follow_redirects=False,
            client=("192.0.2.7", 50000),
        )
        client.headers.update({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8471"})
        if cookie:
            client.cookies.set(*cookie.split("=", 1))
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def page(browser_of: Callable[..., TestClient]) -> TestClient:
    """Ada's browser."""
    return browser_of()


class Chrome:
    """A headless Chromium that notes what any page in it complains about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._profiles: dict[str, BrowserContext] = {}
        self.complaints: list[str] = []

    def new_context(self, **options: Any) -> BrowserContext:
        """A profile of its own; all its pages are watched."""
        context = self._browser.new_context(**options)
        context.on("weberror", lambda found: self.complaints.append(str(found.error)))
        context.on("console", self._note)
        return context

    def page_of(self, stage: Stage, name: str) -> Page:
        """A page of this person, who has just signed in; scripts and styles are known already."""
        if name not in self._profiles:
            self._profiles[name] = self.new_context(
                base_url=stage.url,
                viewport={"width": 1280, "height": 900},
                timezone_id="America/New_York",
                reduced_motion="reduce",
            )
            # What is spread over a time at random begins at once.
            self._profiles[name].add_init_script("Math.random = () => 0")
        context = self._profiles[name]
        context.clear_permissions()
        context.clear_cookies()
        context.add_cookies(stage.storage(name)["cookies"])
        page = context.new_page()
        context.new_cdp_session(page).send(
            "Storage.clearDataForOrigin", {"origin": stage.url, "storageTypes": "local_storage"}
        )
        return page

    def give_clock(self, page: Page) -> None:
        """A clock that the test can move on; no other test has this page's profile."""
        page.clock.install()
        self._profiles = {
            name: one for name, one in self._profiles.items() if one is not page.context
        }

    def forgive(self, pattern: str) -> None:
        """Forget the complaints that a test brings about itself, such as a server that is away."""
        self.complaints = [one for one in self.complaints if not re.search(pattern, one)]

    def _note(self, line: ConsoleMessage) -> None:
        if line.type in ("error", "warning") and not TOLD.search(line.text):
            self.complaints.append(f"{line.type}: {line.text}")


@cache
def _browser() -> Browser:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    playwright = _KEPT.enter_context(sync_playwright())
    return _KEPT.enter_context(
        playwright.chromium.launch(executable_path=chromium.find(), args=[*FLAGS, *sandbox])
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The next file has the same browser, if it needs one: to start it takes 2 s.

    No other test finds it: it leaves an event loop running in this thread.
    """
    if nextitem is not None and nextitem.path == item.path:
        return
    if "chrome" not in getattr(nextitem, "fixturenames", ()):
        _browser.cache_clear()
        _KEPT.close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    """A browser for the tests of a file."""
    if chromium.find() is None:
        pytest.skip("no Chromium or Chrome was found; `make test` installs one where it can")
    browser = _browser()
    yield Chrome(browser)
    for context in browser.contexts:
        context.close()


@pytest.fixture(autouse=True)
def no_complaint(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a page complains about fails the test that opened it."""
    if "chrome" not in request.fixturenames:
        yield
        return
    chrome: Chrome = request.getfixturevalue("chrome")
    yield
    complaints, chrome.complaints = chrome.complaints, []
    assert complaints == []


@pytest.fixture(scope="module")
def stage(
    chrome: Chrome, migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """A platform without jobs, for a browser; a file that needs more puts it in."""
    folder = tmp_path_factory.mktemp("stage")
    shutil.copy(migrated_sqlite, folder / "trainyard.db")
    with raised(folder) as stage:
        yield stage


def opened(stage: Stage, chrome: Chrome, name: str) -> Iterator[Page]:
    """A page of this person on the stage."""
    page = chrome.page_of(stage, name)
    try:
        yield page
    finally:
        page.close()
