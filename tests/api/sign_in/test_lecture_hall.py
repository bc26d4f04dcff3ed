"""A lecture hall signs in from one address within a minute, while who guesses is still held."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from api.web.passwords import hash_password
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from core.tables.kinds import Role
from core.tables.people import User
from tests.api.conftest import NOWHERE, World, client, running_world
from tests.api.openid import CLIENT_ID, CLIENT_SECRET, running_openid
from tests.api.sign_in.test_oidc import browser, there

PEOPLE = 191
PASSWORD = "a sentence for all of us"


@pytest.fixture
def hall(sqlite_url: str, tmp_path: Path) -> Iterator[World]:
    """The course has accounts, and the limits are those of a fresh installation."""
    with running_openid() as openid:
        settings = ApiSettings(
            database_url=sqlite_url,
            redis_url=NOWHERE,
            store=tmp_path / "store",
            oidc_issuer=openid.issuer,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=CLIENT_SECRET,
            oidc_domains=["example.org"],
        )
        openid.person = {"email_verified": True}
        with running_world(settings, with_node=False) as world:
            world.app.state.openid = openid
            add_course(world)
            yield world


def add_course(world: World) -> None:
    rows = [
        {
            "id": f"user_{number}",
            "name": f"s{number}",
            "role": Role.USER,
            "password_hash": hash_password(PASSWORD),
            "created_at": utc_now(),
            "attributes": {},
            "zone": "UTC",
            "disabled": False,
        }
        for number in range(PEOPLE)
    ]
    with world.database.write() as session:
        session.execute(insert(User), rows)


def sign_in(world: World, name: str, password: str = PASSWORD) -> int:
    body = {"name": name, "password": password}
    return int(world.nobody.post("/v1/sessions", json=body).status_code)


def test_all_get_in_by_password_and_some_who_mistype_hold_up_nobody(hall: World) -> None:
    for number in range(PEOPLE):
        if number % 6 == 0:
            assert sign_in(hall, f"s{number}", "a sentence for all of su") == 401
        assert sign_in(hall, f"s{number}") == 201


@pytest.mark.slow
def test_all_get_in_at_the_first_try_by_single_sign_on(hall: World) -> None:
    for number in range(40):
        hall.app.state.openid.person |= {"sub": f"{number}", "email": f"a{number}@example.org"}
        visitor = browser(hall)
        answer = visitor.get(there(hall, visitor))
        assert (answer.status_code, answer.headers["location"]) == (303, "/nodes"), number


def test_all_set_their_first_passwords_by_link_or_invitation(hall: World) -> None:
    for number in range(30):
        link = hall.admin.post(f"/v1/users/s{number}/password-link").json()["secret"]
        body = {"secret": link, "password": "mine and nobody else's"}
        assert hall.nobody.post("/v1/new-password", json=body).status_code == 201
        invite = hall.admin.post("/v1/invites", json={}).json()["secret"]
        answer = {"secret": invite, "name": f"new{number}", "password": PASSWORD}
        assert hall.nobody.post("/v1/invites/accept", json=answer).status_code == 201


def test_guesses_of_one_name_are_held_and_the_rest_gets_in(hall: World) -> None:
    statuses = Counter(sign_in(hall, "s7", f"a wrong guess {number}") for number in range(60))
    assert statuses == {401: 5, 429: 55}
    assert sign_in(hall, "s7") == 429
    assert all(sign_in(hall, f"s{number}") == 201 for number in range(8, PEOPLE))


def test_one_password_for_many_names_is_held(hall: World) -> None:
    statuses = Counter(sign_in(hall, f"s{number}", "password of many") for number in range(60))
    assert statuses == {401: 50, 429: 10}


def test_links_that_open_nothing_are_held_and_cost_no_hash(
    hall: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashed(_: str) -> str:
        raise AssertionError("a stranger made us hash")

    for module in ("routes", "routes_invites"):
        monkeypatch.setattr(f"api.sign_in.{module}.hash_password", hashed)
    statuses: Counter[int] = Counter()
    for number in range(30):
        secret = {"secret": f"ty_{number:040}", "password": PASSWORD}
        asked = (
            ("/v1/new-password", secret),
            ("/v1/invites/accept", {**secret, "name": "eve"}),
        )
        for path, body in asked:
            statuses[hall.nobody.post(path, json=body).status_code] += 1
    assert statuses == {401: 50, 429: 10}


def test_another_sites_page_uses_up_nobodys_tries(hall: World) -> None:
    """It can send a browser of the hall here, but nothing is guessed."""
    abroad = client(hall.app, None)
    for _ in range(60):
        answer = abroad.post(
            "/v1/sessions",
            json={"name": "s1", "password": "x"},
            headers={"Origin": "https://evil.example"},
        )
        assert answer.status_code == 403
        assert abroad.get("/login/oidc/callback?state=x&code=y").status_code == 401
    assert sign_in(hall, "s1") == 201
