"""Signing in and out, and what travels between browser and API."""

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from api.sign_in.schemas import TokenMade
from dashboard.viewer import MAX_FORM_BYTES, local_path
from tests.dashboard.fake_api import COOKIE, TOKEN, FakeApi, me, refusal

SESSION = "trainyard_session=fresh; HttpOnly; SameSite=lax; Path=/"
MADE = TokenMade(**TOKEN.model_dump(), secret="ty_secret", user=me().user)
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("path", "next_path"),
    [
        ("/jobs", "/jobs"),
        ("/jobs/job_1?x=1", "/jobs/job_1%3Fx%3D1"),
        ("/nodes", "/nodes"),
        ("/", "/"),
    ],
)
def test_who_is_not_signed_in_signs_in_first(
    api: FakeApi, page: TestClient, path: str, next_path: str
) -> None:
    for address in list(api.answers):
        api.answers[address] = refusal(401, "Sign in.")
    api.put("/v1/jobs/job_1", refusal(401, "Sign in."))
    answer = page.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/login?next={next_path}"


def test_a_piece_of_a_page_sends_the_whole_page_to_the_login(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/me", refusal(401, "This session has ended."))
    answer = page.get("/jobs/rows", headers={"hx-request": "true"})
    assert answer.headers["hx-redirect"] == "/login"
    for referer, login in (
        ("http://127.0.0.1:8471/jobs?search=a", "/login?next=/jobs%3Fsearch%3Da"),
        ("https://evil.example/jobs", "/login"),
        ("http://127.0.0.1:8471", "/login"),
        ("", "/login"),
    ):
        headers = {"hx-request": "true", "referer": referer}
        assert page.get("/jobs/rows", headers=headers).headers["hx-redirect"] == login
    api.put("/v1/jobs", refusal(401, "This session has ended."), method="POST")
    sent = page.post("/jobs/new", headers={"referer": "http://127.0.0.1:8471/jobs/new"})
    assert sent.headers["location"] == "/login?next=/jobs/new"


def test_signing_in_hands_the_cookie_on_and_goes_where_it_was_asked(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/sessions", MADE, method="POST")
    api.cookies[("POST", "/v1/sessions")] = SESSION
    answer = page.post(
        "/login", data={"name": "ada", "password": "correct horse", "next": "/nodes"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/nodes")
    assert answer.headers["set-cookie"] == SESSION
    assert api.sent("POST", "/v1/sessions").body == b'{"name":"ada","password":"correct horse"}'


def test_a_wrong_password_is_said_on_the_form(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/sessions", refusal(401, "Name or password is wrong."), method="POST")
    answer = page.post("/login", data={"name": "ada", "password": "x"})
    assert answer.status_code == 401
    assert "Name or password is wrong." in answer.text
    assert 'value="ada"' in answer.text


def test_opening_a_login_link_uses_nothing_up(api: FakeApi, page: TestClient) -> None:
    answer = page.get("/login?link=ty_abcdefghijklmnopqrstuvwxyz")
    assert answer.status_code == 200
    assert api.calls == []
    api.put("/v1/sessions/link", MADE, method="POST")
    api.cookies[("POST", "/v1/sessions/link")] = SESSION
    used = page.post("/login/link", data={"link": "ty_abcdefghijklmnopqrstuvwxyz"})
    assert (used.status_code, used.headers["set-cookie"]) == (303, SESSION)
    assert b"ty_abcdefghijklmnopqrstuvwxyz" in api.sent("POST", "/v1/sessions/link").body


def test_the_first_start_link_makes_an_administrator_and_signs_in(
    api: FakeApi, page: TestClient
) -> None:
    text = page.get("/first-start?secret=ty_first").text
    assert 'value="ty_first"' in text
    assert "If accounts already exist, it is no longer valid" in text
    assert "The first-start link creates the first one" in page.get("/login").text
    api.put("/v1/first-start", MADE, method="POST")
    api.cookies[("POST", "/v1/first-start")] = SESSION
    fields = {"secret": "ty_first", "name": "ada", "password": "correct horse battery"}
    answer = page.post("/first-start", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    assert answer.headers["set-cookie"] == SESSION


def test_an_invitation_makes_an_account_and_signs_in(api: FakeApi, page: TestClient) -> None:
    shown = page.get("/invite?secret=ty_invited").text
    assert 'value="ty_invited"' in shown
    assert "You are invited" in shown
    assert api.calls == []
    api.put("/v1/invites/accept", MADE, method="POST")
    api.cookies[("POST", "/v1/invites/accept")] = SESSION
    fields = {"secret": "ty_invited", "name": "ada", "password": "correct horse battery"}
    answer = page.post("/invite", data=fields)
    assert (answer.status_code, answer.headers["set-cookie"]) == (303, SESSION)


def test_a_password_link_sets_it_and_signs_in(api: FakeApi, page: TestClient) -> None:
    shown = page.get("/new-password?secret=ty_forgotten").text
    assert "New password" in shown
    assert 'name="name"' not in shown
    api.put("/v1/new-password", refusal(401, "This link has been used already."), method="POST")
    fields = {"secret": "ty_forgotten", "password": "correct horse battery"}
    refused = page.post("/new-password", data=fields)
    assert refused.status_code == 401
    assert "This link has been used already." in refused.text
    api.put("/v1/new-password", MADE, method="POST")
    api.cookies[("POST", "/v1/new-password")] = SESSION
    answer = page.post("/new-password", data=fields)
    assert (answer.status_code, answer.headers["set-cookie"]) == (303, SESSION)
    body = b'{"secret":"ty_forgotten","password":"correct horse battery"}'
    assert api.sent("POST", "/v1/new-password").body == body


def test_signing_out_ends_the_session_here_and_there(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/sessions/current", None, method="DELETE")
    api.cookies[("DELETE", "/v1/sessions/current")] = 'trainyard_session=""; Max-Age=0; Path=/'
    answer = page.post("/logout")
    assert answer.headers["location"] == "/login"
    assert "Max-Age=0" in answer.headers["set-cookie"]


def test_the_api_judges_the_viewers_own_request(api: FakeApi, page: TestClient) -> None:
    """Cookie, origin and address travel on: what the API would refuse a script, it refuses here."""
    api.put("/v1/sessions/current", None, method="DELETE")
    page.post(
        "/logout",
        headers={"origin": "https://evil.example", "sec-fetch-site": "cross-site", "x-other": "1"},
    )
    call = api.sent("DELETE", "/v1/sessions/current")
    assert call.headers["cookie"] == COOKIE
    assert call.headers["origin"] == "https://evil.example"
    assert call.headers["sec-fetch-site"] == "cross-site"
    assert call.headers["host"] == "127.0.0.1:8471"
    assert "x-other" not in call.headers
    assert call.client == "192.0.2.7"


def test_without_a_cookie_none_is_sent(api: FakeApi, browser_of: Callable[..., TestClient]) -> None:
    browser_of(cookie="").get("/jobs")
    assert "cookie" not in api.sent("GET", "/v1/me").headers


def test_the_provider_is_one_link_away_and_leads_back_to_where_one_was_going(
    api: FakeApi, page: TestClient
) -> None:
    assert "/login/oidc" not in page.get("/login").text
    api.put("/v1/sessions/oidc", {"name": "Keycloak & co"})
    text = page.get("/login?next=/nodes").text
    assert "Sign in with <bdi>Keycloak &amp; co</bdi>" in text
    assert 'href="/login/oidc?next=/nodes"' in text
    assert 'name="password"' in text

    api.put("/v1/sessions/oidc/start", {"url": "https://id.example/auth?x=1"}, method="POST")
    api.cookies[("POST", "/v1/sessions/oidc/start")] = "trainyard_trip=s; Path=/login/oidc"
    away = page.get("/login/oidc?next=/nodes")
    assert (away.status_code, away.headers["location"]) == (303, "https://id.example/auth?x=1")
    trip, going = away.headers.get_list("set-cookie")
    assert trip == "trainyard_trip=s; Path=/login/oidc"
    assert going.startswith("trainyard_next=%2Fnodes; HttpOnly")

    api.put("/v1/sessions/oidc", MADE, method="POST")
    api.cookies[("POST", "/v1/sessions/oidc")] = SESSION
    cookies = {"cookie": "trainyard_trip=s; trainyard_next=%2Fnodes"}
    back = page.get("/login/oidc/callback?code=c&state=st", headers=cookies)
    assert (back.status_code, back.headers["location"]) == (303, "/nodes")
    assert back.headers.get_list("set-cookie")[0] == SESSION
    call = api.sent("POST", "/v1/sessions/oidc")
    sent = b'{"state":"st","code":"c","error":"","error_description":""}'
    assert (call.body, call.headers["cookie"]) == (sent, cookies["cookie"])


def test_a_provider_that_is_away_is_said_beside_the_password(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/sessions/oidc", {"name": "Keycloak"})
    away = refusal(503, "Keycloak cannot be used right now.")
    api.put("/v1/sessions/oidc/start", away, method="POST")
    answer = page.get("/login/oidc")
    assert answer.status_code == 503
    assert "Keycloak cannot be used right now." in answer.text
    assert 'name="password"' in answer.text
    api.put(
        "/v1/sessions/oidc", refusal(403, "No account here has the address x@y.z."), method="POST"
    )
    refused = page.get("/login/oidc/callback?code=c&state=st")
    assert refused.status_code == 403
    assert "x@y.z" in refused.text


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("/jobs/job_1?after=x", "/jobs/job_1?after=x"),
        ("//evil.example", "/jobs"),
        ("https://evil.example", "/jobs"),
        ("/\\evil.example", "/jobs"),
        ("/a\nSet-Cookie: x", "/jobs"),
        ("javascript:alert(1)", "/jobs"),
        ("", "/jobs"),
    ],
)
def test_after_signing_in_nobody_is_led_to_another_site(asked: str, allowed: str) -> None:
    assert local_path(asked) == allowed


def test_a_form_over_the_limit_is_refused_unread(api: FakeApi, page: TestClient) -> None:
    answer = page.post("/login", content=b"name=" + b"a" * MAX_FORM_BYTES, headers=FORM)
    assert answer.status_code == 413
    assert api.calls == []
