"""Signing in and out from the command line."""

import json
import stat

from typer.testing import CliRunner

from tests.client.fake_server import Answer, FakeServer, as_json, refused
from tests.client.scripted import Run, everything
from trainyard.cli.app import app
from trainyard.transport.config import config_path, read
from trainyard.transport.connection import client_version


def test_login_keeps_the_token_for_the_next_command(server: FakeServer) -> None:
    everything(server)
    runner = CliRunner()
    shown = runner.invoke(app, ["login", server.url], input="ada\ncorrect horse battery\n")
    assert shown.exit_code == 0, shown.output
    assert "correct horse battery" not in shown.output
    assert "ty_secret" not in shown.output
    assert json.loads(server.of("POST /v1/sessions")[0].body) == {
        "name": "ada",
        "password": "correct horse battery",
    }
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert runner.invoke(app, ["whoami"]).exit_code == 0
    assert server.of("GET /v1/me")[0].headers["authorization"] == "Bearer ty_secret"
    assert runner.invoke(app, ["logout"]).exit_code == 0
    assert (
        server.of("DELETE /v1/sessions/current")[0].headers["authorization"] == "Bearer ty_secret"
    )
    assert read(config_path()).servers == {}


def test_login_by_token_link_and_first_start(server: FakeServer) -> None:
    everything(server)
    runner = CliRunner()
    given = runner.invoke(app, ["login", server.url, "--token", "-", "--json"], input="ty_mine\n")
    assert json.loads(given.stdout) == {"url": server.url, "user": "ada"}
    assert read(config_path()).servers[server.url].token == "ty_mine"
    assert "Deleted the token" in runner.invoke(app, ["logout"]).stdout
    assert server.of("DELETE /v1/sessions/current") == []  # a token that was given stays valid

    linked = runner.invoke(app, ["login", "--link", f"{server.url}/login?secret=abc"])
    assert linked.exit_code == 0, linked.output
    assert json.loads(server.of("POST /v1/sessions/link")[0].body) == {"secret": "abc"}

    first = f"{server.url}/first-start?secret=def"
    made = runner.invoke(
        app, ["login", "--link", first, "--json"], input="ada\nlong password 1\nlong password 1\n"
    )
    assert made.exit_code == 0, made.output
    json.loads(made.stdout[made.stdout.index("{") :])  # the runner echoes what is typed before it
    assert json.loads(server.of("POST /v1/first-start")[0].body) == {
        "secret": "def",
        "name": "ada",
        "password": "long password 1",
    }


def test_a_login_that_fails_keeps_nothing(server: FakeServer) -> None:
    server.answer("POST /v1/sessions", refused(401, "unauthenticated", "Wrong name or password."))
    shown = CliRunner().invoke(app, ["login", server.url], input="ada\nwrong\n")
    assert shown.exit_code == 3
    assert not config_path().exists()
    nothing = CliRunner().invoke(app, ["login", "--link", f"{server.url}/login"])
    assert nothing.exit_code == 2
    both = CliRunner().invoke(app, ["login", "--link", "http://x/login?secret=a", "--token", "t"])
    assert both.exit_code == 2


def test_add_user_asks_for_the_password_on_stderr(server: FakeServer, run: Run) -> None:
    everything(server)
    shown = run("admin", "add-user", "bob", "--role", "staff", "--json", input="\n\n")
    assert shown.exit_code == 0, shown.output
    json.loads(shown.stdout)
    assert json.loads(server.of("POST /v1/users")[0].body) == {
        "name": "bob",
        "role": "staff",
        "password": None,
        "zone": "UTC",
    }


def test_login_says_when_the_server_carries_another_client(server: FakeServer) -> None:
    everything(server)
    command = f"pip install '{server.url}/client/trainyard_client-9-py3-none-any.whl#sha256=ab'"
    release = {"version": "9", "filename": "f.whl", "url": server.url, "sha256": "ab"}
    server.answer("GET /v1/client", as_json({**release, "command": command}))
    runner = CliRunner()
    told = runner.invoke(app, ["login", server.url, "--token", "ty_mine"])
    assert told.exit_code == 0
    assert f"This server carries client 9; this one is {client_version()}." in told.stderr
    assert command in " ".join(told.stderr.split())

    same = {**release, "version": client_version(), "command": command}
    server.answer("GET /v1/client", as_json(same))
    assert "carries" not in runner.invoke(app, ["login", server.url, "--token", "ty_mine"]).stderr

    server.answer("GET /v1/client", Answer(500, b"<html>", "text/html"))
    assert runner.invoke(app, ["login", server.url, "--token", "ty_mine"]).exit_code == 0
