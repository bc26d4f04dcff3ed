"""A dashboard over an API that answers from documents, and a browser's session on it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from starlette.testclient import TestClient

from tests import chromium
from tests.dashboard.fake_api import COOKIE, FakeApi, me
from tests.dashboard.stage import Stage

CHOICES = {
    "every": "mail",
    "kinds": {"lease_soon": "off"},
    "known_kinds": ["lease_soon", "test"],
    "email": "ada@example.org",
    "webhook": None,
    "digest_at": "07:00",
    "zone": "UTC",
}
OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture
def api() -> FakeApi:
    """Ada is signed in and has nothing yet."""
    fake = FakeApi()
    fake.put("/v1/me", me())
    for path in ("jobs", "nodes", "leases", "datasets", "tokens", "sessions"):
        fake.put(f"/v1/{path}", [])
    for path in ("studies", "agendas"):
        fake.put(f"/v1/{path}", [])
    fake.put("/v1/openapi.json", json.loads(OPENAPI.read_text()))
    fake.put("/v1/me/notifications/choices", CHOICES)
    fake.put("/v1/me/notifications", [])
    fake.put("/v1/client", {"version": "1.0+trainyard", "command": "pip install URL#sha256=ab"})
    fake.put("/v1/calendars", [])
    fake.put("/v1/sessions/oidc", {"name": None})
    return fake


@pytest.fixture
def browser_of(api: FakeApi) -> Iterator[Callable[..., TestClient]]:
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
            client.headers["cookie"] = cookie
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def page(browser_of: Callable[..., TestClient]) -> TestClient:
    """Ada's browser."""
    return browser_of()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A headless Chromium."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    flags = ["--disable-gpu", "--disable-background-networking", "--no-first-run", *sandbox]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=flags)
        yield browser
        browser.close()


def opened(stage: Stage, chrome: Browser, name: str) -> Iterator[Page]:
    """A page of this person on the stage; whatever it complains about fails the test."""
    context = chrome.new_context(
        base_url=stage.url,
        storage_state=stage.storage(name),  # type: ignore[arg-type]  # a TypedDict of its own
        viewport={"width": 1280, "height": 900},
        timezone_id="America/New_York",
        reduced_motion="reduce",
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None,
    )
    yield page
    context.close()
    # A refusal that the page tells is no fault; the browser notes it all the same.
    assert [one for one in complaints if not re.search("status of (409|422)", one)] == []
