"""Signing in by an OpenID provider: there and back with a real one, and everything that may lie."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc.jwk import OctKey
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from api.sign_in import oidc_provider
from api.sign_in.oidc_accounts import name_from, role_of
from api.sign_in.oidc_provider import Provider, provider_flaw
from api.web.auth import COOKIE
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from core.tables.kinds import LinkKind, Role
from core.tables.notices import Webhook
from core.tables.people import Identity, Link, User
from tests.api.conftest import NOWHERE, World, client, running_world
from tests.api.openid import CLIENT_ID, CLIENT_SECRET, OpenId, key_of, new_key, running_openid

CY = {
    "sub": "248289761001",
    "email": "Cy@Example.org",
    "email_verified": True,
    "preferred_username": "cy.lee",
    "zoneinfo": "Europe/Berlin",
}


@pytest.fixture
def openid() -> Iterator[OpenId]:
    """A provider that says that whoever comes is cy."""
    with running_openid() as openid:
        openid.person = dict(CY)
        yield openid


@pytest.fixture
def trusting(openid: OpenId, sqlite_url: str, tmp_path: Path) -> ApiSettings:
    """Settings with this provider; nobody gets an account without being invited."""
    return ApiSettings(
        database_url=sqlite_url,
        redis_url=NOWHERE,
        store=tmp_path / "store",
        logins_per_minute=1000,
        oidc_issuer=openid.issuer,
        oidc_client_id=CLIENT_ID,
        oidc_client_secret=CLIENT_SECRET,
        oidc_name="Keycloak",
    )


@pytest.fixture
def world(trusting: ApiSettings) -> Iterator[World]:
    """The application, with ann, bob, staff and an administrator."""
    with running_world(trusting, with_node=False) as world:
        yield world


def browser(world: World) -> TestClient:
    """Somebody's, with no cookie yet."""
    fresh = client(world.app, None)
    fresh.follow_redirects = False
    return fresh


def there(world: World, visitor: TestClient) -> str:
    """Press "Sign in with Keycloak" and sign in there; the address that leads back."""
    away = visitor.get("/login/oidc?next=/nodes")
    assert away.status_code == 303, away.text
    answer = httpx2.get(away.headers["location"], follow_redirects=False)
    assert answer.status_code == 302
    back = answer.headers["location"]
    assert back.startswith("http://127.0.0.1:8471/login/oidc/callback?")
    return str(back)


def sign_in(world: World) -> TestClient:
    """There and back; a browser that is signed in."""
    visitor = browser(world)
    answer = visitor.get(there(world, visitor))
    assert (answer.status_code, answer.headers.get("location")) == (303, "/nodes"), answer.text
    return visitor


def refused(world: World, code: str, *, status: int) -> str:
    """There and back again, and not let in; the sentence on the page."""
    visitor = browser(world)
    back = there(world, visitor)
    body = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    secret = visitor.cookies.get("trainyard_trip")
    api = client(world.app, None)
    answer = api.post(
        "/v1/sessions/oidc", json=body, headers={"Cookie": f"trainyard_trip={secret}"}
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert COOKIE not in answer.cookies
    return str(answer.json()["detail"])


def give_address(world: World, user: str, email: str | None) -> None:
    answer = world.admin.patch(f"/v1/users/{user}", json={"email": email})
    assert answer.status_code == 200


def count(world: World, table: Any) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_who_has_an_account_of_that_address_comes_in_and_out(world: World) -> None:
    give_address(world, "ann", "cy@example.org")
    assert "Sign in with <bdi>Keycloak</bdi>" in world.nobody.get("/login").text
    visitor = sign_in(world)
    assert visitor.get("/v1/me").json()["user"]["name"] == "ann"
    assert "trainyard_trip" not in visitor.cookies
    (session,) = visitor.get("/v1/sessions").json()["data"]
    assert session["is_this_one"]
    out = visitor.delete("/v1/sessions/current", headers={"Sec-Fetch-Site": "same-origin"})
    assert out.status_code == 204
    assert visitor.get("/v1/me").status_code == 401
    kinds = [entry["kind"] for entry in world.admin.get("/v1/admin/audit").json()["data"]]
    assert "user.link" in kinds


def test_who_made_an_account_in_anothers_name_is_shut_out_when_its_owner_comes(
    world: World,
) -> None:
    world.admin.post("/v1/labs", json={"name": "vision"})
    world.admin.post("/v1/labs/vision/members", json={"user": "bob", "is_lead": True})
    invite = {"email": "cy@example.org", "lab": "vision"}
    secret = world.bob.post("/v1/invites", json=invite).json()["secret"]
    taken = {"secret": secret, "name": "cy", "password": "what only bob knows"}
    of_bob = client(world.app, world.nobody.post("/v1/invites/accept", json=taken).json()["secret"])
    token = of_bob.post("/v1/tokens", json={"name": "t", "scopes": ["all"]}).json()["secret"]
    link = of_bob.post("/v1/me/login-link").json()["secret"]
    feed = of_bob.post("/v1/calendars", json={}).json()
    hook = {"url": "https://8.8.8.8/hook"}
    assert of_bob.put("/v1/me/webhook", json=hook).status_code in (200, 201)

    owner = sign_in(world)
    assert owner.get("/v1/me").json()["user"]["name"] == "cy"
    assert of_bob.get("/v1/me").status_code == 401
    assert client(world.app, token).get("/v1/me").status_code == 401
    again = {"name": "cy", "password": "what only bob knows"}
    assert world.nobody.post("/v1/sessions", json=again).status_code == 401
    assert world.nobody.post("/v1/sessions/link", json={"secret": link}).status_code == 401
    assert world.nobody.get(feed["url"]).status_code in (401, 404)
    assert count(world, Webhook) == 0
    assert sign_in(world).get("/v1/me").status_code == 200
    assert owner.get("/v1/me").status_code == 200  # only the first time drops anything


def test_a_person_is_known_by_subject_not_by_address(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    sign_in(world)
    # The address moves on to bob, at the provider and here; the subject is still ann.
    give_address(world, "ann", None)
    give_address(world, "bob", "cy@example.org")
    openid.person |= {"email": "new@example.org", "email_verified": False}
    assert sign_in(world).get("/v1/me").json()["user"]["name"] == "ann"
    openid.person = {**CY, "sub": "another"}
    assert sign_in(world).get("/v1/me").json()["user"]["name"] == "bob"


def test_an_account_is_one_identity_until_an_administrator_parts_them(
    world: World, openid: OpenId
) -> None:
    give_address(world, "ann", "cy@example.org")
    sign_in(world)
    openid.person["sub"] = "whoever has the address now"
    told = refused(world, "linked_to_another", status=403)
    assert "trainyard admin unlink ann" in told
    assert world.staff.delete("/v1/users/ann/identities").status_code == 403
    assert world.admin.delete("/v1/users/ann/identities").status_code == 204
    assert sign_in(world).get("/v1/me").json()["user"]["name"] == "ann"


def test_who_is_not_invited_gets_no_account(world: World) -> None:
    people = count(world, User)
    told = refused(world, "not_invited", status=403)
    assert "cy@example.org" in told
    assert "invite this address" in told
    assert count(world, User) == people
    assert count(world, Identity) == 0
    visitor = browser(world)
    page = visitor.get(there(world, visitor))
    assert page.status_code == 403
    assert "invite this address" in page.text
    assert 'name="password"' in page.text


def test_an_invitation_of_the_address_makes_the_account(world: World) -> None:
    lab = world.admin.post("/v1/labs", json={"name": "vision"}).json()["id"]
    wanted = {"lab": "vision", "email": "cy@example.org", "attributes": {"cohort": "even"}}
    made = world.admin.post("/v1/invites", json=wanted).json()
    me = sign_in(world).get("/v1/me").json()
    assert (me["user"]["name"], me["user"]["role"], me["labs"]) == ("cy.lee", "user", ["vision"])
    assert (me["user"]["zone"], me["user"]["email"]) == ("Europe/Berlin", "cy@example.org")
    assert me["user"]["attributes"] == {"cohort": "even"}
    assert lab
    (invite,) = world.admin.get("/v1/invites").json()["data"]
    assert (invite["state"], invite["used_by"]) == ("used", "cy.lee")
    accept = {"secret": made["secret"], "name": "eve", "password": "a sentence nobody has"}
    assert world.nobody.post("/v1/invites/accept", json=accept).status_code == 401
    assert sign_in(world).get("/v1/me").json()["user"]["name"] == "cy.lee"


def test_a_domain_that_is_allowed_needs_no_invitation(
    trusting: ApiSettings, openid: OpenId
) -> None:
    allowing = trusting.model_copy(update={"oidc_domains": ["Example.org"]})
    with running_world(allowing, with_node=False) as world:
        for email in ("cy@example.org.evil.example", "cy@sub.example.org"):
            openid.person["email"] = email
            refused(world, "not_invited", status=403)
        openid.person |= {"email": "cy@example.org", "preferred_username": "Ann"}
        assert sign_in(world).get("/v1/me").json()["user"]["name"] == "ann2"


def test_an_address_that_is_not_verified_opens_nothing(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    for verified in (False, None, "true", 1):
        openid.person["email_verified"] = verified
        assert "has not verified" in refused(world, "email_unverified", status=403)
    assert count(world, Identity) == 0


def test_who_was_deactivated_stays_out(world: World) -> None:
    give_address(world, "ann", "cy@example.org")
    sign_in(world)
    assert world.admin.patch("/v1/users/ann", json={"disabled": True}).status_code == 200
    assert "disabled" in refused(world, "disabled", status=401)
    give_address(world, "ann", None)
    give_address(world, "bob", "other@example.org")
    assert "disabled" in refused(world, "disabled", status=401)  # known by subject


LIES: list[dict[str, Any]] = [
    {"nonce": "of another trip"},
    {"nonce": None},
    {"aud": "another application"},
    {"aud": ["another application"]},
    {"aud": None},
    {"iss": "https://evil.example"},
    {"exp": int(time.time()) - 3600},
    {"exp": None},
    {"sub": None},
    {"azp": "another application", "aud": [CLIENT_ID, "another application"]},
]


def test_an_id_token_that_is_not_for_this_sign_in_is_refused(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    for lies in LIES:
        openid.lies = lies
        (claim,) = [name for name in lies if name != "aud"] or ["aud"]
        told = refused(world, "oidc_refused", status=401)
        assert "is not valid" in told
        assert claim in told or claim == "exp", lies
    assert count(world, Identity) == 0


def test_clocks_may_be_half_a_minute_apart(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    now = int(utc_now().timestamp())
    openid.lies = {"iat": now + 30, "exp": now - 30}
    sign_in(world)


def test_a_forged_signature_is_refused(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    openid.key = new_key("first")  # the right name, the wrong key
    refused(world, "oidc_refused", status=401)
    openid.key = key_of("never published")
    refused(world, "oidc_refused", status=401)
    openid.key = OctKey.import_key(f"{CLIENT_SECRET} and more", {"kid": "first"})  # type: ignore[assignment]
    openid.algorithm = "HS256"
    refused(world, "oidc_refused", status=401)
    assert count(world, Identity) == 0


def test_keys_may_change(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    sign_in(world)
    assert openid.asked.count("/keys") == 1
    sign_in(world)
    assert openid.asked.count("/keys") == 1, "kept"
    openid.key = key_of("second")
    openid.shown = [openid.key]
    sign_in(world)
    assert openid.asked.count("/keys") == 2


def test_a_way_back_works_once_and_only_in_its_browser(world: World, openid: OpenId) -> None:
    give_address(world, "ann", "cy@example.org")
    visitor = browser(world)
    back = there(world, visitor)
    stranger = browser(world)
    assert "was not started in this browser" in stranger.get(back).text
    there(world, stranger)  # one that is on a way of its own
    assert stranger.get(back).status_code == 401
    forged = back.replace("state=", "state=x")
    assert "was not started in this browser" in visitor.get(forged).text
    secret = visitor.cookies.get("trainyard_trip")
    assert visitor.get(back).status_code == 303
    redeemed = openid.asked.count("/token")
    visitor.cookies.set("trainyard_trip", str(secret))
    replayed = visitor.get(back)
    assert replayed.status_code == 401
    assert "already finished" in replayed.text
    assert openid.asked.count("/token") == redeemed, "the provider was not even asked"


def test_a_way_that_takes_too_long_is_over(world: World) -> None:
    give_address(world, "ann", "cy@example.org")
    visitor = browser(world)
    back = there(world, visitor)
    with world.database.write() as session:
        session.execute(update(Link).where(Link.kind == LinkKind.OIDC).values(expires_at=utc_now()))
    assert "more than ten minutes" in visitor.get(back).text


def test_the_providers_own_no_is_told(world: World, openid: OpenId) -> None:
    openid.refuses = "access_denied"
    assert refused(world, "oidc_refused", status=401).endswith("access_denied")
    openid.refuses = ""
    openid.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    world.process.service(Provider).look()
    assert "invalid_client" in refused(world, "oidc_refused", status=401)


def test_without_the_provider_passwords_still_work(trusting: ApiSettings) -> None:
    with running_openid() as gone:
        pass
    dead = trusting.model_copy(update={"oidc_issuer": gone.issuer})
    with running_world(dead, with_node=False) as world:
        visitor = browser(world)
        answer = visitor.get("/login/oidc")
        assert answer.status_code == 503
        assert "Sign in with your password or a login link" in answer.text
        api = visitor.post("/v1/sessions/oidc/start")
        assert (api.status_code, api.json()["code"]) == (503, "oidc_unreachable")
        assert "retry-after" in api.headers
        password = {"password": "a sentence nobody else has"}
        assert world.ann.patch("/v1/me", json=password).status_code == 200
        signed_in = visitor.post("/v1/sessions", json={"name": "ann", **password})
        assert signed_in.status_code == 201


def test_a_provider_that_is_not_what_the_settings_say_is_not_used(
    world: World, openid: OpenId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "AWAY_S", 0.0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"issuer": "https://evil.example"}, "calls itself https://evil.example"),
        ({"token_endpoint": "http://evil.example/token"}, "is not encrypted"),
        ({"jwks_uri": None}, "answer is not that of an OpenID provider"),
        ({"jwks_uri": f"{openid.issuer}/nothing"}, "answer is not that of an OpenID provider"),
    ]
    for metadata, why in cases:
        openid.metadata = metadata
        answer = world.nobody.post("/v1/sessions/oidc/start").json()
        assert (answer["code"], why in answer["detail"]) == ("oidc_unreachable", True), answer


def test_groups_give_roles_and_labs(trusting: ApiSettings, openid: OpenId) -> None:
    mapped = trusting.model_copy(
        update={
            "oidc_domains": ["example.org"],
            "oidc_roles": {"gpu-staff": "staff", "gpu-admins": "admin"},
            "oidc_labs": {"vision-group": "vision", "gone-group": "gone"},
        }
    )
    with running_world(mapped, with_node=False) as world:
        world.admin.post("/v1/labs", json={"name": "vision"})
        openid.person["groups"] = ["/gpu-staff", "vision-group", "gone-group"]
        visitor = sign_in(world)
        me = visitor.get("/v1/me").json()
        assert (me["user"]["role"], me["labs"]) == ("staff", ["vision"])
        openid.person["groups"] = ["gpu-staff", "gpu-admins"]
        sign_in(world)
        assert visitor.get("/v1/me").json()["user"]["role"] == "admin"
        openid.person["groups"] = []
        sign_in(world)
        me = visitor.get("/v1/me").json()
        assert (me["user"]["role"], me["labs"]) == ("user", ["vision"])
        # ada is the last administrator: no group takes that away
        openid.person = {**CY, "sub": "ada", "email": "ada@example.org"}
        give_address(world, "ada", "ada@example.org")
        assert sign_in(world).get("/v1/me").json()["user"]["role"] == "admin"


def test_without_a_provider_there_is_none(trusting: ApiSettings) -> None:
    without = trusting.model_copy(update={"oidc_issuer": ""})
    with running_world(without, with_node=False) as world:
        assert world.nobody.get("/v1/sessions/oidc").json() == {"name": None}
        assert world.nobody.post("/v1/sessions/oidc/start").json()["code"] == "no_oidc"
        answer = world.nobody.post("/v1/sessions/oidc", json={"state": "x", "code": "y"})
        assert (answer.status_code, answer.json()["code"]) == (404, "no_oidc")


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"oidc_issuer": ""}, None),
        ({}, None),
        ({"oidc_client_id": ""}, "TRAINYARD_OIDC_CLIENT_ID"),
        ({"oidc_client_secret": ""}, "TRAINYARD_OIDC_CLIENT_SECRET"),
        ({"oidc_issuer": "http://id.example.org"}, "https://"),
    ],
)
def test_settings_that_are_half_are_told(changes: dict[str, str], flaw: str | None) -> None:
    whole = {
        "oidc_issuer": "https://id.example.org",
        "oidc_client_id": "a",
        "oidc_client_secret": "b",
    }
    needed = {"database_url": "sqlite:///x", "redis_url": NOWHERE, "store": "/tmp/x"}
    found = provider_flaw(ApiSettings.model_validate({**needed, **whole, **changes}))
    assert (found is None) == (flaw is None)
    assert flaw is None or flaw in str(found)


@pytest.mark.parametrize(
    ("wish", "taken", "name"),
    [
        ("Ann.Lee@example.org", [], "ann.lee"),
        ("ann", ["ann", "ann2"], "ann3"),
        ("42nd street", [], "u42nd-street"),
        ("\u5f20\u4f1f", [], "u"),
        ("x" * 40, ["x" * 32], "x" * 31 + "2"),
    ],
)
def test_a_name_is_made_of_what_the_provider_calls_them(
    wish: str, taken: list[str], name: str
) -> None:
    assert name_from(wish, taken) == name


def test_the_highest_role_of_the_groups_counts() -> None:
    roles = {"a": "staff", "b": "admin"}
    assert role_of(frozenset({"a", "b"}), roles) is Role.ADMIN
    assert role_of(frozenset({"a", "x"}), roles) is Role.STAFF
    assert role_of(frozenset(), roles) is Role.USER
