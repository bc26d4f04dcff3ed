"""A fake server, a client that does not wait, and a home folder of its own for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_server import FakeServer, serving
from trainyard import Trainyard


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the person who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A real HTTP server that the test scripts."""
    with serving() as fake:
        yield fake


@pytest.fixture
def waits() -> list[float]:
    """Seconds that the client of `client` would have slept."""
    return []


@pytest.fixture
def client(server: FakeServer, waits: list[float]) -> Iterator[Trainyard]:
    """Signed in at the fake server; it does not really sleep."""
    with Trainyard(server.url, "ty_secret", sleep=waits.append) as made:
        yield made
