"""A fake server, a client that does not wait, and a home folder of its own for every test."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from tests.client.fake_server import FakeServer, serving
from tests.client.scripted import Run
from trainyard import Trainyard
from trainyard.cli.app import app


@pytest.fixture(autouse=True, scope="session")
def _one_tree_of_commands() -> Iterator[None]:
    """Typer makes all commands of the application anew for each call, which takes 35 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(get_command))
        yield


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


@pytest.fixture
def run(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("jobs", "--json")`, signed in at the fake server."""
    monkeypatch.setenv("TRAINYARD_URL", server.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_secret")

    def invoke(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=input)

    return invoke


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    """A file to submit; the fake server does not read it."""
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt-ddp\n")
    return str(path)
