"""A dashboard over an API that answers from documents, and a browser's session on it."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tests.dashboard.fake_api import COOKIE, FakeApi, me


@pytest.fixture
def api() -> FakeApi:
    """Ada is signed in and has nothing yet."""
    fake = FakeApi()
    fake.put("/v1/me", me())
    for path in ("jobs", "nodes", "leases", "datasets", "tokens", "studies"):
        fake.put(f"/v1/{path}", [])
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
