"""The first administrator, passwords, login links, limits."""

import stat

import pytest

from api.sign_in.first_start import ensure_link
from api.web.auth import COOKIE
from api.web.rate_limits import SPREAD_S
from core.process.settings import ApiSettings
from tests.api.conftest import World, client, running_world
from tests.api.shapes import job_spec

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PASSWORD = "a sentence nobody else has"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"


def signed_in_by(world: World, user_agent: str) -> dict[str, str]:
    """A session of ann's, begun by a program that calls itself so."""
    link = world.ann.post("/v1/me/login-link").json()
    answer = client(world.app, None).post(
        "/v1/sessions/link", json={"secret": link["secret"]}, headers={"User-Agent": user_agent}
    )
    assert answer.status_code == 201
    return dict(answer.json())


def test_the_first_start_link_makes_one_administrator(settings: ApiSettings) -> None:
    app_world = running_world(settings, with_node=False)
    process = app_world.process
    path = process.settings.first_start_link
    link = ensure_link(process.database, url="http://127.0.0.1:8471", path=path)
    assert link is not None
    assert path.read_text() == f"{link}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_link(process.database, url="http://127.0.0.1:8471", path=path) == link
    old_secret = link.partition("secret=")[2]
    path.unlink()  # lost: another one is made, and the old one ends
    link = ensure_link(process.database, url="http://127.0.0.1:8471", path=path)
    assert link is not None
    secret = link.partition("secret=")[2]
    nobody = client(app_world.app, None)
    body = {"secret": secret, "name": "ada", "password": PASSWORD}

    assert nobody.post("/v1/first-start", json={**body, "secret": old_secret}).status_code == 401
    assert nobody.post("/v1/first-start", json={**body, "secret": "x" * 40}).status_code == 401
    weak = nobody.post("/v1/first-start", json={**body, "password": "short"})
    assert (weak.status_code, weak.json()["param"]) == (422, "password")
    made = nobody.post("/v1/first-start", json=body)
    assert made.status_code == 201
    assert made.json()["user"]["role"] == "admin"
    assert not path.exists()
    assert client(app_world.app, made.json()["secret"]).get("/v1/users").status_code == 200

    again = client(app_world.app, None).post("/v1/first-start", json=body)
    assert again.status_code == 401
    assert ensure_link(process.database, url="http://127.0.0.1:8471", path=path) is None
    process.ringer.close()
    process.database.close()


def test_a_password_signs_in_and_a_wrong_one_does_not(world: World) -> None:
    added = world.admin.post(
        "/v1/users", json={"name": "cleo", "password": PASSWORD, "zone": "Europe/Berlin"}
    )
    assert added.status_code == 201
    assert world.admin.post("/v1/users", json={"name": "cleo"}).json()["code"] == "name_taken"
    browser = client(world.app, None)
    for body in (
        {"name": "cleo", "password": "wrong"},
        {"name": "nobody", "password": PASSWORD},
        {"name": "ann", "password": ""},  # she has no password at all
    ):
        answer = browser.post("/v1/sessions", json=body)
        assert (answer.status_code, answer.json()["code"]) == (401, "wrong_password")
        assert COOKIE not in answer.cookies
    made = browser.post("/v1/sessions", json={"name": "cleo", "password": PASSWORD})
    assert made.status_code == 201
    assert browser.get("/v1/me").json()["user"]["zone"] == "Europe/Berlin"
    session = client(world.app, made.json()["secret"])
    assert session.get("/v1/me").status_code == 200  # the same secret, for the command line


def test_a_password_is_changed_with_the_present_one(world: World) -> None:
    changed = world.ann.patch("/v1/me", json={"password": PASSWORD, "zone": "Asia/Kathmandu"})
    assert changed.json()["zone"] == "Asia/Kathmandu"
    new = {"password": f"{PASSWORD} too"}
    assert world.ann.patch("/v1/me", json=new).status_code == 403
    answer = world.ann.patch("/v1/me", json={**new, "current_password": PASSWORD})
    assert answer.status_code == 200
    for wrong in (
        {"zone": "Mars/Olympus"},
        {"zone": "../../etc/passwd"},
        {"password": "aaaaaaaaaaaa"},
    ):
        body = {**wrong, "current_password": new["password"]}
        answer = world.ann.patch("/v1/me", json=body)
        assert answer.status_code == 422, wrong
        assert answer.json()["param"] in ("zone", "password")


def test_a_login_link_works_once(world: World) -> None:
    for link in (
        world.ann.post("/v1/me/login-link").json(),
        world.admin.post("/v1/users/ann/login-link").json(),
    ):
        assert link["url"].endswith(f"/login?link={link['secret']}")
        body = {"secret": link["secret"]}
        first = client(world.app, None).post("/v1/sessions/link", json=body)
        second = client(world.app, None).post("/v1/sessions/link", json=body)
        assert (first.status_code, second.status_code) == (201, 401)
        assert first.json()["user"]["name"] == "ann"
        assert "used already" in second.json()["detail"]


def test_an_enrolment_token_does_not_sign_in_and_a_login_link_does_not_enrol(world: World) -> None:
    token = world.staff.post("/v1/admin/enrolments", json={"name": "box2"}).json()["token"]
    assert world.nobody.post("/v1/sessions/link", json={"secret": token}).status_code == 401


def test_sign_ins_are_counted_and_refused_with_a_time_to_wait(settings: ApiSettings) -> None:
    strict = settings.model_copy(update={"logins_per_minute": 3})
    with running_world(strict, with_node=False) as world:
        body = {"name": "ann", "password": "guess"}
        answers = [world.nobody.post("/v1/sessions", json=body) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60 + SPREAD_S
        other = world.nobody.post("/v1/sessions", json={"name": "bob", "password": "guess"})
        assert other.status_code == 401  # another name has its own count


def test_submissions_are_counted_and_the_queue_has_an_end(settings: ApiSettings) -> None:
    strict = settings.model_copy(update={"submissions_per_minute": 4, "max_queued_jobs": 2})
    with running_world(strict) as world:
        answers = [world.ann.post("/v1/jobs", json=job_spec()) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [201, 201, 429, 429, 429]
        assert answers[2].json()["code"] == "queue_full"
        assert "the limit is 2" in answers[2].json()["detail"]
        assert answers[2].headers["retry-after"] == "60"
        assert answers[4].json()["code"] == "rate_limited"
        assert "retry-after" in answers[4].headers
        assert world.bob.post("/v1/jobs", json=job_spec()).status_code == 201


def test_me_says_who_i_am_and_what_i_have(world: World) -> None:
    lab = world.admin.post("/v1/labs", json={"name": "vision"}).json()
    assert world.admin.post("/v1/labs", json={"name": "vision"}).status_code == 409
    added = world.admin.post(f"/v1/labs/{lab['id']}/members", json={"user": "ann"})
    assert added.json()["members"] == ["ann"]
    me = world.ann.get("/v1/me").json()
    assert (me["user"]["name"], me["labs"], me["queued"], me["lease"]) == (
        "ann",
        ["vision"],
        0,
        None,
    )
    assert [lab["name"] for lab in world.ann.get("/v1/labs").json()["data"]] == ["vision"]
    assert world.bob.get("/v1/labs").json()["data"] == []
    gone = world.admin.delete(f"/v1/labs/{lab['id']}/members/ann")
    assert gone.json()["members"] == []


def test_sessions_are_listed_and_ended_one_by_one(world: World) -> None:
    here, there = (signed_in_by(world, agent) for agent in (FIREFOX, "trainyard/0.1.0"))
    first, second = client(world.app, here["secret"]), client(world.app, there["secret"])
    listed = first.get("/v1/sessions").json()["data"]
    assert [(one["id"], one["name"], one["is_this_one"]) for one in listed] == [
        (there["id"], "command line, testclient", False),
        (here["id"], "Firefox on Linux, testclient", True),
    ]
    assert "secret" not in listed[0]
    assert world.bob.delete(f"/v1/sessions/{there['id']}").status_code == 404
    assert world.bob.get("/v1/sessions").json()["data"] == []
    assert first.delete(f"/v1/sessions/{there['id']}").status_code == 204
    assert second.get("/v1/me").status_code == 401
    assert [one["id"] for one in first.get("/v1/sessions").json()["data"]] == [here["id"]]
    assert world.ann.delete(f"/v1/sessions/{here['id']}").status_code == 204  # a token may, too
    assert first.get("/v1/me").json()["code"] == "expired"
