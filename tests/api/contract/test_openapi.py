"""The OpenAPI document is real, committed, every answer is as it says, and none is a 5xx."""

import asyncio
import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from httpx2 import Response
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from core.process.settings import ApiSettings
from tests.api.conftest import World, running_world
from tests.api.shapes import job_spec, place
from tests.one_database import quick_on_sqlite

BASE = "http://127.0.0.1:8471"
COMMITTED = Path(__file__).parents[3] / "docs" / "openapi.json"


def document(world: World) -> dict[str, Any]:
    return dict(world.nobody.get("/v1/openapi.json").json())


@cache
def committed() -> dict[str, Any]:
    return dict(json.loads(COMMITTED.read_text()))


@cache
def checker(method: str, path: str, status: int, kind: str) -> jsonschema_rs.Validator | None:
    """What the committed document says an answer of this kind looks like; None if it has none."""
    responses = committed()["paths"][path][method.lower()]["responses"]
    content = responses.get(str(status), responses["default"]).get("content", {})
    if kind not in content:
        return None
    schema = {**content[kind].get("schema", {}), "components": committed()["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


def undocumented(method: str, path: str, answer: Response) -> str:
    """In what an answer differs from the document; empty if it does not."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.content:
        return ""
    expected = checker(method, path, answer.status_code, kind)
    if expected is None:
        return f"{method} {path}: {answer.status_code} {kind!r} is not in the document"
    if not kind.endswith("json"):
        return ""
    for error in expected.iter_errors(answer.json()):
        where = "/".join(str(part) for part in error.instance_path)
        return f"{method} {path}: {answer.status_code} {where}: {error.message}"
    return ""


@quick_on_sqlite
def test_others_are_answered_while_the_document_is_built(world: World) -> None:
    async def ask() -> tuple[float, float]:
        """How long the first answer takes, and how long the loop stood still meanwhile."""
        transport = httpx2.ASGITransport(app=world.app)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
            began = time.monotonic()
            asked = asyncio.create_task(client.get("/v1/openapi.json"))
            looked, longest_s = began, 0.0
            while not asked.done():
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, time.monotonic() - looked)
                looked = time.monotonic()
            assert (await asked).status_code == 200
            return looked - began, longest_s

    took_s, stood_s = asyncio.run(ask())
    assert stood_s < took_s / 2


@pytest.fixture
def sqlite_world(migrated_sqlite: Path, tmp_path: Path) -> Any:
    """The document does not depend on the database."""
    url = f"sqlite:///{tmp_path / 'trainyard.db'}"
    (tmp_path / "trainyard.db").write_bytes(migrated_sqlite.read_bytes())
    with running_world(
        ApiSettings(
            database_url=url,
            redis_url="unix:///nonexistent.sock?db=0",
            store=tmp_path / "store",
            submissions_per_minute=1_000_000,
            logins_per_minute=1_000_000,
        )
    ) as world:
        yield world


def test_the_committed_document_is_the_present_one(sqlite_world: World) -> None:
    """`python -m api.write_openapi` writes it."""
    assert json.loads(COMMITTED.read_text()) == document(sqlite_world)


def test_the_document_says_what_people_need(sqlite_world: World) -> None:
    found = document(sqlite_world)
    assert found["info"]["title"] == "Trainyard"
    submit = found["paths"]["/v1/jobs"]["post"]
    assert set(submit["requestBody"]["content"]) == {"application/json", "application/yaml"}
    example = submit["requestBody"]["content"]["application/json"]["example"]
    assert sqlite_world.ann.post("/v1/jobs", json=example).status_code == 201
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"
            assert operation["responses"]["default"], f"{method} {path}"


def test_every_answer_is_as_documented_whoever_asks_for_what(sqlite_world: World) -> None:
    """Empty bodies and ids of nothing: most answers are errors, the rest empty lists."""
    world = sqlite_world
    place(world.database, world.ann.post("/v1/jobs", json=job_spec()).json()["id"])
    found = set()
    for path, operations in committed()["paths"].items():
        address = re.sub(r"\{[^}]+\}", "nothing", path.replace("{sha256}", "0" * 64))
        if path == "/v1/sessions/current":
            continue  # it would sign them out
        callers = (world.nobody, world.ann, world.admin)
        if path.startswith("/v1/node/"):
            callers = (world.node,)
        elif path == "/v1/leases/stream":
            callers = (world.nobody,)  # for the others it goes on for an hour
        for method in operations:
            for caller in callers:
                found.add(undocumented(method, path, caller.request(method, address)))
            if method != "get":
                answer = caller.request(method, address, json={"what": 1})
                found.add(undocumented(method, path, answer))
    feed = world.ann.post("/v1/calendars", json={}).json()
    path = "/v1/leases/calendar.ics"
    found.add(undocumented("get", path, world.nobody.get(feed["url"])))
    assert world.admin.get("/v1/me").status_code == 200, "nothing signed the callers out"
    assert found == {""}


def call_every_operation(world: World, *, examples: int) -> int:
    """Generated requests on every operation, by somebody who may call it; how many were sent."""
    schema = schemathesis.openapi.from_dict(document(world))
    job = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    place(world.database, job)
    known = {
        "job_id": job,
        "study_id": world.ann.post("/v1/studies?ranks=1,2", json=job_spec()).json()["id"],
        "user_id": "bob",
        "node_id": "box",
        "lab_id": "none",
        "dataset_id": "python-stdlib",
    }
    sent = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/stream"):
            continue  # it lasts as long as the job; its own tests are in test_stream
        if operation.path in ("/v1/sessions/current", "/v1/users/{user_id}"):
            continue  # they would sign the callers below out; see test_access
        caller = world.node if operation.path.startswith("/v1/node/") else world.admin
        sent += call_operation(operation, caller, known, examples)
    return sent


def call_operation(operation: Any, caller: TestClient, known: dict[str, str], examples: int) -> int:
    """Generated requests on one operation; how many were sent."""
    sent = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def call(case: Any) -> None:
        nonlocal sent
        sent += 1
        if sent % 2:  # every other request is about something that exists
            case.path_parameters.update(
                {name: known[name] for name in case.path_parameters if name in known}
            )
        request = case.as_transport_kwargs(base_url="http://127.0.0.1:8471")
        mine = {"authorization", "cookie"}
        request["headers"] = {
            **{name: one for name, one in request["headers"].items() if name.lower() not in mine},
            "Authorization": caller.headers["authorization"],
        }
        names = ("method", "url", "json", "params", "headers")
        answer = caller.request(
            **{name: request[name] for name in names if name in request},
            content=request.get("data"),
        )
        assert answer.status_code < 500, f"{request}: {answer.text}"
        assert not undocumented(operation.method, operation.path, answer), request

    call()
    return sent


LONG = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("database_url", "examples"),
    [
        # Of one each: about something that exists; about nothing: the test above.
        pytest.param("sqlite", 1, marks=LONG),
        pytest.param("sqlite", 2, marks=LONG),  # one of each
        pytest.param("sqlite", 30, marks=LONG),
        pytest.param("postgresql", 2, marks=LONG),
        pytest.param("postgresql", 10, marks=LONG),
    ],
    indirect=["database_url"],
)
def test_no_generated_request_ends_in_a_server_error(world: World, examples: int) -> None:
    """On PostgreSQL fewer: what is wrong with a request is found on the way to either."""
    assert call_every_operation(world, examples=examples) > 100 * examples / 3
