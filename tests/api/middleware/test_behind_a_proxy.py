"""Behind a reverse proxy: whose address is believed, whose page is ours, what does not start."""

import os
from pathlib import Path

import pytest

from api.web.auth import COOKIE
from core.process.settings import ApiSettings
from tests.api.conftest import World, client, running_world
from tests.forked import origin

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PUBLIC = {"trust_proxy": True, "public_url": "https://yard.example.org"}


def address_seen(world: World, *forwarded: str) -> str:
    """Where a session is said to come from that was begun with these X-Forwarded-For headers."""
    secret = world.admin.post("/v1/me/login-link").json()["secret"]
    headers = [("x-forwarded-for", value) for value in forwarded]
    made = client(world.app, None).post(
        "/v1/sessions/link", json={"secret": secret}, headers=headers
    )
    assert made.status_code == 201, made.text
    return str(made.json()["name"]).rpartition(", ")[2]


def test_the_address_that_the_proxy_added_is_the_callers(settings: ApiSettings) -> None:
    with running_world(settings.model_copy(update=PUBLIC), with_node=False) as world:
        assert address_seen(world, "203.0.113.7") == "203.0.113.7"
        assert address_seen(world, "198.51.100.1, 203.0.113.7") == "203.0.113.7"
        assert address_seen(world, "198.51.100.1", "2001:db8::7") == "2001:db8::7"
        assert address_seen(world, "198.51.100.1, nonsense") == "testclient"
        assert address_seen(world) == "testclient"


def test_without_a_proxy_nobody_names_their_own_address(settings: ApiSettings) -> None:
    with running_world(settings, with_node=False) as world:
        assert address_seen(world, "203.0.113.7") == "testclient"


def test_who_changes_the_header_does_not_pass_the_limit_of_sign_ins(settings: ApiSettings) -> None:
    strict = settings.model_copy(update={**PUBLIC, "logins_per_minute": 1})
    with running_world(strict, with_node=False) as world:
        answers = [
            client(world.app, None)
            .post(
                "/v1/sessions",
                json={"name": "ann", "password": "a guess"},
                headers={"x-forwarded-for": f"198.51.100.{number}, 203.0.113.7"},
            )
            .status_code
            for number in range(3)
        ]
    assert answers == [401, 429, 429]


def test_a_page_of_the_same_name_without_encryption_is_not_ours(settings: ApiSettings) -> None:
    with running_world(settings.model_copy(update=PUBLIC), with_node=False) as world:
        secret = world.admin.post("/v1/me/login-link").json()["secret"]
        begun = world.nobody.post("/v1/sessions/link", json={"secret": secret}).json()["secret"]
        browser = client(world.app, None)
        for origin, status in (
            ("http://yard.example.org", 403),
            ("https://yard.example.org:8443", 403),
            ("https://yard.example.org", 201),
            ("https://yard.example.org:443", 201),
        ):
            headers = {"Origin": origin, "Host": "yard.example.org", "Cookie": f"{COOKIE}={begun}"}
            answer = browser.post("/v1/tokens", json={"name": "t"}, headers=headers)
            assert answer.status_code == status, origin


@pytest.mark.parametrize(
    "public_url", [pytest.param("", marks=pytest.mark.slow), "http://yard.example.org"]
)
def test_it_does_not_listen_to_the_world_without_an_https_address(
    settings: ApiSettings, tmp_path: Path, public_url: str
) -> None:
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": settings.database_url,
        "TRAINYARD_REDIS_URL": settings.redis_url,
        "TRAINYARD_STORE": str(tmp_path / "store"),
        "TRAINYARD_HOST": "0.0.0.0",
        "TRAINYARD_PORT": "0",
        "TRAINYARD_TRUST_PROXY": "true",
        "TRAINYARD_PUBLIC_URL": public_url,
    }
    said = tmp_path / "api.log"
    with open(said, "wb") as log:
        api = origin().start("api.main", environment=environment, log=log)
    assert api.wait(timeout=120) == 1, said.read_text()
    assert f"TRAINYARD_PUBLIC_URL is {public_url or 'not set'}" in said.read_text()
