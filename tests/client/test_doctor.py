"""`trainyard doctor` on a user's machine."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from typer.testing import CliRunner

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer
from tests.client.scripted import as_json
from trainyard.cli.app import app
from trainyard.doctor import examine_answer
from trainyard.transport.connection import client_version

runner = CliRunner()


@pytest.fixture
def told(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server that is well, and a token for it."""
    monkeypatch.setenv("TRAINYARD_URL", server.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_secret")
    server.answer("GET /healthz", healthy())
    server.answer("GET /v1/me", as_json(d.ME))
    return server


def healthy(version: str = "") -> Answer:
    return as_json({"status": "ok", "version": version or client_version()})


def findings(code: int) -> dict[str, dict[str, str]]:
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    return {one["what"]: one for one in json.loads(result.stdout)["findings"]}


def test_all_is_well(told: FakeServer) -> None:
    found = findings(0)
    assert {one["level"] for one in found.values()} == {"ok"}
    assert found["token"]["found"] == "ada, admin"


def test_another_version_is_a_warning_with_what_to_do(told: FakeServer) -> None:
    told.answer("GET /healthz", healthy("99.1.0"))
    todo = findings(0)["version"]["todo"]
    assert todo == f"Install the server's version: {told.url}/v1/client shows the command."


def test_a_token_that_has_ended_fails(told: FakeServer) -> None:
    body = json.dumps({"status": 401, "code": "expired", "detail": "It has ended."}).encode()
    told.answer("GET /v1/me", Answer(401, body, "application/problem+json"))
    assert findings(1)["token"]["todo"] == "Sign in again: trainyard login"


def test_a_server_that_is_away_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:1")
    assert "does not answer" in findings(1)["server"]["found"]


def test_a_clock_that_is_wrong_is_told() -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    answer = httpx2.Response(200, headers={"Date": date}, json={"version": "1"})
    (clock,) = [one for one in examine_answer("http://x", answer) if one.what == "clock"]
    assert clock.level == "warn"
    assert clock.found in ("+3600 s from the server's", "+3601 s from the server's")


def test_the_table_says_what_to_do(told: FakeServer) -> None:
    told.answer("GET /healthz", Answer(502, b"Bad gateway", "text/plain"))
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "answered 502" in result.stdout
    assert "the proxy in front" in " ".join(result.stdout.split())
