"""Whoever looks at the logs sees who signed in, who could not, and that passwords are guessed."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from core.process.settings import ApiSettings
from tests.api.conftest import World, client, running_world

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PASSWORD = "a sentence nobody else has"


def sign_in(world: World, name: str, password: str) -> int:
    body = {"name": name, "password": password}
    return int(client(world.app, None).post("/v1/sessions", json=body).status_code)


def failures(world: World) -> list[dict[str, Any]]:
    entries = world.staff.get("/v1/admin/audit", params={"action": "sign_in.failures"}).json()
    return list(entries["data"])


def test_a_sign_in_that_succeeds_fails_or_is_refused_is_in_the_log(settings: ApiSettings) -> None:
    strict = settings.model_copy(update={"logins_per_minute": 2})
    with running_world(strict, with_node=False) as world, capture_logs() as lines:
        world.admin.post("/v1/users", json={"name": "cleo", "password": PASSWORD})
        assert sign_in(world, "cleo", PASSWORD) == 201
        for _ in range(2):
            assert sign_in(world, "cleo", "a wrong guess") == 401
        assert sign_in(world, "cleo", PASSWORD) == 429
        unknown = {"secret": "ty_" + "x" * 40}
        assert world.nobody.post("/v1/sessions/link", json=unknown).status_code == 401
    told = [
        (line["event"], line["name"], line["address"], line.get("why"))
        for line in lines
        if line["event"].startswith("sign")
    ]
    assert told == [
        ("signed_in", "cleo", "testclient", None),
        ("sign_in_failed", "cleo", "testclient", "wrong_password"),
        ("sign_in_failed", "cleo", "testclient", "wrong_password"),
        ("sign_in_refused", "cleo", "testclient", "rate_limited"),
        ("sign_in_failed", None, "testclient", "bad_link"),
    ]
    assert PASSWORD not in str(lines)
    assert "a wrong guess" not in str(lines)


def test_failures_in_a_burst_are_one_row_of_the_audit_log(world: World) -> None:
    for _ in range(4):
        assert sign_in(world, "bob", "a guess") == 401
    assert failures(world) == []
    for _ in range(6):
        assert sign_in(world, "bob", "a guess") == 401
    [of_bob] = failures(world)
    assert of_bob["subject_name"] == "bob"
    assert "testclient" in str(of_bob)
    for number in range(10):  # names that nobody has are no rows; the address is one
        assert sign_in(world, f"nobody{number}", "a guess") == 401
    assert len(failures(world)) == 2
    assert sign_in(world, "nobody", "a guess") == 401
    assert len(failures(world)) == 2
