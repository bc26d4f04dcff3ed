"""What a token may be used for: every route, every scope; and what a token can't make."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import update
from starlette.testclient import TestClient

from api.app import api_routes
from api.web.auth import policy_of
from api.web.scopes import AREAS, EXCEPTIONS, included, scope_of
from core.base.clock import utc_now
from core.tables.kinds import Scope, TokenKind
from core.tables.people import Link, Token
from tests.api.conftest import World, client
from tests.api.shapes import job_spec

PEOPLES = ("signed in", "staff", "admin")


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The same on every database: once is enough."""
    return sqlite_url


def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of everything in the OpenAPI document."""
    return [
        (method.upper(), path, operation)
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]


def token(world: World, owner: TestClient, *scopes: str, days: int = 90) -> TestClient:
    """A client with a new token of this person."""
    body = {"name": "t", "scopes": list(scopes), "expires_in_days": days}
    made = owner.post("/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    return client(world.app, made.json()["secret"])


def test_every_route_of_the_document_declares_its_scope(world: World) -> None:
    policies = {
        (method, route.path): policy_of(route.dependant)
        for route in api_routes()
        for method in route.methods
    }
    for method, path, operation in operations(world.app):
        policy = policies[method, path]
        assert ("x-scope" in operation) == (policy in PEOPLES), f"{method} {path}"
        if policy in ("staff", "admin"):
            assert operation["x-scope"] == Scope.ALL, f"{method} {path}"
        elif policy == "signed in" and method not in ("GET", "HEAD"):
            exception = EXCEPTIONS.get(f"{method} {path}")
            assert operation["x-scope"] == exception or operation["x-scope"] != Scope.READ
    named = {f"{method} {path}" for method, path, _ in operations(world.app)}
    assert set(EXCEPTIONS) <= named, "an exception for a route that is gone"
    areas = {path.split("/")[2] for _, path, _ in operations(world.app) if path.startswith("/v1/")}
    assert {area for listed in AREAS.values() for area in listed} <= areas


def test_a_route_that_nobody_declared_stops_the_start() -> None:
    with pytest.raises(LookupError, match="POST /v1/sheep"):
        scope_of("POST", "/v1/sheep")


def test_a_token_gets_in_where_its_scopes_let_it_and_nowhere_else(world: World) -> None:
    """Every route with every scope: 403 with the scope that is missing, or past the door."""
    tokens = {scope: token(world, world.ann, scope) for scope in Scope if scope != Scope.ALL}
    asked = 0
    for method, path, operation in operations(world.app):
        needed = operation.get("x-scope")
        if needed is None or path.endswith("/current") or path == "/v1/leases/stream":
            continue  # a stream that is let in goes on for an hour
        address = path.replace("{sha256}", "0" * 64).replace("{act}", "drain")
        for part in ("{", "}"):
            address = address.replace(part, "")
        for scope, caller in tokens.items():
            answer = caller.request(method, address, json={})
            if needed in included([scope]):
                assert answer.status_code != 401, f"{scope} {method} {path}"
                assert "missing_scope" not in answer.text, f"{scope} {method} {path}"
                continue
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (403, "missing_scope"), path
            assert f"the scope {needed};" in problem["detail"], f"{method} {path} {scope}"
            assert f'scope="{needed}"' in answer.headers["www-authenticate"]
            asked += 1
    assert asked > 150


def test_a_token_for_jobs_submits_and_looks_but_does_not_book(world: World) -> None:
    jobs = token(world, world.ann, "jobs")
    job = jobs.post("/v1/jobs", json=job_spec())
    assert job.status_code == 201
    assert jobs.get(f"/v1/jobs/{job.json()['id']}").status_code == 200
    refused = jobs.post("/v1/leases", json={})
    assert refused.json()["code"] == "missing_scope"
    assert "yours holds read, jobs" in refused.json()["detail"]
    assert jobs.delete("/v1/sessions/current").status_code == 204  # it may end itself
    assert jobs.get("/v1/me").status_code == 401


def test_the_role_of_staff_counts_only_with_everything(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    narrow, whole = token(world, world.staff, "jobs"), token(world, world.staff, "all")
    assert narrow.get(f"/v1/jobs/{job}").status_code == 404
    assert narrow.post(f"/v1/jobs/{job}/cancel").status_code == 404
    assert whole.get(f"/v1/jobs/{job}").status_code == 200
    assert narrow.get("/v1/users").json()["code"] == "missing_scope"
    assert whole.get("/v1/users").status_code == 200


def test_nothing_is_named_then_a_token_only_reads(world: World) -> None:
    made = world.ann.post("/v1/tokens", json={"name": "plain"}).json()
    assert made["scopes"] == ["read"]
    reader = client(world.app, made["secret"])
    assert reader.get("/v1/jobs").status_code == 200
    assert reader.post("/v1/jobs", json=job_spec()).json()["code"] == "missing_scope"


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(["sheep"], 422), ([], 422), (["jobs", "jobs", "leases"], 201), (["all", "read"], 201)],
)
def test_scopes_are_known_words(world: World, scopes: list[str], status: int) -> None:
    answer = world.ann.post("/v1/tokens", json={"name": "t", "scopes": scopes})
    assert answer.status_code == status
    if status == 201:
        expected = [scope for scope in Scope if scope in scopes]
        assert answer.json()["scopes"] == expected
        listed = world.ann.get("/v1/tokens").json()["data"][0]
        assert listed["scopes"] == expected
    else:
        assert answer.json()["param"].startswith("scopes")


def test_a_token_makes_none_that_is_wider_or_lasts_longer(world: World) -> None:
    keeper = token(world, world.ann, "account", "leases", days=30)
    for scopes in (["jobs"], ["all"], ["read", "jobs"]):
        answer = keeper.post("/v1/tokens", json={"name": "w", "scopes": scopes})
        assert (answer.status_code, answer.json()["code"]) == (403, "wider_token")
        assert answer.json()["param"] == "scopes"
    narrow = {"name": "n", "scopes": ["leases"]}
    late = keeper.post("/v1/tokens", json={**narrow, "expires_in_days": 31})
    assert (late.status_code, late.json()["param"]) == (403, "expires_in_days")
    assert keeper.post("/v1/tokens", json={**narrow, "expires_in_days": 29}).status_code == 201
    # Nor does it get at more by another way: a session would hold everything.
    assert keeper.post("/v1/me/login-link").json()["code"] == "missing_scope"
    password = {"password": "a sentence nobody else has"}
    assert keeper.patch("/v1/me", json=password).json()["code"] == "missing_scope"
    assert keeper.patch("/v1/me", json={"zone": "Europe/Berlin"}).status_code == 200


def test_a_token_ends_when_it_said(world: World) -> None:
    made = world.ann.post("/v1/tokens", json={"name": "t", "expires_in_days": 1}).json()
    ends = datetime.fromisoformat(made["expires_at"])
    assert abs(ends - utc_now() - timedelta(days=1)) < timedelta(minutes=1)
    short = client(world.app, made["secret"])
    assert short.get("/v1/me").status_code == 200
    with world.database.write() as session:
        past = utc_now() - timedelta(seconds=1)
        session.execute(update(Token).where(Token.id == made["id"]).values(expires_at=past))
    assert short.get("/v1/me").json()["code"] == "expired"


def session_by_link(world: World, maker: TestClient, whose: str = "me") -> TestClient:
    """Signed in by a login link that `maker` made."""
    path = "/v1/me/login-link" if whose == "me" else f"/v1/users/{whose}/login-link"
    secret = maker.post(path).json()["secret"]
    made = world.nobody.post("/v1/sessions/link", json={"secret": secret})
    return client(world.app, made.json()["secret"])


def works(*clients: TestClient) -> list[bool]:
    """Whether each is let in."""
    return [one.get("/v1/me").status_code == 200 for one in clients]


def test_what_a_token_made_ends_when_it_is_revoked(world: World) -> None:
    parent = token(world, world.admin, "all")
    child = token(world, parent, "all", days=30)
    own = session_by_link(world, child)
    of_ann = session_by_link(world, child, "ann")
    grandchild = token(world, own, "read", days=1)
    unused = [
        ("/v1/sessions/link", {"secret": child.post("/v1/me/login-link").json()["secret"]}),
        (
            "/v1/new-password",
            {
                "secret": child.post("/v1/users/ann/password-link").json()["secret"],
                "password": "correct horse battery",
            },
        ),
    ]
    apart = token(world, world.admin, "all")
    assert works(parent, child, own, of_ann, grandchild, apart) == [True] * 6
    assert parent.delete("/v1/sessions/current").status_code == 204
    assert works(parent, child, own, of_ann, grandchild, apart) == [False] * 5 + [True]
    for path, body in unused:
        answer = world.nobody.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (401, "expired"), path
    assert works(world.ann, world.admin) == [True, True]


def test_what_a_token_made_ends_when_it_expires(world: World) -> None:
    parent = token(world, world.ann, "all", days=1)
    with world.database.write() as session:
        soon = utc_now() + timedelta(hours=1)
        session.execute(update(Token).where(Token.name == "t").values(expires_at=soon))
    opened = session_by_link(world, parent)
    (shown,) = opened.get("/v1/sessions").json()["data"]
    assert datetime.fromisoformat(shown["expires_at"]) == soon
    late = opened.post("/v1/tokens", json={"name": "t", "scopes": ["all"], "expires_in_days": 2})
    assert (late.status_code, late.json()["param"]) == (403, "expires_in_days")
    assert works(opened) == [True]
    with world.database.write() as session:
        ended = utc_now() - timedelta(seconds=1)
        session.execute(update(Token).where(Token.name == "t").values(expires_at=ended))
    assert works(parent, opened) == [False, False]
    assert opened.get("/v1/me").json()["code"] == "expired"


def test_a_token_made_by_who_signed_in_stays_when_they_sign_out(world: World) -> None:
    secret = world.admin.post("/v1/users/ann/login-link").json()["secret"]
    with world.database.write() as session:  # as if made by somebody who had signed in
        session.execute(update(Link).values(made_with=None))
    made = world.nobody.post("/v1/sessions/link", json={"secret": secret}).json()
    signed_in = client(world.app, made["secret"])
    script = token(world, signed_in, "read")
    assert signed_in.delete("/v1/sessions/current").status_code == 204
    assert works(signed_in, script) == [False, True]


def test_a_session_ends_after_thirty_days_however_much_it_is_used(world: World) -> None:
    opened = session_by_link(world, world.ann)
    for days, idle in ((29, True), (30, False)):
        with world.database.write() as session:
            begun = utc_now() - timedelta(days=days)
            session.execute(
                update(Token)
                .where(Token.kind == TokenKind.SESSION)
                .values(
                    created_at=begun,
                    last_used_at=utc_now() - timedelta(hours=1),
                    expires_at=utc_now() + timedelta(hours=11),
                )
            )
        opened.get("/v1/me")  # its end moves on, or not
        assert works(opened) == [idle], f"after {days} days"


def test_a_new_password_signs_out_everywhere_else(world: World) -> None:
    here, there = session_by_link(world, world.ann), session_by_link(world, world.ann)
    script, of_a_thief = token(world, here, "read"), token(world, there, "all")
    link = there.post("/v1/me/login-link").json()["secret"]
    changed = here.patch("/v1/me", json={"password": "correct horse battery"})
    assert changed.status_code == 200
    assert works(here, there, script, of_a_thief, world.ann) == [True] + [False] * 4
    assert world.nobody.post("/v1/sessions/link", json={"secret": link}).status_code == 401
    assert works(world.bob) == [True]


def test_a_person_has_at_most_fifty_tokens_that_work(world: World) -> None:
    made = [
        world.bob.post("/v1/tokens", json={"name": str(number), "scopes": ["read"]})
        for number in range(50)  # with the one that makes them 51 would work
    ]
    assert [one.status_code for one in made] == [201] * 49 + [409]
    assert made[-1].json()["code"] == "too_many_tokens"
    assert "You have 50 valid API tokens and the limit is 50" in made[-1].json()["detail"]
    assert world.bob.delete(f"/v1/tokens/{made[0].json()['id']}").status_code == 204
    assert world.bob.post("/v1/tokens", json={"name": "n"}).status_code == 201
