"""Who may call what: every route, every kind of caller."""

import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import api_routes
from api.web.auth import COOKIE, POLICIES, policy_of
from core.process.settings import ApiSettings
from tests.api.conftest import World, client, running_world
from tests.api.shapes import job_spec

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

# For every caller, the policies that let it in.
LETS_IN = {
    "nobody": {"anyone"},
    "ann": {"anyone", "signed in"},
    "staff": {"anyone", "signed in", "staff"},
    "admin": {"anyone", "signed in", "staff", "admin"},
    "node": {"anyone", "node"},
}
EXPECTED = {
    "admin": {
        "POST /v1/users",
        "PATCH /v1/users/{user_id}",
        "DELETE /v1/users/{user_id}",
        "POST /v1/users/import",
        "POST /v1/users/{user_id}/login-link",
        "DELETE /v1/users/{user_id}/identities",
        "POST /v1/users/{user_id}/move",
        "POST /v1/users/{user_id}/password-letter",
        "POST /v1/users/{user_id}/password-link",
        "POST /v1/labs",
        "PUT /v1/admin/node-classes/{name}/fabric",
        "PUT /v1/admin/network/node-classes/{name}",
        "PUT /v1/admin/network/labs/{name}",
        "POST /v1/admin/read-only",
        "GET /v1/admin/unsafe-settings",
        "DELETE /v1/admin/read-only",
        "PATCH /v1/labs/{lab_id}",
        "POST /v1/labs/{lab_id}/members",
        "DELETE /v1/labs/{lab_id}/members/{user}",
    },
    "staff": {
        "GET /v1/users",
        "GET /v1/users/{user_id}",
        "POST /v1/grants",
        "DELETE /v1/grants/{grant_id}",
        "GET /v1/admin/moved-leases",
        "POST /v1/admin/moved-leases",
        "POST /v1/courses",
        "GET /v1/courses/{course}/bundle",
        "GET /v1/courses/{course}/exercises/{exercise}/forecast",
        "GET /v1/courses/{course}/exercises/{exercise}/roster",
        "GET /v1/courses/{course}/exercises/{exercise}/results",
        "DELETE /v1/courses/{course}",
        "POST /v1/policies",
        "POST /v1/policies/forecast",
        "DELETE /v1/policies/{policy_id}",
        "POST /v1/windows",
        "PATCH /v1/windows/{window_id}",
        "DELETE /v1/windows/{window_id}",
        "POST /v1/admin/enrolments",
        "POST /v1/admin/nodes/{node_id}/{act}",
        "POST /v1/admin/nodes/{node_id}/slots/{slot}/{act}",
        "GET /v1/admin/audit",
        "GET /v1/admin/node-classes/{name}/fabric",
        "GET /v1/admin/network",
        "GET /v1/admin/read-only",
        "GET /v1/admin/nodes/{node_id}/in-the-way",
        "POST /v1/admin/cleanups",
        "GET /v1/admin/cleanups",
        "GET /v1/admin/cleanups/{cleanup_id}",
        "POST /v1/admin/cleanups/{cleanup_id}/apply",
        "POST /v1/admin/cleanups/{cleanup_id}/undo",
        "POST /v1/admin/leases/{lease_id}/force-release",
        "PUT /v1/admin/leases/{lease_id}/tags",
        "POST /v1/maintenance/plan",
        "POST /v1/maintenance",
        "DELETE /v1/maintenance/{maintenance_id}",
    },
    "anyone": {
        "POST /v1/first-start",
        "POST /v1/sessions",
        "POST /v1/sessions/link",
        "GET /v1/sessions/oidc",
        "POST /v1/sessions/oidc",
        "POST /v1/sessions/oidc/start",
        "POST /v1/invites/accept",
        "POST /v1/new-password",
        "POST /v1/password-letters",
        "POST /v1/node/enrol",
        "GET /healthz",
        "GET /v1/client",
        "GET /client/{filename}",
        "GET /v1/leases/calendar.ics",
        "GET /readyz",
        "GET /metrics",
    },
}


def routes(app: FastAPI) -> list[tuple[str, str, str | None]]:
    """Method, path and policy of every route of the API; the OpenAPI document knows no others."""
    found = [
        (method, route.path, policy_of(route.dependant))
        for route in api_routes()
        for method in route.methods
    ]
    documented = {
        (method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }
    assert {(method, path) for method, path, _ in found} == documented
    return found


def test_every_route_says_who_may_call_it(world: World) -> None:
    found = routes(world.app)
    assert len(found) > 60
    for policy in ("admin", "staff", "anyone"):
        named = {f"{method} {path}" for method, path, of in found if of == policy}
        assert named == EXPECTED[policy], policy
    for method, path, policy in found:
        assert policy in POLICIES.values(), f"{method} {path}"
        assert (policy == "node") == (path.startswith("/v1/node/") and path != "/v1/node/enrol"), (
            path
        )


def test_nobody_gets_in_where_the_policy_does_not_let_them(world: World) -> None:
    callers = {
        "nobody": world.nobody,
        "ann": world.ann,
        "staff": world.staff,
        "admin": world.admin,
        "node": world.node,
    }
    for method, path, policy in routes(world.app):
        address = re.sub(r"\{sha256\}", "0" * 64, path)
        address = re.sub(r"\{act\}", "drain", address)
        address = re.sub(r"\{[^}]+\}", "unknown", address)
        for name, caller in callers.items():
            if policy in LETS_IN[name]:
                continue
            answer = caller.request(method, address, json={})
            # 401: no such identity here; 403: known, but not allowed to.
            allowed = {403} if name in ("ann", "staff") and policy != "node" else {401}
            assert answer.status_code in allowed, f"{name} {method} {address}: {answer.text}"
            if method != "HEAD":
                assert answer.json()["status"] == answer.status_code


def test_what_belongs_to_others_is_not_found(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    token = world.ann.post("/v1/tokens", json={"name": "mine"}).json()["id"]
    dataset = world.ann.post("/v1/datasets?name=mine", content=b"some text").json()["id"]
    for path in ("", "/events", "/attempts", "/metrics", "/logs", "/stream", "/checkpoints"):
        assert world.bob.get(f"/v1/jobs/{job}{path}").status_code == 404, path
        if path != "/stream":
            assert world.staff.get(f"/v1/jobs/{job}{path}").status_code == 200, path
    for act in ("cancel", "pause", "resume", "requeue", "clone"):
        assert world.bob.post(f"/v1/jobs/{job}/{act}").status_code == 404, act
    assert world.bob.delete(f"/v1/tokens/{token}").status_code == 404
    assert world.bob.get(f"/v1/datasets/{dataset}").status_code == 404
    assert world.bob.delete(f"/v1/datasets/{dataset}").status_code == 404
    assert world.bob.get("/v1/jobs", params={"user": "ann"}).json()["data"] == []
    borrowed = world.bob.post("/v1/jobs", json=job_spec(data={"dataset": dataset}))
    assert borrowed.json()["code"] == "unknown_dataset"
    assert world.staff.get("/v1/jobs", params={"user": "ann"}).json()["data"][0]["id"] == job


def test_staff_who_cancel_for_others_are_in_the_audit_log(world: World) -> None:
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    assert world.staff.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
    late = world.ann.post(f"/v1/jobs/{job}/pause").json()
    assert late["detail"].endswith(" has been cancelled and cannot be paused.")
    entry = world.staff.get("/v1/admin/audit").json()["data"][0]
    assert (entry["kind"], entry["subject"]) == ("job.cancel", job)


def signed_in_browser(world: World) -> TestClient:
    """A browser that holds ann's session as a cookie."""
    link = world.ann.post("/v1/me/login-link").json()
    browser = client(world.app, None)
    answer = browser.post("/v1/sessions/link", json={"secret": link["secret"]})
    assert answer.status_code == 201
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert browser.cookies.get(COOKIE)
    return browser


def test_a_cookie_reads_but_writes_only_from_our_own_pages(world: World) -> None:
    browser = signed_in_browser(world)
    assert browser.get("/v1/me").json()["user"]["name"] == "ann"
    for headers in (
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8471"},
        {"Origin": "http://127.0.0.1:99999"},
    ):
        answer = browser.post("/v1/jobs", json=job_spec(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site"), headers
        assert browser.delete("/v1/sessions/current", headers=headers).status_code == 403
    for headers in ({"Origin": "http://127.0.0.1:8471"}, {"Sec-Fetch-Site": "same-origin"}):
        assert browser.post("/v1/jobs", json=job_spec(), headers=headers).status_code == 201
    out = browser.delete("/v1/sessions/current", headers={"Sec-Fetch-Site": "same-origin"})
    assert out.status_code == 204
    assert browser.get("/v1/me").status_code == 401


def test_an_api_token_does_not_work_as_a_cookie(world: World) -> None:
    browser = client(world.app, None)
    browser.cookies.set(COOKIE, world.tokens["ann"])
    assert browser.get("/v1/me").status_code == 401
    browser.cookies.set(COOKIE, world.tokens["box"])
    assert browser.post("/v1/node/heartbeat", json={}).status_code == 401


def test_another_sites_page_cannot_sign_anybody_in(world: World) -> None:
    answer = world.nobody.post(
        "/v1/sessions",
        json={"name": "ann", "password": "x"},
        headers={"Origin": "https://evil.example"},
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")


def test_tokens_end_at_once(world: World) -> None:
    made = world.ann.post("/v1/tokens", json={"name": "laptop"}).json()
    laptop = client(world.app, made["secret"])
    assert laptop.get("/v1/me").status_code == 200
    (listed,) = [t for t in world.ann.get("/v1/tokens").json()["data"] if t["name"] == "laptop"]
    assert "secret" not in listed
    assert listed["last_used_at"] is not None
    assert world.ann.delete(f"/v1/tokens/{made['id']}").status_code == 204
    assert laptop.get("/v1/me").json()["code"] == "expired"

    assert world.admin.patch("/v1/users/ann", json={"disabled": True}).status_code == 200
    assert world.ann.get("/v1/me").status_code == 401


def test_wrong_authorization_headers_are_refused(world: World) -> None:
    for header in ("", "Bearer", "Bearer ", "Basic YTpi", "Bearer nope", "bearer \xe9".strip()):
        answer = world.nobody.get("/v1/me", headers={"Authorization": header.encode("latin-1")})
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"] == "Bearer"


def test_every_answer_carries_the_headers_that_protect_browsers(world: World) -> None:
    for path in ("/healthz", "/v1/me", "/v1/nothing"):
        headers = world.nobody.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert world.ann.get("/v1/me").headers["cache-control"] == "no-store"


def test_with_a_public_name_only_that_name_is_answered(settings: ApiSettings) -> None:
    public = settings.model_copy(
        update={"public_url": "https://trainyard.example", "allowed_hosts": ["nodes.internal"]}
    )
    with running_world(public, with_node=False) as world:
        for host, status in (
            ("trainyard.example", 200),
            ("nodes.internal:8471", 200),
            ("127.0.0.1:8471", 200),
            ("evil.example", 421),
            ("trainyard.example.evil.example", 421),
            ("", 421),
        ):
            answer = world.nobody.get("/healthz", headers={"Host": host})
            assert answer.status_code == status, host
        answer = world.nobody.get("/healthz", headers={"Host": "trainyard.example"})
        assert "max-age" in answer.headers["strict-transport-security"]


def test_roles_are_not_for_users_to_give(world: World) -> None:
    for caller in (world.ann, world.staff):
        assert caller.patch("/v1/users/ann", json={"role": "admin"}).status_code == 403
    assert world.admin.patch("/v1/users/bob", json={"role": "staff"}).json()["role"] == "staff"
    assert world.bob.get("/v1/users").status_code == 200
    last = world.admin.patch("/v1/users/ada", json={"role": "user"})
    assert (last.status_code, "last administrator" in last.json()["detail"]) == (409, True)
    assert world.admin.delete("/v1/users/ada").status_code == 409
